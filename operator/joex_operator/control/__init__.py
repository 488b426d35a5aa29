"""The control loop: it reconciles pools and periodic tasks, with any fleet (`fleet.Fleet`).

::

    controller.py ─▶ work_queue.py ─▶ pool_reconciler.py  periodic_reconciler.py ─▶ fleet.Fleet, database.py
                                             └─▶ pool_observer.py ─▶ sharers.py ─────────▲
                                                             periodic_scheduler.py  queue_metrics.py ─▲
"""
