"""Executors on Kubernetes: the only package that uses the Kubernetes API.

::

    command.py  settings.py -> operator.py (one process)         probes.py  /healthz /readyz /metrics
    leader_election.py  one operator of a release leads          bootstrap_pools.py  the chart's pools
    namespace_claims.py one release acts in a namespace          lease.py            the lock of both
    kopf_watches.py     watches, and a periodic list of everything -> cache.py
    watch_session.py    the HTTP session of those watches
    fleet.py            `joex_operator.control.fleet.Fleet` on top of cache.py, secrets.py, event_recorder.py
    kubernetes_api.py   requests and their errors
"""
