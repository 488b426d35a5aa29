"""Hearing of changes: one connection and one subscription for all who wait in a process, however many they are.

::

    client.wait, subscribe, events, typed.wait ──▶ watcher ──▶ streams (one for each who waits)
                                                      │           ▲ what has come
                                                      └▶ session ─┘ (one connection: LISTEN, look, read)
"""
