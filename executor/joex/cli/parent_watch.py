"""Processes of this command that drain when their parent has ended, however it has ended.

The parent holds one end of a pipe, which the kernel closes even after kill -9; the child waits at the other, and sends
itself one SIGTERM then. (The parent-death signal of Linux would come once for each *thread* of the parent that ends,
and to an executor a second signal means to leave at once.)

``python -m joex.cli.parent_watch FD ...`` is ``joex ...`` with the child's end of the pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


class ParentWatch:
    """The pipe, for any number of children: each is started with `command`, and `end` as an open file descriptor."""

    def __init__(self) -> None:
        self.end, self._own_end = os.pipe()

    def command(self, *arguments: str) -> list[str]:
        """``joex`` with these arguments, on the Python that this is."""
        return [sys.executable, "-m", "joex.cli.parent_watch", str(self.end), *arguments]

    def close(self) -> None:
        """Let go of the children that there still are."""
        os.close(self._own_end)
        os.close(self.end)


def _drain_after(end: int) -> None:
    os.read(end, 1)  # nobody ever writes
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the command line as a child."""
    from joex.cli import main as joex  # noqa: PLC0415 - as the command itself does

    end = int(sys.argv.pop(1))
    os.set_inheritable(end, False)  # noqa: FBT003 - as the function has it
    threading.Thread(target=_drain_after, args=(end,), daemon=True).start()
    joex()


if __name__ == "__main__":
    main()
