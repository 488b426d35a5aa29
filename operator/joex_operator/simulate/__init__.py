"""``joex simulate``: how a pool and its policy would handle a load, before you pay for it.

Nothing is decided here. `fair_queue` takes jobs as `joex.core.fairness` does, `joex.core.outcome` says what becomes of
a run, and `joex_operator.decide` how many executors there are. This package adds the time between these decisions.

::

    command.py -> output.py  plot.py      what the user sees
        |      -> engine.py -> pool.py -> fair_queue.py    the simulation
        |      -> report.py -> totals.py                   its numbers
        +------> workload.py -> generate.py | trace.py -> jobs.py      its load
        +------> policies.py                               its pools
"""
