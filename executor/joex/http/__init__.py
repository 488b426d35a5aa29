"""The HTTP interface of an executor: a thin layer over the client and the store.

It knows the executor only as a `joex.http.executor_protocol.ExecutorProtocol`, which the command line passes in.
"""
