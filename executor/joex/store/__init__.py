"""The only place that speaks SQL.

The SQL of the queue itself is in ``sql/*.sql``, as functions and views of the schema ``joex`` that any language can
call; the modules here are thin Python wrappers. Every function takes a connection, so that a caller decides about
transactions. JSON travels as text both ways, so that a type codec of the caller's connection can't change it.
"""
