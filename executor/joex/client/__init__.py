"""The client: submit, steer, read and wait for jobs, keyed jobs and workers, periodic tasks.

All of them speak to the database through one `joex.client.connections.Connections`, which each is given.
"""
