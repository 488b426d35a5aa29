"""The operator: it adds and removes executors, on Kubernetes and, for ``joex up``, on one machine.

::

    simulate/                 joex simulate: the same decisions, in simulated time
    cluster/ | local/         joex operator, on Kubernetes | joex up, with processes of this machine
    control/                  the control loop: work queue, reconcilers, databases
    metrics/                  what /metrics exports
    decide/                   decisions, pure: an observed state -> actions, conditions, manifests
    api/                      the resources JoexPool and PeriodicTask

Each package imports only those below it. ``joex`` never imports this package.
"""
