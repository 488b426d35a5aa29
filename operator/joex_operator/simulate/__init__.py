"""``joex simulate``: how a pool and its policy would handle a load, before you pay for it.

Nothing is decided here. `joex.core.fair_queue` says which job is next, `joex.core.outcome` what becomes of it after a
run, and `joex_operator.decide` how many executors there are. This package adds the time between these decisions.

::

    command.py -> output.py  plot.py      what the user sees
        |      -> engine.py -> pool.py                     the simulation
        |      -> report.py -> totals.py                   its numbers
        +------> workload.py -> generate.py | trace.py -> jobs.py      its load
        +------> policies.py                               its pools
"""
