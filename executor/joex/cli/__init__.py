"""The command ``joex``: a thin layer over the client, the store and the runtime.

Each command is a function in a module of this package; `commands` has their table. A mistake of the user is one line on
stderr; the exit code is 0 (done), 1 (failed: not found, database unavailable), 2 (wrong usage or configuration), 130
(interrupted) or 143 (ended by SIGTERM before it had started anything). A bug in Joex keeps its traceback.
"""

from __future__ import annotations

import atexit
import gc
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from joex.cli.sigterm import end_at_sigterm

if TYPE_CHECKING:
    from typer import TyperException

OK = 0
FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130

_COLLECT_AFTER = 50_000  # objects created and not yet freed: some 10 MB
_THREADS_END_WITHIN = 3.0  # seconds
_CLI = "cli"
_EXTRAS = {
    "console": "console",
    "dev": "reload",
    "executor": "executor",
    "operator": "operator",
    "simulate": _CLI,
    "up": "executor",
}
"""The extras of commands; the other commands are in the extra `cli`."""


def main() -> None:
    """Run the command ``joex``; does not return."""
    run("joex", "joex.cli.app:app")


def run(name: str, app: str) -> None:
    """Run a command line with these exit codes; does not return.

    Args:
        name: the name of the command.
        app: the typer app, as module:attribute; imported once SIGTERM is handled.
    """
    end_at_sigterm()
    # What a command imports is fifty thousand objects or more, in use to its end. By default Python searches them for
    # cycles again and again while it imports them, and at its end: a third of the CPU time of a short command.
    gc.set_threshold(_COLLECT_AFTER)
    code = FAILED
    try:
        code = call(name, sys.argv[1:], app)
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else code
        raise
    finally:
        gc.freeze()
        _end_without_what_is_left(code)
    sys.exit(code)


def _end_without_what_is_left(code: int) -> None:
    """Exit in a few seconds, even if tasks have left threads or asyncio tasks: Python would wait for their end."""
    threads = sys.modules["threading"].enumerate() if "threading" in sys.modules else []
    tasks = sys.modules["joex.exits"].left_tasks if "joex.exits" in sys.modules else []
    if sum(not one.daemon for one in threads) <= 1 and not tasks:  # the first one is this one
        return
    from functools import partial  # noqa: PLC0415 - few commands have threads
    from threading import Timer  # noqa: PLC0415

    from joex.exits import exit_at_once  # noqa: PLC0415

    kind = "asyncio tasks" if tasks else "threads"
    end = partial(exit_at_once, code, f"{kind} that tasks have left still run; exiting without their end")
    timer = Timer(_THREADS_END_WITHIN, end)
    timer.daemon = True
    with suppress(RuntimeError):  # there is no room for another thread
        timer.start()
    atexit.register(end if tasks else timer.cancel)  # Python calls it once the threads have ended


def call(name: str, arguments: Sequence[str], app: str = "joex.cli.app:app") -> int:
    """Run a command line within a program; returns its exit code. The arguments are as for `run`."""
    try:
        code = _run(name, arguments, app)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        code = FAILED
    return code


def _run(name: str, arguments: Sequence[str], app: str) -> int:
    # Here and not above, so that importing this package costs nothing.
    from pkgutil import resolve_name  # noqa: PLC0415

    from joex.errors import ConfigError, JoexError  # noqa: PLC0415
    from joex.extras import needs  # noqa: PLC0415

    if list(arguments) == ["--version"]:  # (needs no extra, and loads none)
        return _print_version()
    command = next((word for word in arguments if not word.startswith("-")), None)
    part = f'the command "{command}" needs' if command else "commands need"
    try:
        with needs(_EXTRAS.get(command or "", _CLI), part):
            from typer import TyperException  # noqa: PLC0415

            run_app = resolve_name(app)
        try:
            with needs(_EXTRAS[command], part) if command in _EXTRAS else nullcontext():
                code = run_app(args=list(arguments), prog_name=name, standalone_mode=False)
        except TyperException as error:
            return _complain(_usage(error), error.exit_code)
    except ConfigError as error:
        return _complain(str(error), WRONG_USE)
    except JoexError as error:
        return _complain(str(error), FAILED)
    return code if isinstance(code, int) else OK


def _print_version() -> int:
    from joex import __version__  # noqa: PLC0415 - as above

    sys.stdout.write(f"joex {__version__}\n")
    return OK


def _complain(message: str, code: int) -> int:
    """Print in one line what is wrong."""
    from joex.cli.output import note  # noqa: PLC0415 - as above

    note(" ".join(message.split()))
    return code


def _usage(error: TyperException) -> str:
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    message = re.sub(r"(postgres(?:ql)?)://.*@", r"\1://...@", message, flags=re.DOTALL)  # a URL in the wrong place
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message} (see '{context.command_path} --help')"


def _forget_output() -> None:
    """Discard buffered output: the reader of stdout has gone (``joex jobs | head``), so a flush at exit would fail."""
    import os  # noqa: PLC0415

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
