"""Notifications: one connection and one subscription for all waits of a client, however many there are.

::

    client.wait, subscribe, events ──▶ watcher ───▶ streams (one for each wait)
                                          │            ▲ what has changed
                                          └▶ job_watch ┘ (LISTEN, check, read)
    client.keyed.accept(wait=...) ───▶ accept_waiters (LISTEN, check, wake)

Both use a `listener`: a connection that receives notifications, with a time limit for each answer. Its loop reconnects
when the connection is lost, and gives it back when nothing waits. A lease and the operator have listeners on their own
connections.
"""
