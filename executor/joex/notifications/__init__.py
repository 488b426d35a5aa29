"""Notifications: one connection and one subscription for all waits of a client, however many there are.

::

    client.wait, subscribe, events ──▶ watcher ───▶ streams (one for each wait)
                                          │            ▲ what has changed
                                          └▶ job_watch ┘ (LISTEN, check, read)
    client.keyed.accept(wait=...) ───▶ accept_waiters (LISTEN, check, wake)

Both work on a `listener` (a connection that hears notifications, and answers in time), which is connected again when it
is lost, and given back when nothing waits. A lease and the operator keep listeners on their own connections.
"""
