"""``joex simulate``: what a pool and its policy would make of a load, before you pay for it.

Nothing is decided here. `fair_queue` takes jobs as `joex.core.fairness` does, `joex.core.outcome` says what becomes of
a run, and `joex_operator.decide` how many executors there are. This room adds the time that passes in between.

::

    command.py -> output.py  plot.py      what the user sees
        |      -> engine.py -> pool.py -> fair_queue.py    the simulation
        |      -> report.py -> totals.py                   its numbers
        +------> workload.py -> generate.py | trace.py -> jobs.py      its load
        +------> policies.py                               its pools
"""
