"""Tasks that run in processes, kind ones and hostile ones. They meet the tests in files of a folder."""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import joex
from joex.runtime.process_channel import packed

app = joex.App()


def _tell(folder: Path, name: str, text: str = "") -> None:
    """Make a file, whole."""
    part = folder / f".{name}"
    part.write_text(text)
    part.rename(folder / name)


def _await(folder: Path, name: str) -> None:
    while not (folder / name).exists():
        time.sleep(0.01)


@app.task("where", process=True)
def where(ctx: joex.Context) -> dict[str, int]:
    return {
        "pid": os.getpid(),
        "keeper": os.getppid(),
        "thread": threading.get_native_id(),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
    }


@app.task("where.limited", process=True, max_tasks=2)
def where_limited(ctx: joex.Context) -> int:
    return os.getpid()


@app.task("where.by.default")
def where_by_default(ctx: joex.Context) -> int:
    return os.getpid()


@app.task("where.in.thread", process=False)
def where_in_thread(ctx: joex.Context) -> int:
    return os.getpid()


@app.task("where.async", process=True)
async def where_async(ctx: joex.Context) -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task("context", process=True)
def context(ctx: joex.Context, size: int) -> list[object]:
    ctx.log.info("line of %s", ctx.group)
    logging.getLogger("task").warning("said by a logger")
    ctx.progress(40, "far")
    ctx.message = "done so"
    given = [ctx.task, ctx.queue, ctx.group, ctx.priority, ctx.subject, ctx.submitter, ctx.attempt, ctx.is_last_attempt]
    return [*given, str(ctx.job_id), ctx.cancelled, "ü" * size]


@app.task("number", process=True, retries=0)
def message_that_is_none(ctx: joex.Context) -> None:
    ctx.message = 5  # type: ignore[assignment]


@app.task("raises", process=True, retries=1, retry_delay=0)
def raises(ctx: joex.Context, how: str) -> None:
    errors = {
        "error": ValueError("of its own"),
        "fail": joex.Fail("for good"),
        "cancel": joex.Cancel("no more"),
        "retry": joex.Retry("later", after="1h"),
        "exit": SystemExit(3),
    }
    if how.startswith("known "):
        error = errors[how.removeprefix("known ")]
        ctx.judged = ctx.judge(error).result()
        raise error
    raise errors[how]


@app.task("hold", process=True)
def hold(ctx: joex.Context, folder: Path, name: str) -> int:
    """Begin, and end when the test says so."""
    try:
        _tell(folder, f"{name}.begun", str(os.getpid()))
        _await(folder, f"{name}.go")
    finally:
        _tell(folder, f"{name}.left", str(ctx.cancelled))
    return ctx.attempt


@hold.on_cancel
def on_cancel(ctx: joex.Context, folder: Path, name: str) -> None:
    _tell(folder, f"{name}.cancelled", str(os.getpid()))


@app.task("hold.exclusive", process=True, exclusive=True)
def hold_exclusively(ctx: joex.Context, folder: Path, name: str) -> None:
    hold.function(ctx, folder, name)


@app.task("deaf", process=True, exclusive=True)
def deaf(ctx: joex.Context, folder: Path, name: str) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _tell(folder, f"{name}.begun", str(os.getpid()))
    _await(folder, f"{name}.go")


@app.task("deaf.shared", process=True)
def deaf_not_exclusively(ctx: joex.Context, folder: Path, name: str) -> None:
    deaf.function(ctx, folder, name)


@app.task("count", process=True, exclusive=True)
def count(ctx: joex.Context, folder: Path, name: str) -> None:
    """Show life, until the test says so."""
    _tell(folder, f"{name}.begun", str(os.getpid()))
    number = 0
    while not (folder / f"{name}.go").exists():
        number += 1
        _tell(folder, f"{name}.count", str(number))
        time.sleep(0.01)


@app.task("hold.async", process=True)
async def hold_async(ctx: joex.Context, folder: Path, name: str) -> None:
    try:
        _tell(folder, f"{name}.begun", str(os.getpid()))
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        _tell(folder, f"{name}.left", str(ctx.cancelled))


@app.task("book", process=True)
def book(ctx: joex.Context, order: int, folder: Path | None = None) -> None:
    """Its own write and the end of the job commit together."""
    with ctx.transaction({"order": order}, "booked") as connection:
        connection.execute("INSERT INTO booking VALUES (%s)", (order,))
        if folder is not None:
            _tell(folder, "in.transaction")
            _await(folder, "go")


@app.task("book.async", process=True)
async def book_async(ctx: joex.Context, order: int) -> None:
    async with ctx.transaction({"order": order}) as connection:
        await connection.execute("INSERT INTO booking VALUES ($1)", order)


@app.task("book.and.die", process=True)
def book_and_die(ctx: joex.Context, order: int) -> None:
    with ctx.transaction({"order": order}) as connection:
        connection.execute("INSERT INTO booking VALUES (%s)", (order,))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task("book.in.thread")
def book_in_thread(ctx: joex.Context) -> None:
    with ctx.transaction():
        pass


# The hostile ones.


@app.task("hang", process=True, timeout=0.3, retries=0)
def hang(ctx: joex.Context, folder: Path, how: str) -> None:
    _tell(folder, "children", str(os.getpid()))
    if how in ("deaf", "stop keeper"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif how == "stubborn":  # catches everything that is raised in it
        while True:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001, S112 - that is what it is for
                continue
    elif how == "in C":
        ctypes.PyDLL(None).sleep(600)
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    keeper = os.getppid()
    while how == "stop keeper":
        os.kill(keeper, signal.SIGSTOP)
    while True:
        pass


@app.task("die", process=True, retries=0)
def die(ctx: joex.Context, folder: Path, how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "abort":
        os.abort()
    elif how == "exit":
        os._exit(3)
    elif how == "exit cleanly":
        os._exit(0)
    elif how == "kill keeper":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


@app.task("leak", process=True, retries=0, memory="400Mi")
def leak(ctx: joex.Context, folder: Path, how: str) -> None:
    """Allocate a gigabyte."""
    [bytearray(2**24) for _ in range(64)]


@app.task("fork", process=True, retries=0, timeout="10m")
def fork(ctx: joex.Context, folder: Path, how: str) -> None:
    """Start a child, and a daemon that has lost its parent; they hold every descriptor open, and ignore SIGTERM."""
    deaf = "import os, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = deaf + "\n{}\nprint(os.getpid(), flush=True); time.sleep(900)"
    daemon = code.format("os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)")
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, close_fds=False)
        for program in (code.format(""), daemon)
    ]
    pids = [int(child.stdout.readline()) for child in children if child.stdout is not None]
    has_logged, tell = os.pipe()
    if (child := os.fork()) == 0:
        ctx.log.info("a child must not write into the channel of its parent")
        os.write(tell, b"!")
        time.sleep(900)
    os.read(has_logged, 1)
    _tell(folder, "children", " ".join(map(str, [*pids, child])))
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how:
        if how != "hang":
            os.kill(os.getppid(), signal.SIGSTOP if how == "stop keeper" else signal.SIGKILL)
        while True:
            time.sleep(60)


@app.task("family", process=True, retries=0, timeout="30s")
def family(ctx: joex.Context) -> list[int]:
    """The exit codes of children, as they are without Joex: one returns, exits, raises, and is told to end."""
    codes: list[int] = []
    for how in ("return", "exit", "raise", "wait"):
        if (child := os.fork()) == 0:
            if how == "exit":
                sys.exit(3)
            elif how == "raise":
                raise ValueError
            elif how == "wait":
                time.sleep(600)
            return codes
        if how == "wait":
            os.kill(child, signal.SIGTERM)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


@app.task("surroundings", process=True)
def surroundings(ctx: joex.Context, *, change: bool) -> list[object]:
    """What a run finds in its process, and the next one must find again."""
    umask = os.umask(0o777)
    if not change:
        os.umask(umask)
    handled = (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
    found = [os.getpid(), str(Path.cwd()), umask, dict(os.environ), [str(signal.getsignal(one)) for one in handled]]
    found += [socket.getdefaulttimeout(), signal.getitimer(signal.ITIMER_REAL)]
    found += [list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))]
    if change:
        os.chdir("/")
        os.environ["LEFT"] = "behind"
        for one in handled:
            signal.signal(one, signal.SIG_IGN)
        signal.alarm(3600)
        socket.setdefaulttimeout(0.001)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    return found


@app.task("fork.in.thread", process=False)
def fork_in_thread(ctx: joex.Context) -> int:
    """Fork the executor."""
    if (child := os.fork()) == 0:
        time.sleep(900)
        os._exit(0)
    return child


@app.task("thread", process=True)
def thread(ctx: joex.Context) -> int:
    threading.Thread(target=time.sleep, args=(900,), daemon=True).start()
    return os.getpid()


@app.task("stop.keeper", process=True)
def stop_keeper(ctx: joex.Context) -> int:
    os.kill(os.getppid(), signal.SIGSTOP)
    return os.getpid()


@app.task("print", process=True, retries=0)
def print_a_gigabyte(ctx: joex.Context, folder: Path, how: str) -> None:
    line = "x" * 1_000_000
    for _ in range(1000 if how == "print" else 0):
        print(line)
    for _ in range(3000 if how == "log" else 0):
        ctx.log.info(line[:10_000])


@app.task("report", process=True, retries=0)
def report(ctx: joex.Context, what: str, times: int) -> None:
    for number in range(times):
        if what == "log":
            ctx.log.info("line %d", number)
        else:
            ctx.progress(number % 100)


@app.task("spoil", process=True, retries=0, timeout="10m")
def spoil(ctx: joex.Context, folder: Path, how: str) -> None:
    if how == "close":
        os.closerange(3, 256)
        time.sleep(600)
    for number in range(3, 64):
        try:
            if how == "end":  # of the next run
                os.write(number, packed({"end": "returned", "result": '"forged"', "is_clean": True}))
            elif how == "junk":
                os.write(number, b"junk\x00\x00\x00\x02{}" * 400)  # all but the mark
            else:  # a mark, and a size that is none
                os.write(number, b"joex\xff\xff\xff\xff")
        except OSError:
            pass
