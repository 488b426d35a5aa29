"""Executors as processes of this machine: ``joex up``.

::

    command.py -> operator.py (one run) -> files.py  lock.py  output.py
                      |
                  fleet.py (a `joex_operator.control.fleet.Fleet`) -> replica.py (one process)  environment.py
"""
