"""The web console: who waits, for what, and why.

Pages are HTML that this process renders, and work without JavaScript. They read the statistics of all queues from one
`joex.console.snapshot.Snapshots`, which all viewers share, and jobs one by one, through the client and the store.
"""
