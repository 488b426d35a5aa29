"""Chaos: Joex under random load and random faults, held to its guarantees. ``python -m tests.support.chaos``.

::

    __main__.py    the command line of `make chaos`
    session.py     a run: starts the world, the load and the faults, settles, and judges
    schedule.py    what happens when, from a seed (pure)
    world.py       the servers, their links, and the processes
    faults.py      does the faults of the schedule to the world
    load.py        does the load of the schedule
    app.py         the tasks, and workers; a worker is a process too: ``python -m tests.support.chaos.app``
    history.py     what the tasks and clients write down, outside of the database
    checker.py     holds history and database to the guarantees (pure)
    report.py      the result, as text, as JSON, and as Markdown
"""
