"""Look-ups of names: one that is never answered holds up nobody but its owner."""

import asyncio
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from joex.store import name_lookups
from joex.store.name_lookups import OWNER, NameLookups, resolve
from tests.support.waiting import PATIENCE


class Resolver:
    """The system's, which answers for a name that begins with "held" when the test says so."""

    def __init__(self) -> None:
        self.asked: queue.Queue[str] = queue.Queue()
        self.answers: dict[str, threading.Event] = {}
        self.is_over = False

    def resolve(self, name: str) -> list[str]:
        answers = self.answers.setdefault(name, threading.Event())
        self.asked.put(name)
        if name.startswith("held") and not self.is_over:
            answers.wait()
        if name == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [f"address of {name}"]

    def next(self) -> str:
        return self.asked.get(timeout=PATIENCE)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(name_lookups, "resolve", resolver.resolve)
    yield resolver
    resolver.is_over = True
    while looking_up := [one for one in threading.enumerate() if one.name == "joex look-up"]:
        for answers in list(resolver.answers.values()):
            answers.set()
        looking_up[0].join(0.01)


@pytest.fixture
def ask(resolver: Resolver) -> Callable[[str, str], "asyncio.Task[list[str]]"]:
    """Looks a name up for an owner."""
    lookups = NameLookups()

    async def asked(owner: str, name: str) -> list[str]:
        OWNER.set(owner)
        async with asyncio.timeout(PATIENCE):
            return await lookups.addresses(name)

    return lambda owner, name: asyncio.create_task(asked(owner, name))


async def test_names_that_are_never_answered_hold_up_their_owner_alone(resolver, ask):
    held = [ask("a", f"held {number}") for number in range(5)]
    await asyncio.sleep(0)
    assert {resolver.next() for _ in range(4)} < {f"held {number}" for number in range(5)}
    own = ask("a", "own")
    assert await ask("b", "other") == ["address of other"]
    assert not any(one.done() for one in [*held, own])
    assert resolver.next() == "other"
    next(iter(resolver.answers.values())).set()
    assert await own == ["address of own"]


async def test_the_next_thread_is_for_an_owner_with_fewest_lookups(resolver, ask, monkeypatch):
    monkeypatch.setattr(name_lookups, "_MOST", 2)
    for name in ("held 1", "held 2", "held 3", "held 4"):
        ask("a", name)
    first = [await asyncio.to_thread(resolver.next) for _ in range(2)]
    ask("b", "held of b")
    await asyncio.sleep(0)
    resolver.answers[first[0]].set()
    assert await asyncio.to_thread(resolver.next) == "held of b"


async def test_a_name_that_was_slow_comes_after_the_others_of_its_owner(resolver, ask, monkeypatch):
    monkeypatch.setattr(name_lookups, "_SLOW", -1.0)
    await ask("a", "slow")
    monkeypatch.setattr(name_lookups, "_MOST", 1)
    ask("a", "held")
    assert [await asyncio.to_thread(resolver.next) for _ in range(2)] == ["slow", "held"]
    both = [ask("a", "slow"), ask("a", "new")]
    await asyncio.sleep(0)
    monkeypatch.setattr(name_lookups, "_SLOW", PATIENCE)
    resolver.answers["held"].set()
    await asyncio.gather(*both)
    assert [resolver.next() for _ in range(2)] == ["new", "slow"]


async def test_names_that_were_slow_leave_a_turn_to_the_others_of_their_owner(resolver, ask, monkeypatch):
    slow = [f"held {number}" for number in range(4)]
    first = [ask("a", name) for name in slow]
    await asyncio.sleep(0)
    assert {resolver.next() for _ in slow} == set(slow)
    monkeypatch.setattr(name_lookups, "_SLOW", -1.0)
    for answers in resolver.answers.values():
        answers.set()
    await asyncio.gather(*first)
    resolver.answers.clear()
    again = [ask("a", name) for name in slow]
    await asyncio.sleep(0)
    assert {resolver.next() for _ in range(3)} < set(slow)
    assert await ask("a", "new") == ["address of new"]
    assert not any(one.done() for one in again)
    assert resolver.next() == "new"
    for _ in slow:
        for answers in list(resolver.answers.values()):
            answers.set()
        await asyncio.wait(again, return_when=asyncio.FIRST_COMPLETED)
    assert resolver.next() in slow


async def test_the_slow_names_of_many_owners_leave_turns_to_the_names_of_others(resolver, ask, monkeypatch):
    def ask_all():
        return [ask(f"owner {owner}", f"held {owner} {number}") for owner in range(40) for number in range(3)]

    async def answer(some):
        while not all(one.done() for one in some):
            for answers in list(resolver.answers.values()):
                answers.set()
            await asyncio.wait(some, timeout=0.01)
        resolver.answers.clear()

    monkeypatch.setattr(name_lookups, "_SLOW", -1.0)
    await answer(ask_all())
    again = ask_all()
    await asyncio.sleep(0)
    assert await ask("another", "new") == ["address of new"]
    assert not any(one.done() for one in again)
    await answer(again)


async def test_the_new_names_of_many_owners_leave_turns_to_names_that_were_quick(resolver, ask):
    await ask("another", "quick")
    new = [ask(f"owner {owner}", f"held {owner} {number}") for owner in range(40) for number in range(3)]
    await asyncio.sleep(0)
    assert await ask("another", "quick") == ["address of quick"]
    assert not any(one.done() for one in new)


async def test_who_asks_for_the_same_name_waits_for_the_same_lookup(resolver, ask):
    first, gone, second = ask("a", "held"), ask("a", "held"), ask("a", "held")
    assert await asyncio.to_thread(resolver.next) == "held"
    gone.cancel()
    await asyncio.sleep(0)
    resolver.answers["held"].set()
    assert [await first, await second] == [["address of held"]] * 2
    assert resolver.asked.empty()


async def test_a_name_that_is_not_known_is_told_and_asked_for_again(resolver, ask):
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="unknown"):
            await ask("a", "unknown")
    assert await ask("a", "known") == ["address of known"]


@pytest.mark.parametrize("name", ["x" * 64 + ".test", "a..b", "a\0b"])
def test_what_can_not_be_a_name_is_an_error_of_the_system(name):
    with pytest.raises(OSError, match=r"[Nn]ame"):
        resolve(name)


def test_an_address_is_its_own():
    assert resolve("127.0.0.1") == ["127.0.0.1"]


_FORK = f"""
import asyncio, os, signal, threading
from joex.store import name_lookups

async def ask():
    asyncio.create_task(name_lookups.LOOKUPS.addresses("name"))
    await asyncio.sleep(0)

name_lookups.resolve = lambda _: threading.Event().wait()
asyncio.new_event_loop().run_until_complete(ask())
with name_lookups.LOOKUPS._lock:
    child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm({PATIENCE:.0f})
name_lookups.resolve = lambda name: [f"address of {{name}}"]
print(asyncio.run(name_lookups.LOOKUPS.addresses("name")), flush=True)
os._exit(0)
"""


def test_a_forked_process_looks_names_up_though_its_parent_was_just_looking_one_up():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['address of name']\n", "")
