"""``joex simulate``: what a pool and a policy would make of a load, before anybody pays for it.

Nothing is decided here: jobs are taken by `joex.core.ring`, which is held to `joex.core.fairness`; what becomes of a
run says `joex.core.outcome`, and how many executors there are `joex_operator.reconcile`. Here is only the time that
passes in between.
"""
