"""The race against the peers: other job queues on PostgreSQL, on the same server, with the same work."""
