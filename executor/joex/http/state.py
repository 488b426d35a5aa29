"""Where the server and the middleware leave what they know of a request, in its state.

The operator's server imports this, and does without FastAPI.
"""

CALLER = "caller"
"""The `joex.http.caller.Caller`. Absent: the middleware does not know yet who calls, or the call is public."""
ASK_AGAIN = "ask_again"
"""A function that identifies the caller once more. Absent: the caller needs no look-up."""
UNREAD = "unread"
"""An ExitStack that ends when the answer to a call of a known caller has been read."""
PEER = "peer"
"""The `joex.http.peer.Peer` of the connection."""
