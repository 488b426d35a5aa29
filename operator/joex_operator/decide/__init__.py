"""Decisions. Each is a function of its arguments: no clock, no input or output; time is an argument.

::

    observed.py       Deployments and pods -> replicas          periodic_rows.py  PeriodicTasks -> rows of the database
    replicas.py          the phases of a replica                   conditions.py  status.py  events.py
    history.py scaling.py   demand -> the number of executors      what users read, as data
    plan.py           an observation -> actions (actions.py) manifests/     the Deployment of a replica
    growth_watch.py   when to be notified of work
"""
