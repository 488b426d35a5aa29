"""One driver per system: the same commands, answered in JSON lines, so that the race treats all of them alike.

The drivers of the Python peers run in their own environment; they and `protocol` import nothing of Joex.
"""
