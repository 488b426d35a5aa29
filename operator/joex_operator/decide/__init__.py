"""Decisions. Each is a function of its arguments: no clock, no input or output; time is an argument.

::

    observed.py       Deployments and pods -> slots          periodic_rows.py  PeriodicTasks -> rows of the database
    slots.py          the phases of a slot                   conditions.py  status.py  events.py
    history.py scaling.py   demand -> the number of executors      what users read, as data
    plan.py           an observation -> actions (actions.py) manifests/     the Deployment of a slot
    growth_watch.py   when to be notified of work
"""
