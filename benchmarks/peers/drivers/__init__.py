"""One driver per system: the same commands, answered in JSON lines, so that the race treats all of them alike.

The drivers of the Python peers run in an environment of their own; they and `protocol` import nothing of Joex.
"""
