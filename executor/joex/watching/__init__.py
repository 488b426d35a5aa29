"""Hearing of changes: one connection and one subscription for all who wait in a process, however many they are.

::

    client.wait, subscribe, events ──▶ watcher ──▶ streams (one for each who waits)
                                          │           ▲ what has come
                                          └▶ session ─┘ (LISTEN, look, read)
    keyed.accept(wait=...) ──────────▶ bell (LISTEN, look, ring)

Session and bell each work on a link (a connection that tells, and answers in time), which an attendant makes again when
it is lost, and gives back when nobody waits.
"""
