"""The HTTP interface of an executor: a thin face over the client and the store.

It knows the executor only as an `ExecutorFace`, which the command line hands in.
"""

from joex.http.api import create_api
from joex.http.face import ExecutorFace, RunningJob
from joex.http.server import listen, serve

__all__ = ["ExecutorFace", "RunningJob", "create_api", "listen", "serve"]
