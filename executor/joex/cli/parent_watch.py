"""Child processes of this command that drain when their parent has exited, for whatever reason.

The parent holds one end of a pipe, which the kernel closes even after kill -9. The child waits at the other end, and
then sends itself one SIGTERM. (Linux sends its parent-death signal once for each *thread* of the parent that ends, but
a second signal makes an executor give its jobs back at once.)

``python -m joex.cli.parent_watch FD ...`` is ``joex ...`` with the child's end of the pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


class ParentWatch:
    """The pipe, for any number of children; start each with `command`, and `end` as an open file descriptor."""

    def __init__(self) -> None:
        self.end, self._own_end = os.pipe()

    def command(self, *arguments: str) -> list[str]:
        """``joex`` with these arguments, on the Python of this process."""
        return [sys.executable, "-m", "joex.cli.parent_watch", str(self.end), *arguments]

    def close(self) -> None:
        """Close the pipe: children that still run drain."""
        os.close(self._own_end)
        os.close(self.end)


def _drain_after(end: int) -> None:
    os.read(end, 1)  # the parent never writes
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
