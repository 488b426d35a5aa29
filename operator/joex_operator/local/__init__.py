"""Executors as processes of this machine: ``joex up``.

::

    command.py -> session.py (one run) -> files.py  lock.py  output.py
                      |
                  processes.py (the `fleet.Fleet`) -> slot.py (one process)  environment.py (pure)
"""
