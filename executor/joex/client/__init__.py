"""The client: submit, manage, read and await jobs, keyed jobs and workers, periodic tasks.

All of them use the database through one `joex.client.connections.Connections`.
"""
