"""Executors on Kubernetes: the only place that speaks to its API.

::

    api.py     requests and their errors        found.py   Deployments and pods -> slots (pure)
    mirror.py  what the API server has, kept by events and by listing anew
    fleet.py   `joex_operator.fleet.Fleet` on top of these
    telling.py Events          secrets.py  URLs of databases          first_pools.py  pools that come with the chart
    leading.py the Lease       watching.py kopf: the events
"""
