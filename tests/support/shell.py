"""A shell that executes the commands of a page one after the other, as a reader does."""

import asyncio
import itertools
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from tests.support.pages import Command, is_as_shown
from tests.support.postgres import free_port
from tests.support.waiting import PATIENCE, eventually

_STAYS = re.compile(
    r"(\w+=\S+ )*(joex (console|dev|executor|up)|uvicorn|python \S+ (runserver|joex executor)|\S*worker\.sh)\b"
)
"""Commands that run until they are stopped: a reader gives each its own terminal."""
_IS_READY = re.compile(r"registered|the console is on|Loaded|Uvicorn running|Quit the server|^ok ")
_LONGEST = 5 * PATIENCE


class Shell:
    """bash, in its own folder and with its own environment.

    A command that fails fails the test, unless the page shows what it prints. ``left_out`` are programs whose work is
    done already. The shell replaces the ports 7878, 7880 and 8000 of the pages, because another test may use those.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *left_out: str) -> None:
        self._ports = {port: str(free_port()) for port in ("7878", "7880", "8000")}
        self._folder = folder
        self._environment = {
            **environment,
            "JOEX_HTTP_ADDRESS": f"127.0.0.1:{self._ports['7878']}",
            "JOEX_CONSOLE_HTTP_ADDRESS": f"127.0.0.1:{self._ports['7880']}",
        }
        self._left_out = left_out
        self._terminals = itertools.count(1)
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *("bash", "--norc"),
            cwd=self._folder,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=2**24,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the commands that the page has left running."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        await asyncio.to_thread(_end, started)
        await self._process.wait()  # and until all its children have closed their output

    async def follow(self, command: Command) -> None:
        """Run a command of a page, and compare its output with the page."""
        text, shown = command.text, command.shown
        for port, ours in self._ports.items():
            text, shown = text.replace(port, ours), shown and shown.replace(port, ours)
        if text.startswith(tuple(f"{program} " for program in self._left_out)):
            return
        if _STAYS.match(text) and not re.search(r"&\s*(#.*)?$", text):
            await self._leave_running(text, shown)
            return
        code, printed = await self.run(text)
        if shown is None:
            assert code == 0, f"$ {text}exit code {code}:\n{printed}"
        else:
            assert is_as_shown(printed, shown), f"$ {text}printed\n{printed}\nand the page shows\n{shown}"

    async def write(self, name: str, text: str) -> None:
        """Write a file in the current folder of the shell."""
        path = self._current / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def _current(self) -> Path:
        """The current folder. (A command in the background may print beside any other command.)"""
        return Path(psutil.Process(self._process.pid).cwd())

    async def run(self, text: str) -> tuple[int, str]:
        """Run a command, and return its exit code and its output."""
        end = uuid.uuid4().hex
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{ {text.rstrip()}\n}} </dev/null\nprintf '\\n%s %d\\n' {end} $?\n".encode())
        printed = ""
        async with asyncio.timeout(_LONGEST):
            while not printed.endswith("\n") or f"\n{end} " not in printed:
                line = await self._process.stdout.readline()
                assert line, f"$ {text}the shell has ended:\n{printed}"
                printed += line.decode()
        printed, _, code = printed.rpartition(f"\n{end} ")
        return int(code), printed

    async def _leave_running(self, text: str, shown: str | None) -> None:
        """Start a command that keeps running, and wait until it is ready and has printed the output of the page."""
        name = f".terminal-{next(self._terminals)}"
        output = self._current / name
        await self.run(f"{{ {text.rstrip()}\n}} >{name} 2>&1 &")

        def is_ready() -> bool:
            printed = output.read_text() if output.exists() else ""
            return bool(_IS_READY.search(printed)) and is_as_shown(printed, f"...\n{(shown or '...').strip()}\n...")

        try:
            await eventually(is_ready, why=f"{text.strip()} is ready")
        except AssertionError as error:
            raise AssertionError(f"$ {text}printed\n{output.read_text()}\nand the page shows\n{shown}") from error


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, PATIENCE)
    for process in alive:
        _quietly(process.kill)


def _quietly(order: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        order()
