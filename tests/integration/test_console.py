"""The console: who may call it, what it answers, and that its numbers are those of the store."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from html import unescape
from ipaddress import ip_network
from itertools import count
from pkgutil import resolve_name
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
import yaml
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client.parser import text_string_to_metric_families

from joex import Client
from joex.cli import console as console_command
from joex.client.periodic import check_timer
from joex.console import groups, queues, sign_in, simulate
from joex.console.acts import ACTS, MOST_RUNNING
from joex.console.app import ROUTERS, create_console
from joex.console.pace import LONGEST, WINDOW, Pace
from joex.console.settings import ConsoleSettings
from joex.console.sign_in import Access
from joex.console.snapshot import CHANGE_WITHIN, OVERDUE, SHARE_AFTER_ACTS, SHORTEST_PAUSE, Snapshot, Snapshots
from joex.console.standings import Group, Queue, Standing, queues_of
from joex.console.views import MOST_SHOWN
from joex.core.access import EVERYTHING, Bounds, Scope
from joex.core.job import NewJob
from joex.core.trace import TracedJob
from joex.errors import ConfigError, DatabaseUnavailable, InvalidJob
from joex.http import connection_shares, route, server, slow_callers
from joex.http.caller import OWNER, Caller
from joex.http.listening import listen
from joex.http.server import serve
from joex.http.tokens import KEPT_FOR, Tokens
from joex.http.turns import Turns
from joex.store import audit, jobs, runs, stats, tokens
from joex.store.database import connect
from joex.store.errors import Locked
from joex.store.listing import Filter, list_jobs
from joex.store.search import Search, count_jobs, search_jobs
from joex.store.value_beginnings import Beginning, beginnings
from tests.support.asgi import transport
from tests.support.locks import WAITING
from tests.support.proxy import Proxy
from tests.support.shop import executor, open_the_shop, size_pool, take
from tests.support.slow_reader import slowly_connected, unread_answers
from tests.support.waiting import PATIENCE, eventually

OWNERS = "an-owners-token-of-32-characters"
HERE = {"Origin": "http://localhost"}
"""The header of a browser that sends a form of the console."""
Open = Callable[..., httpx.AsyncClient]


@pytest.fixture(autouse=True)
def wait_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user sees what it has changed, also where the machine that runs these tests is slow."""
    monkeypatch.setattr("joex.console.snapshot.CHANGE_WITHIN", PATIENCE)


@pytest.fixture
async def browse(client: Client) -> AsyncIterator[Open]:
    """Makes clients of a console: from an address, with some access."""
    made: list[httpx.AsyncClient] = []

    def browse(
        address: str = "127.0.0.1", host: str = "localhost", app: Any = None, uid: int = 0, **access: Any
    ) -> httpx.AsyncClient:
        console = transport(app or create_console(client, Access(**access)), address, uid=uid)
        made.append(httpx.AsyncClient(transport=console, base_url=f"http://{host}"))
        return made[-1]

    yield browse
    for one in made:
        await one.aclose()


@pytest.fixture
async def token(connection: asyncpg.Connection) -> Callable[..., Any]:
    """Makes tokens."""

    async def make(*scopes: Scope, **bounds: Any) -> str:
        made = await tokens.create(connection, f"token-{len(await tokens.list_tokens(connection))}", scopes, **bounds)
        assert made is not None
        return made

    return make


async def test_the_name_of_a_user_in_the_header_of_a_proxy_is_utf_8(
    browse: Open, connection: asyncpg.Connection
) -> None:
    proxy = browse("10.1.2.3", proxies=[ip_network("10.1.0.0/16")], operators=frozenset({"jörg"}))
    pause = {"queue": "default", "group": "acme", "paused": "yes"}
    utf_8, latin_1 = (
        httpx.Headers(HERE | {"X-Forwarded-User": "jörg"}, encoding=encoding) for encoding in ("utf-8", "latin-1")
    )
    assert (await proxy.post("/group", headers=utf_8, data=pause)).status_code == 303
    assert [act.caller for act in await audit.list_acts(connection, None, 10)] == ["jörg"]
    answer = await proxy.get("/", headers=latin_1)
    assert (answer.status_code, "X-Forwarded-User: expected a name in UTF-8." in answer.text) == (403, True)


async def test_a_browser_on_this_machine_needs_no_sign_in_and_all_others_do(browse: Open) -> None:
    assert (await browse().get("/")).status_code == 200
    for other in (
        browse("10.0.0.9"),
        browse(uid=65533),
        browse(host="rebound.example"),
        browse(token=OWNERS),
        browse(proxies=[ip_network("10.1.0.0/16")]),
    ):
        answer = await other.get("/jobs", params={"state": "failed"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?to=%2Fjobs%3Fstate%3Dfailed")
        assert (await other.post("/group", headers={"Sec-Fetch-Site": "same-origin"})).status_code == 401
    assert (await browse("10.0.0.9").get("/healthz")).text == "ok\n"


async def test_a_sign_in_leads_to_no_very_long_path_and_its_page_has_none(browse: Open) -> None:
    """A link brings up to 60,000 characters, of anybody."""
    far, long = browse("10.0.0.9"), f"/jobs?subject={'x' * 4000}"
    assert (await far.get(long)).headers["location"] == "/sign-in?to=%2F"
    assert "xxx" not in (await far.get("/sign-in", params={"to": long})).text
    assert "/jobs?state=failed" in (await far.get("/sign-in", params={"to": "/jobs?state=failed"})).text


async def test_a_call_with_two_tokens_is_refused(browse: Open) -> None:
    """A proxy in front may have judged the other one."""
    bearer = ("Authorization", f"Bearer {OWNERS}")
    far = browse("10.0.0.9", token=OWNERS)
    assert [(await far.get("/", headers=[bearer] * number)).status_code for number in (1, 2)] == [200, 403]


async def test_a_token_becomes_a_cookie_and_ends_with_its_revocation(
    browse: Open, token: Callable[..., Any], connection: asyncpg.Connection
) -> None:
    far = browse("10.0.0.9")
    known = await token(Scope.VIEW)
    for wrong in ("joex_" + "a" * 43, "", "é", await token(Scope.SUBMIT)):
        answer = await far.post("/sign-in", data={"token": wrong}, headers=HERE)
        assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None)
    answer = await far.post("/sign-in", data={"token": known, "to": "//evil.example/"}, headers=HERE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["set-cookie"] == f"__Host-joex-console={known}; Path=/; HttpOnly; Secure; SameSite=Strict"
    cookie = {"Cookie": f"__Host-joex-console={known}"}
    assert (await far.get("/", headers=cookie)).status_code == 200
    await tokens.revoke(connection, "token-0")
    assert (await browse("10.0.0.9").get("/", headers=cookie)).status_code == 303
    answer = await far.post("/sign-out", headers=HERE)
    assert answer.headers["set-cookie"].startswith("__Host-joex-console=; Max-Age=0")
    assert (await browse(token=OWNERS).post("/sign-in", data={"token": OWNERS}, headers=HERE)).status_code == 303


async def test_cookies_of_other_programs_on_the_host_do_not_hide_the_token(
    browse: Open, token: Callable[..., Any]
) -> None:
    own = f"__Host-joex-console={await token(Scope.VIEW)}"
    other = "__Host-joex-console=joex_of-a-console-at-the-root-of-this-host"
    for cookies in (f'a={{"x":1}}; {own}', f"x,y=1; {own}", f"a=b c; {own}; d", f"{own}; {other}"):
        assert (await browse("10.0.0.9").get("/", headers={"Cookie": cookies})).status_code == 200, cookies
    assert (await browse("10.0.0.9").get("/", headers={"Cookie": f"{other}; {own}"})).status_code == 303


@pytest.mark.parametrize("host", ["console.example.org", "localhost"], ids=["its own", "a proxy rewrites it"])
async def test_a_sibling_host_puts_no_cookie_before_that_of_a_user(
    browse: Open, token: Callable[..., Any], host: str
) -> None:
    """Nor signs a user in with its own: no browser takes a cookie named __Host- from another host."""
    known = await token(Scope.VIEW)
    far, from_here = browse("10.0.0.9", host=host), {"Sec-Fetch-Site": "same-origin"}
    answer = await far.post("/sign-in", data={"token": known}, headers=from_here)
    [own, *flags] = answer.headers["set-cookie"].split("; ")
    assert (own, flags) == (f"__Host-joex-console={known}", ["Path=/", "HttpOnly", "Secure", "SameSite=Strict"])
    for siblings in ("joex-console=x", f"joex-console={await token(Scope.VIEW)}"):
        answer = await browse("10.0.0.9", host=host).get("/", headers={"Cookie": siblings})
        assert answer.status_code == 303
        cookies = {"Cookie": f"{siblings}; {own}"}
        assert (await browse("10.0.0.9", host=host).get("/", headers=cookies)).status_code == 200
    answer = await far.post("/sign-out", headers=from_here)
    assert answer.headers["set-cookie"].startswith("__Host-joex-console=; Max-Age=0; Path=/; ")


async def test_a_header_names_a_user_only_where_a_proxy_sends_it(browse: Open, connection: asyncpg.Connection) -> None:
    access: dict[str, Any] = {"proxies": [ip_network("10.1.0.0/16")], "operators": frozenset({"ann"})}
    ann, bob = {"X-Forwarded-User": "ann"}, {"X-Forwarded-User": "bob"}
    pause = {"queue": "default", "group": "acme", "paused": "yes"}
    for address in ("127.0.0.1", "10.2.0.1", "::1"):
        answer = await browse(address, **access).get("/", headers=ann)
        assert (answer.status_code, "not one of the proxies" in answer.text) == (403, True)
    assert (await browse().get("/", headers=ann)).status_code == 403  # without proxies too
    proxy = browse("::ffff:10.1.2.3", **access)
    assert (await proxy.get("/", headers=bob)).status_code == 200
    assert (await proxy.get("/", headers=[("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")])).status_code == 403
    answer = await proxy.post("/group", headers=HERE | bob, data=pause)
    assert (answer.status_code, "scope operate; the user 'bob' has view" in unescape(answer.text)) == (403, True)
    other_ann = httpx.Headers(HERE | {"X-Forwarded-User": "ann\xa0"}, encoding="utf-8")
    assert (await proxy.post("/group", headers=other_ann, data=pause)).status_code == 403
    assert (await proxy.get("/", headers={"X-Forwarded-User": "owner"})).status_code == 403
    assert await stats.group_settings(connection) == []
    assert (await proxy.post("/group", headers=HERE | ann, data=pause)).status_code == 303
    [act] = await audit.list_acts(connection, None, 10)
    assert (act.act, act.caller, act.group) == ("set_group", "ann", "acme")


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    """The address of a server of a console."""
    listener = listen("127.0.0.1:0")
    serving = asyncio.create_task(serve(app, listener))
    try:
        yield listener.getsockname()
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_forms_of_strangers_that_do_not_end_keep_no_connection_from_others_and_fill_no_log(
    client: Client, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(slow_callers, "BODY_WITHIN", 3600.0)
    calls: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async with served(create_console(client, Access(token=OWNERS))) as address, asyncio.timeout(PATIENCE):

        async def begin_form(path: str, headers: str) -> asyncio.StreamReader:
            calls.append(await asyncio.open_connection(*address))
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: same-origin\r\nExpect: 100-continue\r\n"
            calls[-1][1].write(f"{head}{headers}Content-Length: 2\r\n\r\n".encode())
            assert b" 100 " in await calls[-1][0].readuntil(b"\r\n\r\n")
            return calls[-1][0]

        known = await begin_form("/queue", f"Cookie: __Host-joex-console={OWNERS}\r\n")
        strangers = [await begin_form("/sign-in", "") for _ in range(5)]
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as browser:
            assert (await browser.get("/healthz")).status_code == 200
        assert not any([await reader.read() for reader in strangers[:3]])
        calls[0][1].write(b"a=")
        assert b" 400 " in await known.readline()
        for _, writer in calls:
            writer.close()
    assert "Traceback" not in caplog.text


async def test_strangers_whose_cookies_are_being_looked_up_keep_no_probe_waiting(
    client: Client, monkeypatch: Any
) -> None:
    never, asked = asyncio.Event(), asyncio.Queue[None]()

    async def find(_: Tokens, __: str) -> None:
        asked.put_nowait(None)
        await never.wait()

    monkeypatch.setattr(Tokens, "find", find)
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    async with served(create_console(client, Access(token=OWNERS))) as address, asyncio.timeout(PATIENCE):
        strangers = [await asyncio.open_connection(*address) for _ in range(3)]
        for _, writer in strangers:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nCookie: __Host-joex-console=any\r\n\r\n")
            await asked.get()
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as browser:
            assert (await browser.get("/healthz")).status_code == 200
        for _, writer in strangers:
            writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:81"},
    ],
    ids=str,
)
async def test_another_site_changes_nothing(
    browse: Open, connection: asyncpg.Connection, headers: dict[str, str]
) -> None:
    given = {"queue": "default", "group": "acme", "paused": "yes"}
    answer = await browse().post("/group", data=given, headers=headers)
    assert (answer.status_code, "Another site" in answer.text) == (403, True)
    assert (await browse(token=OWNERS).post("/sign-in", data={"token": OWNERS}, headers=headers)).status_code == 403
    assert await stats.group_settings(connection) == []


def paths(method: str, job_id: UUID) -> list[str]:
    """The paths of all routes of the console, but those of sign-in."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    found = [route.path for route in routes if method in (route.methods or ())]
    own = [path for path in found if not path.startswith(("/sign-", "/healthz"))]
    return [re.sub(r"{act}", "enable", path.replace("{job_id}", str(job_id))) for path in own]


async def test_no_route_serves_a_caller_who_has_not_signed_in_and_none_that_changes_a_viewer(
    browse: Open, client: Client, token: Callable[..., Any], connection: asyncpg.Connection
) -> None:
    job_id = await client.submit("a")
    app = create_console(client)
    far, cookie = (
        browse("10.0.0.9", app=app),
        {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.PAYLOADS)}"},
    )
    reads, writes = paths("GET", job_id), paths("POST", job_id)
    assert (len(reads), len(writes)) >= (8, 4)
    for path in reads:
        assert (await far.get(path)).status_code == 303, path
    for path in writes:
        assert (await far.post(path, headers=HERE)).status_code == 401, path
        answer = await far.post(path, headers=HERE | cookie)
        assert (answer.status_code, "scope operate" in answer.text) == (403, True), path
    assert [act.act for act in await audit.list_acts(connection, None, 10)] == ["create_token"]


async def test_prometheus_reads_the_lengths_of_the_queues_with_a_token(
    browse: Open, client: Client, token: Callable[..., Any], connection: asyncpg.Connection
) -> None:
    await open_the_shop(client, connection)
    far = browse("10.0.0.9")
    bearer = {"Authorization": f"Bearer {await token(Scope.VIEW)}"}
    assert (await far.get("/metrics")).status_code == 303
    assert (await far.get("/metrics", headers={"Authorization": "Bearer wrong"})).status_code == 303
    answer = await far.get("/metrics", headers=bearer)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family.samples for family in text_string_to_metric_families(answer.text)}
    jobs = {(one.labels["queue"], one.labels["state"]): one.value for one in families["joex_queue_jobs"]}
    groups = {one.labels["queue"]: one.value for one in families["joex_queue_groups"]}
    wanted = await stats.queue_stats(connection)
    assert jobs == {
        (one.queue, state): getattr(one, state)
        for one in wanted
        for state in ("waiting", "deferred", "scheduled", "running", "stuck")
    }
    assert groups == {one.queue: one.groups for one in wanted}
    oldest = {one.labels["queue"] for one in families["joex_queue_oldest_runnable_seconds"]}
    assert oldest == {one.queue for one in wanted if one.oldest_runnable_seconds is not None}
    [queue, *_] = groups
    bound = {"Authorization": f"Bearer {await token(Scope.VIEW, queues=[queue])}"}
    answer = await far.get("/metrics", headers=bound)
    assert set(re.findall(r'queue="([^"]*)"', answer.text)) == {queue}
    pause = {"queue": queue, "group": "acme", "paused": "yes"}
    assert (await far.post("/group", data=pause, headers=bearer)).status_code == 403


async def test_each_answer_forbids_code_that_is_not_a_file_of_the_console(browse: Open, client: Client) -> None:
    console = browse()
    await client.submit("a")
    for path in ("/", "/fairness", "/jobs", "/sign-in", "/nothing", "/static/console.css", "/static/nothing"):
        answer = await console.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|javascript:|https?://(?!www.w3.org)", answer.text), (
            path
        )
    assert (await console.get("/")).headers["cache-control"] == "no-store"


async def test_a_browser_that_has_the_page_gets_304_until_something_has_changed(browse: Open, client: Client) -> None:
    console = browse()
    first = await console.get("/fairness")
    known = {"If-None-Match": first.headers["etag"]}
    assert (await console.get("/fairness", headers=known)).status_code == 304
    form = {"queue": "default", "group": "acme", "paused": "yes"}
    assert (await console.post("/group", data=form, headers=HERE)).status_code == 303
    changed = await console.get("/fairness", headers=known)
    assert (changed.status_code, "acme" in changed.text) == (200, True)
    job = await console.get(f"/jobs/{await client.submit('a')}")
    assert job.status_code == 200


async def test_all_viewers_share_one_snapshot_and_a_costly_one_is_read_seldom(client: Client) -> None:
    now = 1000.0
    cost = 0.0

    def clock() -> float:
        nonlocal now
        now += cost
        return now

    snapshots = Snapshots(client, clock)

    async def reaches(number: int) -> None:
        await eventually(lambda: _has(snapshots, number), why=f"snapshot {number} is read")

    assert {one.number for one in await asyncio.gather(*(snapshots.get() for _ in range(20)))} == {1}
    assert (await snapshots.get()).number == 1
    now += SHORTEST_PAUSE
    await reaches(2)
    snapshots.expire("ann")
    cost = 3.0  # at each look at the clock: the reading takes three seconds
    assert (await snapshots.get("ann")).number == 3
    cost = 0.0
    now += 250.0
    assert (await snapshots.get()).number == 3
    now += 50.0
    await reaches(4)


async def test_one_user_who_acts_all_the_time_neither_makes_it_read_all_the_time_nor_others_wait(
    client: Client, monkeypatch: Any
) -> None:
    takes, read = 0.1, stats.every_group

    async def read_slowly(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(takes)
        return await read(*given, **named)

    monkeypatch.setattr(stats, "every_group", read_slowly)
    snapshots, loop = Snapshots(client), asyncio.get_running_loop()
    began = loop.time()
    for number in range(1, 4):
        assert (await snapshots.get("ann")).number == number  # which has what ann has changed
        snapshots.expire("ann")
        assert (await snapshots.get("bob")).number == number
    assert loop.time() - began >= 2 * takes / SHARE_AFTER_ACTS


@pytest.mark.parametrize("slow", ["joex.store.stats.every_group", "joex.console.snapshot.queues_of"])
async def test_a_user_who_has_acted_sees_an_older_snapshot_that_says_so_rather_than_wait_for_long(
    browse: Open, client: Client, monkeypatch: Any, slow: str
) -> None:
    """The reading takes long, or what the console then makes of it does."""
    monkeypatch.setattr("joex.console.snapshot.CHANGE_WITHIN", CHANGE_WITHIN)
    now, takes, quick = 1000.0, 0.9, resolve_name(slow)

    def slowly(*given: Any, **named: Any) -> Any:
        nonlocal now
        now += takes
        return quick(*given, **named)

    monkeypatch.setattr(slow, slowly)
    app = create_console(client)
    app.state.console.snapshots._clock = lambda: now
    console = browse(app=app)
    await client.submit("a", group="acme")

    async def set_paused(paused: str) -> tuple[bool, bool, bool]:
        form = {"queue": "default", "group": "acme", "paused": paused}
        leads_to = (await console.post("/group", data=form, headers=HERE)).headers["location"]
        [settings] = await client.groups.settings()
        return settings.paused, *await page(leads_to)

    async def page(path: str) -> tuple[bool, bool]:
        async with asyncio.timeout(PATIENCE):
            text = _main((await console.get(path)).text)
        return "Resume this group" in text, "Your last change does not show yet. These" in text

    path = "/group?queue=default&group=acme"
    assert await page(path) == (False, False)
    assert await set_paused("yes") == (True, False, True)
    assert await set_paused("no") == (False, False, True)  # though the older snapshot has it so already
    assert await set_paused("yes") == (True, False, True)
    now += takes / SHARE_AFTER_ACTS

    async def shows() -> bool:
        return await page(path) == (True, False)

    await eventually(shows, why="the next reading has the change")


async def test_a_page_of_older_numbers_says_so_though_a_new_snapshot_came_while_it_waited_for_its_turn(
    browse: Open, client: Client, monkeypatch: Any
) -> None:
    now, is_slow, read, next_of = 1000.0, True, stats.every_group, groups._next_of

    def slowly(*given: Any, **named: Any) -> Any:
        nonlocal now
        now += 30.0 * is_slow
        return read(*given, **named)

    async def read_meanwhile(*given: Any) -> Any:
        nonlocal is_slow
        is_slow = False
        await snapshots._read_again()
        return await next_of(*given)

    monkeypatch.setattr(stats, "every_group", slowly)
    monkeypatch.setattr(groups, "_next_of", read_meanwhile)
    app = create_console(client)
    snapshots = app.state.console.snapshots
    snapshots._clock = lambda: now
    console = browse(app=app)
    await client.submit("a", group="acme")
    form = {"queue": "default", "group": "acme", "paused": "yes"}
    where = (await console.post("/group", data=form, headers=HERE)).headers["location"]
    page = (await console.get(where)).text
    assert ("Pause this group" in page, "Your last change does not show yet. These" in page) == (True, True)
    page = (await console.get(where)).text
    assert ("Resume this group" in page, "does not show yet" in page) == (True, False)


async def test_a_change_is_made_though_the_snapshot_before_the_last_change_has_it_so_and_a_new_one_comes_meanwhile(
    browse: Open, client: Client, token: Callable[..., Any], monkeypatch: Any
) -> None:
    now, is_slow, read, within = 1000.0, True, stats.every_group, Snapshot.within

    def slowly(*given: Any, **named: Any) -> Any:
        nonlocal now
        now += 30.0 * is_slow
        return read(*given, **named)

    async def read_meanwhile(snapshot: Snapshot, bounds: Bounds) -> Snapshot:
        nonlocal is_slow
        is_slow = False
        await snapshots._read_again()
        return await within(snapshot, bounds)

    monkeypatch.setattr(stats, "every_group", slowly)
    app = create_console(client)
    snapshots = app.state.console.snapshots
    snapshots._clock = lambda: now
    console = browse("10.0.0.9", app=app)
    user = HERE | {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE, groups=['acme'])}"}
    await client.submit("a", group="acme")
    for paused in ("yes", "no"):
        form = {"queue": "default", "group": "acme", "paused": paused}
        if paused == "no":
            monkeypatch.setattr(Snapshot, "within", read_meanwhile)
        async with asyncio.timeout(PATIENCE):
            answer = await console.post("/group", data=form, headers=user)
        [settings] = await client.groups.settings()
        assert (answer.status_code, settings.paused) == (303, paused == "yes")


async def test_a_change_waits_for_no_snapshot_that_has_the_last_one(
    browse: Open, client: Client, monkeypatch: Any
) -> None:
    console, may_end, read = browse(), asyncio.Event(), stats.every_group
    await client.submit("a", group="acme")

    async def read_later(*given: Any, **named: Any) -> Any:
        await may_end.wait()
        return await read(*given, **named)

    assert (await console.get("/")).status_code == 200
    monkeypatch.setattr(stats, "every_group", read_later)
    try:
        for weight in (3, 4):
            form = {"queue": "default", "group": "acme", "weight": str(weight)}
            answer = await asyncio.wait_for(console.post("/group", data=form, headers=HERE), PATIENCE)
            [settings] = await client.groups.settings()
            assert (answer.status_code, settings.weight) == (303, weight)
    finally:
        may_end.set()


async def test_nor_does_such_a_user_wait_for_long_for_a_reading_that_is_under_way(
    client: Client, monkeypatch: Any
) -> None:
    snapshots = Snapshots(client)
    assert (await snapshots.get("ann")).number == 1
    may_end, read = asyncio.Event(), stats.every_group

    async def read_later(*given: Any, **named: Any) -> Any:
        await may_end.wait()
        return await read(*given, **named)

    monkeypatch.setattr(stats, "every_group", read_later)
    monkeypatch.setattr("joex.console.snapshot.CHANGE_WITHIN", 0.1)
    monkeypatch.setattr("joex.console.snapshot.PATIENCE", 3600.0)
    snapshots.expire("ann")
    try:
        async with asyncio.timeout(PATIENCE):
            assert (await snapshots.get("ann")).number == 1
    finally:
        may_end.set()
    await eventually(lambda: _has(snapshots, 2), why="the reading has gone on")


async def test_a_page_that_waits_until_the_next_reading_may_begin_ends_when_the_console_closes(
    client: Client, monkeypatch: Any
) -> None:
    now, read = 1000.0, stats.every_group

    def read_slowly(*given: Any, **named: Any) -> Any:
        nonlocal now
        now += PATIENCE * SHARE_AFTER_ACTS
        return read(*given, **named)

    monkeypatch.setattr(stats, "every_group", read_slowly)
    app = create_console(client)
    snapshots = app.state.console.snapshots
    snapshots._clock = lambda: now
    assert (await snapshots.get("ann")).number == 1
    snapshots.expire("ann")
    waiting = asyncio.create_task(snapshots.get("ann"))
    await asyncio.sleep(0)
    assert not waiting.done()
    app.state.closing.set()
    async with asyncio.timeout(1):
        assert (await waiting).number == 1


async def test_the_console_serves_its_callers_while_it_judges_the_groups_of_a_snapshot(
    client: Client, monkeypatch: Any
) -> None:
    """That takes a second where a tenant has jobs in 100,000 queues."""
    may_end = threading.Event()
    others_ran: list[bool] = []

    def judge_slowly(*given: Any, **named: Any) -> Any:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).add_done_callback(lambda _: may_end.set())
        others_ran.append(may_end.wait(PATIENCE))
        return queues_of(*given, **named)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("joex.console.snapshot.queues_of", judge_slowly)
    await Snapshots(client).get()
    assert others_ran == [True]


async def test_nor_do_others_wait_while_it_finds_once_what_those_with_some_bounds_see(
    client: Client, monkeypatch: Any
) -> None:
    await client.submit("a", group="acme")
    may_end = threading.Event()
    others_ran: list[bool] = []

    def look_slowly(queue: Queue, bounds: Bounds) -> Queue | None:
        loop.call_soon_threadsafe(may_end.set)
        others_ran.append(may_end.wait(PATIENCE))
        return within(queue, bounds)

    within, loop = Queue.within, asyncio.get_running_loop()
    monkeypatch.setattr(Queue, "within", look_slowly)
    snapshot = await Snapshots(client).get()
    seen = await asyncio.gather(*(snapshot.within(Bounds(groups=("acme",))) for _ in range(3)))
    assert (list(seen[0].queues), others_ran) == (["default"], [True])


async def test_nor_do_others_wait_while_it_finds_what_needs_attention_in_any_queue(
    browse: Open, client: Client, monkeypatch: Any
) -> None:
    await client.submit("a", group="acme")
    may_end = threading.Event()
    others_ran: list[bool] = []

    def judge_slowly(*given: Any) -> Any:
        loop.call_soon_threadsafe(may_end.set)
        others_ran.append(may_end.wait(PATIENCE))
        return judge(*given)

    judge, loop, app = queues._alerts, asyncio.get_running_loop(), create_console(client)
    app.state.console.snapshots._clock = lambda: 1000.0  # there is one snapshot
    monkeypatch.setattr(queues, "_alerts", judge_slowly)
    for _ in range(2):
        assert "JoexQueueUnserved" in (await browse(app=app).get("/")).text
    assert others_ran == [True]


async def test_scrapes_of_one_snapshot_share_a_rendering_beside_the_event_loop(
    browse: Open, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, render, app = list[int](), resolve_name("joex.observe.page.render"), create_console(client)
    app.state.console.snapshots._clock = lambda: 1000.0

    def note(gauges: Any) -> Any:
        threads.append(threading.get_ident())
        return render(gauges)

    monkeypatch.setattr("joex.observe.page.render", note)
    await client.submit("a", group="acme")
    scraped = [(await browse(app=app).get("/metrics")).text for _ in range(2)]
    assert 'joex_queue_groups{queue="default"} 1.0' in scraped[0]
    assert (scraped[0] == scraped[1], len(threads), threading.get_ident() in threads) == (True, 1, False)


async def test_a_page_of_older_numbers_does_not_say_that_a_database_is_away_whose_schema_is_wrong(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    app = create_console(client)
    console = browse(app=app)
    assert (await console.get("/")).status_code == 200
    await connection.execute("ALTER SCHEMA joex RENAME TO elsewhere")
    app.state.console.snapshots.expire(OWNER.key)
    page = (await console.get("/")).text
    assert ("The database can not be used: reconnecting" in page, "The database is away" in page) == (True, False)


async def test_pages_that_read_much_ask_less_often_until_they_read_less(client: Client) -> None:
    now = 1000.0
    pace = Pace(client, lambda: now)
    assert pace.every("acme", 2) == 2

    async def read_for(seconds: float, *, of: float, tenant: str = "acme") -> None:
        nonlocal now
        async with pace.reading(tenant):
            now += seconds
        now += of - seconds

    await read_for(1.5, of=WINDOW)  # five hundredths
    assert pace.every("acme", 2) == 10
    await read_for(4.8, of=WINDOW * 4)  # four hundredths, though these pages ask five times less often
    assert (pace.every("acme", 2), pace.every("acme", 5)) == (40, LONGEST)
    await read_for(WINDOW * 4, of=WINDOW * 4)  # the server is silent
    assert pace.every("acme", 2) == LONGEST
    await read_for(0.001, of=WINDOW * 4)
    assert pace.every("acme", 2) == 2
    await read_for(0.125, of=0.125, tenant="globex")  # less than its half of a hundredth
    await read_for(0.875, of=WINDOW - 0.125)
    assert (pace.every("globex", 2), pace.every("acme", 2), pace.every("initech", 2)) == (2, 10, 2)


async def test_what_users_search_makes_no_page_ask_less_often(browse: Open, client: Client) -> None:
    app = create_console(client)
    console = browse(app=app)
    for search in ("/jobs?task=a", "/jobs?state=failed", "/all?act=cancel&task=a"):
        assert (await console.get(search)).status_code == 200, search
    assert not app.state.console.pace._spent
    assert (await console.get("/jobs")).status_code == 200
    assert app.state.console.pace._spent


async def _has(snapshots: Snapshots, number: int) -> bool:
    return (await snapshots.get()).number == number


async def test_a_queue_is_paused_and_resumed_by_those_who_may_steer_all_of_it(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any]
) -> None:
    await client.submit("a", group="acme", queue="mail")
    app = create_console(client)
    form = {"queue": "mail", "paused": "yes"}
    far = browse("10.0.0.9", app=app)
    for scopes, bounds, is_shown in (
        ([Scope.VIEW], {}, False),
        ([Scope.VIEW, Scope.OPERATE], {"groups": ["acme"]}, False),
        ([Scope.VIEW, Scope.OPERATE], {"queues": ["other"]}, False),
        ([Scope.VIEW, Scope.OPERATE], {"queues": ["mail"]}, True),
    ):
        cookie = {"Cookie": f"__Host-joex-console={await token(*scopes, **bounds)}"}
        assert ("Pause the queue" in (await far.get("/", headers=cookie)).text) is is_shown
        status = (await far.post("/queue", data=form, headers=HERE | cookie)).status_code
        assert status == (303 if is_shown else 404 if "queues" in bounds else 403)
    [act] = [one for one in await audit.list_acts(connection, None, 10) if one.act == "set_queue"]
    assert (act.subject, act.detail) == ("mail", {"paused": True})
    console = browse(app=app)
    await eventually(partial(_says, console, "/", "Resume the queue"), why="a snapshot has the pause of another user")
    page = (await console.get("/")).text
    assert re.search(rf"paused</span> since .* by .*{act.caller}", page)
    assert "The queue is paused: 1 job in line." in page
    for path in ("/fairness?queue=mail", "/group?queue=mail&group=acme", "/group?queue=mail&group=acme&weight=3"):
        page = (await console.get(path)).text
        assert re.search(rf"queue paused</span> since .* by .*{act.caller}", page)
        assert ("once the queue is resumed" in page) is ("weight" in path)
    assert (await console.post("/queue", data={"queue": "mail"}, headers=HERE)).status_code == 400
    [group] = (await Snapshots(client).get()).queues["mail"].groups
    assert (group.standing, group.turn) == (Standing.PAUSED, None)
    await console.post("/queue", data=form | {"paused": "no"}, headers=HERE)
    assert await stats.paused_queues(connection) == []


async def test_why_a_periodic_task_can_not_run_is_for_users_with_the_scope_payloads_alone(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any]
) -> None:
    await client.periodic.put("nightly", "a", "08:00")
    await connection.execute("UPDATE joex_private.periodic_task SET error = 'refused: a secret'")
    far = browse("10.0.0.9", app=create_console(client))
    for scopes, is_shown in (([Scope.VIEW], False), ([Scope.VIEW, Scope.PAYLOADS], True)):
        cookie = {"Cookie": f"__Host-joex-console={await token(*scopes)}"}
        page = (await far.get("/periodic", headers=cookie)).text
        assert "can't run" in unescape(page)
        assert ("a secret" in page) is is_shown


async def test_an_act_leads_back_to_the_page_and_the_search_that_it_is_on(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit_many([NewJob("a", {}, "acme", f"q{nr:03}") for nr in range(60)])
    await client.submit("a", queue="mail")
    for nr in range(101):
        await client.periodic.put(f"p{nr:03}", "a", "08:00")
    await executor(connection, "me")
    console = browse()

    async def act(path: str, which: str) -> str:
        page = (await console.get(path)).text
        [form] = [one for one in re.findall(r"<form.*?</form>", page, re.DOTALL) if which in one]
        where = unescape(re.findall(r'action="([^"]*)"', form)[0])
        fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
        answer = await console.post(where, data={name: unescape(value) for name, value in fields}, headers=HERE)
        assert answer.status_code == 303
        return answer.headers["location"]

    assert await act("/?queue=q&page=2", "Pause the queue <bdi>q055") == "/?queue=q&page=2"
    assert await act("/?queue=q&page=2", "Resume the queue <bdi>q055") == "/?queue=q&page=2"
    assert (await act("/executors?ended=yes", "Drain me")).startswith("/executors?ended=yes&done=draining.")
    [after] = re.findall(r'href="/periodic\?(after=[^"]*)"', (await console.get("/periodic")).text)
    page = f"/periodic?{unescape(after)}"
    assert (await act(page, "Disable p100")).startswith(f"{page}&done=disabled.")


async def test_acts_on_a_job_keep_the_way_back_to_the_list_that_it_was_opened_from(
    browse: Open, client: Client
) -> None:
    for _ in range(51):
        await client.cancel(await client.submit("a", group="a & b"))
    console = browse()
    given = "state=failed&state=cancelled&group=a+%26+b"
    [more] = re.findall(r'href="(/jobs\?[^"]*cursor=[^"]*)"', (await console.get(f"/jobs?{given}")).text)
    rows = re.findall(r'href="(/jobs/[^"]*)"', (await console.get(unescape(more))).text)
    at = unescape(rows[0])
    for act in ("retry", "cancel", "delete"):
        page = (await console.get(at)).text
        assert f'<a href="{more}">' in page
        [where] = re.findall(rf'action="([^"]*/{act}[?][^"]*)"', page)
        at = (await console.post(unescape(where), data={}, headers=HERE)).headers["location"]
    assert at.startswith(f"{unescape(more)}&done=deleted.")


async def test_a_page_says_what_was_done_to_the_user_who_did_it_and_not_what_a_link_claims(
    browse: Open, client: Client, token: Callable[..., Any], connection: asyncpg.Connection
) -> None:
    app = create_console(client)
    console, other = browse(app=app), {"Authorization": f"Bearer {await token(Scope.VIEW, Scope.OPERATE)}"}
    job_id = await client.submit("a", group="acme")
    await executor(connection, "me")
    forged = ("done=cancelled", "done=cancelled.", f"done=cancelled.{'0' * 32}", "done=cancelled.%C3%A9")
    for page in (f"/jobs/{job_id}?", "/jobs?", "/executors?", "/periodic?", "/group?queue=default&group=acme&"):
        for done in ("cancelled", "deleted", "draining", "enabled", "set"):
            for claim in forged:
                answer = await console.get(page + claim.replace("cancelled", done))
                assert (answer.status_code, 'role="status">' in answer.text.partition("<main")[2]) == (200, False), page
    said = "The job is cancelled."
    own, others = [
        (await console.post(f"/jobs/{await client.submit('a')}/cancel", headers=HERE | who)).headers["location"]
        for who in ({}, other)
    ]
    for leads_to, mine, its in ((own, True, False), (others, False, True)):
        assert await _says(console, leads_to, said) == mine
        assert (said in (await console.get(leads_to, headers=other)).text) == its
    elsewhere = own.replace(own[6:42], str(job_id))
    assert not await _says(console, elsewhere, said)


async def test_the_page_of_a_job_reads_no_more_of_its_arguments_and_result_than_it_shows(
    browse: Open, client: Client, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's deep value of 1 MB as JSON with an indent had 100 MB, which each page of it made anew."""
    values = list[str]()
    monkeypatch.setattr(jobs, "read_json", values.append)
    deep = "[" * 150 + ",".join(["7"] * 100_000) + "]" * 150
    job_id = await client.submit("t", {"small": {"a": [], "b": [1]}})
    await connection.execute("UPDATE joex_private.job SET result = $1 WHERE id = $2", deep, job_id)
    page = unescape((await browse().get(f"/jobs/{job_id}")).text)
    assert '>{\n  "small": {\n    "a": [],\n    "b": [\n      1\n    ]\n  }\n}<' in page
    assert "\n... and 300," in page
    assert (len(page) < 2 * MOST_SHOWN, values) == (True, [])
    assert await beginnings(connection, job_id, 7) == [
        Beginning('{"small', 30, is_json=True),
        Beginning("[" * 7, 300_298, is_json=True),
    ]


async def test_the_page_of_a_job_shows_a_result_that_is_a_text_as_it_is(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    job_id = await client.submit("t")
    for value, shown in (
        ('"[two\\nlines"', ">[two\nlines<"),
        ("7", ">7<"),
        (f'"{"x" * 20_001}"', "xx\n... and 1 more<"),
    ):
        await connection.execute("UPDATE joex_private.job SET result = $1 WHERE id = $2", value, job_id)
        assert f"{shown}/pre>" in unescape((await browse().get(f"/jobs/{job_id}")).text)
    await connection.execute("UPDATE joex_private.job SET result = 'null' WHERE id = $1", job_id)
    assert "Result" not in (await browse().get(f"/jobs/{job_id}")).text


async def test_the_names_in_its_commands_are_quoted_for_a_shell(browse: Open, client: Client) -> None:
    """One that is an option stays a name; and a terminal into which a command is pasted obeys no control character."""
    for group in ("$(id)", "--help", "a\x03\n'id'\x9b"):
        await client.submit("a", group=group, queue="new mail")
    console = browse()
    for path, command in (
        ("/group?queue=new+mail&group=$(id)", "joex groups set --queue 'new mail' --weight 3 -- '$(id)'"),
        ("/group?queue=new+mail&group=--help", "joex groups set --queue 'new mail' --weight 3 -- --help"),
        (
            "/group?queue=new+mail&group=a%03%0A'id'%C2%9B",
            r"joex groups set --queue 'new mail' --weight 3 -- $'a\003\012\047id\047\302\233'",
        ),
        ("/fairness?queue=new+mail", "joex groups --queue 'new mail'"),
    ):
        assert command in unescape((await console.get(path)).text)


async def test_a_wrong_name_in_a_form_gets_a_line_that_names_the_field(browse: Open) -> None:
    console = browse()
    for path, form, complaint in (
        ("/queue", {"queue": "q" * 255, "paused": "yes"}, "queue: at most 254 bytes; got 255"),
        ("/queue", {"queue": "a\0", "paused": "yes"}, "queue: must not contain a NUL character"),
        ("/group", {"queue": "q" * 255, "group": "acme", "weight": "3"}, "queue: at most 254 bytes; got 255"),
        ("/group", {"queue": "mail", "group": "a\0", "weight": "3"}, "group: must not contain a NUL character"),
    ):
        answer = await console.post(path, data=form, headers=HERE)
        assert answer.status_code == 400
        assert complaint in answer.text


async def test_a_part_of_a_subject_is_looked_for_in_fewer_of_the_jobs_that_an_act_would_change(
    browse: Open, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of a tenant's long subjects takes the server many times as long as one of names."""
    monkeypatch.setattr("joex.console.jobs.MOST_SUBJECTS_COUNTED", 3)
    later = datetime(2099, 1, 1, tzinfo=UTC)
    times = (None, None, later, later, later)
    await client.submit_many([NewJob("mail.send", {}, subject="mail", not_before=time) for time in times])
    console = browse()
    told = "has read the first 3 jobs (those that are held, then in line, waiting for a time, finished): there may be"
    forms = []
    for query, number, is_cut in (("text=mail", 3, True), ("task=mail.send", 5, False)):
        path = f"/all?act=cancel&{query}"
        page = (await console.get(path)).text
        assert (f"Cancel {number} jobs?" in page, told in page) == (True, is_cut), page
        forms.append((path, dict(re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', page)), is_cut))
    for path, form, is_cut in forms:
        answer = await console.post(path, data=form, headers=HERE)
        assert await _says(console, answer.headers["location"], "there may be more") == is_cut
        await eventually(partial(_is_over, console, answer.headers["location"]), why="it ends")


async def test_all_that_matches_is_changed_but_no_more_than_was_confirmed(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit_many([NewJob("mail.send", {}, f"g{nr % 3}", subject=f"mail {nr}") for nr in range(30)])
    app = create_console(client)
    console = browse(app=app)
    where = ""
    acts = [(0, "high", 10), (0, "cancel", 4), (0, "retry", 4), (1, "cancel", 10), (1, "delete", 10)]
    for group, act, number in acts:
        query = {"act": act, "group": f"g{group}", "text": "MAIL"}
        page = await console.get("/all", params=query)
        found = {"cancel": 10, "delete": 10}.get(act, number)
        assert f"{found} jobs" in page.text
        answer = await console.post("/all", params=query, data={"number": number}, headers=HERE)
        where = answer.headers["location"]
        await eventually(partial(_is_over, console, where), why=f"{act} has ended")
        assert f"{number} jobs of {number} changed" in (await console.get(where)).text
    rows = await connection.fetch("SELECT grp, state, priority, count(*) FROM joex.jobs GROUP BY 1, 2, 3 ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [("g0", "waiting", "high", 10), ("g2", "waiting", "low", 10)]
    ends = [act for act in await audit.list_acts(connection, None, 1000) if act.act == "cancel_all"]
    assert [act.detail for act in ends] == [
        {"filter": {"group": "g1", "text": "MAIL"}, "changed": 10, "skipped": 0},
        {"filter": {"group": "g1", "text": "MAIL"}, "confirmed": 10},
        {"filter": {"group": "g0", "text": "MAIL"}, "changed": 4, "skipped": 0},
        {"filter": {"group": "g0", "text": "MAIL"}, "confirmed": 4},
    ]
    assert len({act.subject for act in ends}) == 2
    far = browse("10.0.0.9", app=app)
    assert (await far.get(where)).status_code == 303
    assert (await console.post("/all?act=cancel", data={"number": "0"}, headers=HERE)).status_code == 400


async def test_a_field_that_comes_twice_is_refused_on_each_page_and_form(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    """A link of a tenant named its group first, and Joex cancelled the jobs of all: the page had shown the first."""
    job_id = await client.submit("mail.send", group="victim")
    console = browse()
    told = "group: is given 2 times: give it once"
    for path in paths("GET", job_id):
        answer = await console.get(f"{path}?act=cancel&group=acme&state=waiting&state=failed&%67roup=")
        assert (answer.status_code, told in answer.text) == (400, True), path
    for path in [*paths("POST", job_id), "/sign-in", "/sign-out"]:
        answer = await console.post(f"{path}?act=cancel&group=acme&group=", data={"number": 1}, headers=HERE)
        assert (answer.status_code, told in answer.text) == (400, True), path
    for path in ("/all?act=cancel", "/group", "/queue", "/periodic/run", "/executors/drain", "/sign-in"):
        answer = await console.post(path, content="number=1&group=acme&group=", headers=HERE)
        assert (answer.status_code, told in answer.text) == (400, True), path
    assert await audit.list_acts(connection, None, 10) == []


async def test_what_a_page_confirms_is_what_its_form_does_and_what_the_audit_has(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    """However the query was written: the filter is read once, and has passed its limits."""
    await client.submit_many([NewJob("mail.send", {}, group) for group in ("a & b", "victim")])
    console = browse()
    given = "state=waiting&state=stuck&group=a+%26+b"
    page = (await console.get("/all?act=cancel&group=a%20%26%20b&state=waiting&task=&state=stuck&state=waiting")).text
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page) == [
        ("state", "<bdi>waiting stuck</bdi>"),
        ("group", "<bdi>a &amp; b</bdi>"),
    ]
    [action] = re.findall(r'<form method="post" action="([^"]*/all[^"]*)"', page)
    assert unescape(action) == f"/all?{given}&act=cancel"
    answer = await console.post(unescape(action), data={"number": 1}, headers=HERE)
    await eventually(partial(_is_over, console, answer.headers["location"]), why="the act has ended")
    acts = [act for act in await audit.list_acts(connection, None, 10) if act.act == "cancel_all"]
    assert [act.detail and act.detail["filter"] for act in acts] == [{"state": "waiting stuck", "group": "a & b"}] * 2
    states = await connection.fetch("SELECT grp, state FROM joex.jobs ORDER BY grp")
    assert [tuple(row) for row in states] == [("a & b", "cancelled"), ("victim", "waiting")]
    page = (await console.get("/all?act=cancel")).text
    assert "<dt>no filter</dt>" in page


async def test_a_page_has_what_a_link_brings_once_and_not_in_each_of_its_rows(browse: Open, client: Client) -> None:
    """A link of 60 kB made a page of 9 MB, and a viewer may leave 200 pages unread."""
    await client.submit_many([NewJob("a", {}, queue=f"q{nr:03}") for nr in range(101)])
    for nr in range(101):
        await client.periodic.put(f"p{nr:03}", "a", "08:00")
    console = browse()
    [cursor] = re.findall(r"cursor=([^\"]*)", (await console.get("/jobs")).text)
    for path, short, long in (
        ("/jobs", {"cursor": cursor}, {"cursor": cursor + '"' * 3000}),
        ("/jobs", {"state": "waiting"}, {"state": ["waiting"] * 3000}),
        ("/periodic", {"after": '["","",""]'}, {"after": f'["!{"<" * 4900}","",""]'}),
        ("/periodic", {"timer": "08:00"}, {"timer": "<" * 254}),
    ):
        pages = [(await console.get(path, params=given)).text for given in (short, long)]
        rows = [len(re.findall("<tr|<form", page)) for page in pages]
        assert rows[0] == rows[1], path
        assert len(pages[1]) < len(pages[0]) + 30_000, (path, [len(page) for page in pages])


async def test_jobs_that_are_not_due_run_now_one_or_all_that_match(
    browse: Open, client: Client, token: Callable[..., Any]
) -> None:
    jobs = [NewJob("mail.send", {}, "acme", not_before=datetime(2100, 1, 1, tzinfo=UTC)) for _ in range(3)]
    [first, *others] = [one for one in await client.submit_many(jobs) if one is not None]
    app = create_console(client)
    console = browse(app=app)
    assert "Run now" in (await console.get(f"/jobs/{first}")).text
    answer = await console.post(f"/jobs/{first}/run_now", headers=HERE)
    assert (answer.status_code, answer.headers["location"].partition(".")[0]) == (303, f"/jobs/{first}?done=retried")
    assert "Run now" not in (await console.get(f"/jobs/{first}")).text
    far, cookie = browse("10.0.0.9", app=app), {"Cookie": f"__Host-joex-console={await token(Scope.VIEW)}"}
    assert "Run now" not in (await far.get(f"/jobs/{others[0]}", headers=cookie)).text
    assert (await far.post(f"/jobs/{others[0]}/run_now", headers=HERE | cookie)).status_code == 403
    answer = await console.post("/all?act=run_now&group=acme", data={"number": 3}, headers=HERE)
    await eventually(partial(_says, console, answer.headers["location"], "2 jobs of 3 changed"), why="it ends")
    assert [job.due_at for one in (first, *others) if (job := await client.get(one))] == [None] * 3


async def test_an_act_on_many_jobs_can_be_stopped(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any]
) -> None:
    await client.submit_many([NewJob("a", {}, "g") for _ in range(300)])
    app = create_console(client)
    console = browse(app=app)
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE)}"}
    held = "SELECT id FROM joex_private.job ORDER BY id OFFSET 40 LIMIT 1 FOR UPDATE"
    async with connection.transaction():
        await connection.execute(held)
        answer = await console.post("/all?act=cancel&group=g", data={"number": 300}, headers=HERE)
        where = answer.headers["location"]
        assert "Stop" in (await console.get(where)).text
        other = browse("10.0.0.9", app=app)
        assert (await other.post(f"{where}/stop", headers=HERE | cookie)).status_code == 404
        assert (await console.post(f"{where}/stop", headers=HERE)).headers["location"] == where
    await eventually(lambda: _says(console, where, "Stopped."), why="it ends")
    page = (await console.get(where)).text
    assert 'action="' not in page.partition("<main")[2]
    cancelled = await connection.fetchval("SELECT count(*) FROM joex.jobs WHERE state = 'cancelled'")
    assert cancelled < 300
    [end, _] = [act for act in await audit.list_acts(connection, None, 1000) if act.act == "cancel_all"]
    assert end.detail == {"filter": {"group": "g"}, "changed": cancelled, "skipped": 0, "stopped": True}
    assert f"{cancelled:,} job" in page


async def test_the_page_of_an_act_on_many_jobs_leads_back_to_the_jobs_that_match(browse: Open, client: Client) -> None:
    await client.submit("a", group="a & b")
    console = browse(app=create_console(client))
    given = "state=failed&state=waiting&group=a+%26+b"
    answer = await console.post(f"/all?act=cancel&{given}", data={"number": 1}, headers=HERE)
    page = unescape((await console.get(answer.headers["location"])).text)
    assert f'<a href="/jobs?{given}">' in page


async def test_an_act_on_many_jobs_stops_when_the_token_of_its_user_is_revoked(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any]
) -> None:
    await client.submit_many([NewJob("a", {}, "g") for _ in range(30)])
    app = create_console(client)
    app.state.console.callers._tokens._clock = partial(next, count(step=KEPT_FOR))  # it remembers none
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE)}"}
    begun = "SELECT count(*) FROM joex.audit WHERE act = 'cancel_all'"
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job ORDER BY seq LIMIT 1 FOR UPDATE")
        answer = await browse(app=app).post("/all?act=cancel&group=g", data={"number": 30}, headers=HERE | cookie)
        assert answer.status_code == 303
        await tokens.revoke(connection, "token-0")
    await eventually(lambda: _is(connection, begun, 2), why="it ends")
    [end, _] = [act for act in await audit.list_acts(connection, None, 1000) if act.act == "cancel_all"]
    assert end.detail is not None
    assert end.detail["stopped"]
    assert end.detail["changed"] < 30


async def test_a_token_that_is_revoked_while_its_form_comes_does_nothing(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 0.0)  # each look-up asks the database
    job_id = await client.submit("a")
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE)}"}

    async def parts() -> AsyncIterator[bytes]:
        yield b"a="
        assert await tokens.revoke(connection, "token-0")
        yield b"b"

    answer = await browse().post(f"/jobs/{job_id}/cancel", content=parts(), headers=HERE | cookie)
    assert (answer.status_code, "was revoked" in answer.text) == (401, True)
    assert await connection.fetchval("SELECT state FROM joex.jobs") == "waiting"


async def test_acts_of_one_user_neither_hide_those_of_another_nor_are_without_number(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.store.audit.LONGEST_WAIT", "1min")
    monkeypatch.setattr("joex.console.acts._MOST_KEPT", 1)
    await client.submit("a", group="g")
    app = create_console(client)
    console, far = browse(app=app), browse("10.0.0.9", app=app)
    other = HERE | {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE, groups=['acme'])}"}
    post = partial(console.post, "/all?act=cancel", data={"number": 1}, headers=HERE)
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job FOR UPDATE")
        places = [(await post()).headers["location"] for _ in range(MOST_RUNNING)]
        answer = await post()
        assert (answer.status_code, "stop one" in answer.text) == (409, True)
        for _ in range(3):
            answer = await far.post("/all?act=cancel", data={"number": 1}, headers=other)
            await eventually(partial(_is_done, far, answer.headers["location"], other), why="it ends")
        for where in places:
            assert (await console.post(f"{where}/stop", headers=HERE)).status_code == 303
    for where in places:
        await eventually(partial(_says, console, where, "Stopped."), why="it ends")


async def test_an_act_on_many_jobs_that_fails_has_an_end_in_the_audit_and_shows_what_it_has_changed(
    browse: Open, client: Client, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.submit_many([NewJob("a", {}, "g") for _ in range(2)])
    [first, _] = await connection.fetch("SELECT id FROM joex.jobs ORDER BY seq")

    async def cancel(used: Any, job_id: UUID) -> str:
        if job_id != first["id"]:
            raise RuntimeError
        return await jobs.cancel(used, job_id)

    monkeypatch.setitem(ACTS, "cancel", replace(ACTS["cancel"], do=cancel))
    app = create_console(client)
    console = browse(app=app)
    assert (await console.get("/fairness?queue=default")).status_code == 200
    answer = await console.post("/all?act=cancel&group=g", data={"number": 2}, headers=HERE)
    where = answer.headers["location"]
    bulk = app.state.console.bulk_acts.find(UUID(where.rpartition("/")[2]), OWNER)
    await eventually(lambda: bulk.is_over, why="it ends")
    page = (await console.get(where)).text.partition("<main")[2]
    for text, is_there in (("It has ended early", True), ('<progress max="2" value="1"', True), ('action="', False)):
        assert (text in page) is is_there, text
    [end, *_] = [act for act in await audit.list_acts(connection, None, 10) if act.act == "cancel_all"]
    trouble = "internal error: see the log"
    assert end.detail == {"filter": {"group": "g"}, "changed": 1, "skipped": 0, "trouble": trouble}
    assert (await app.state.console.snapshots.get(OWNER.key)).queues["default"].sums["waiting"] == 1


async def test_acts_of_all_users_that_have_ended_are_not_without_number(
    browse: Open, client: Client, token: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joex.console.acts._MOST_KEPT_OF_ALL", 1)
    far, places = browse("10.0.0.9", app=create_console(client)), list[str]()
    users = [HERE | {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE)}"} for _ in range(3)]
    for user in users:
        answer = await far.post("/all?act=cancel", data={"number": 1}, headers=user)
        places.append(answer.headers["location"])
        await eventually(partial(_is_done, far, places[-1], user), why="it ends")
    found = [(await far.get(where, headers=user)).status_code for where, user in zip(places, users, strict=True)]
    assert found == [404, 200, 200]


async def test_a_user_of_a_proxy_and_a_token_of_the_same_name_share_no_acts_and_no_limits(
    browse: Open, client: Client, connection: asyncpg.Connection, monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.store.audit.LONGEST_WAIT", "1min")
    monkeypatch.setattr("joex.console.acts.MOST_RUNNING", 1)
    app = create_console(client, Access(proxies=[ip_network("10.1.0.0/16")], operators=frozenset({"ann"})))
    console, token = browse("10.1.0.1", app=app), await tokens.create(connection, "ann", [Scope.VIEW, Scope.OPERATE])
    user, other = (HERE | one for one in ({"X-Forwarded-User": "ann"}, {"Cookie": f"__Host-joex-console={token}"}))
    held, free = [await client.submit(task) for task in ("held", "free")]
    cancel = partial(console.post, data={"number": 1})
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", held)
        where = (await cancel("/all?act=cancel&task=held", headers=user)).headers["location"]
        changing = asyncio.create_task(console.post(f"/jobs/{held}/high", headers=user))
        await eventually(lambda: connection.fetchval(f"SELECT count(*) > 0 {WAITING}"), why="the act waits")
        high = await asyncio.wait_for(console.post(f"/jobs/{free}/high", headers=other), PATIENCE)
        assert high.status_code == 303  # it has not waited for the turn of the user
        ended = (await cancel("/all?act=cancel&task=free", headers=other)).headers["location"]
        await eventually(partial(_is_done, console, ended, other), why="it ends")
        found = [(await console.get(where, headers=one)).status_code for one in (user, other)]
        assert (found, (await console.post(f"{where}/stop", headers=other)).status_code) == ([200, 404], 404)
    assert (await changing).status_code == 303
    monkeypatch.setattr("joex.console.sign_in.MOST_CALLS", 1)
    async with app.state.console.simulation:
        calls = [asyncio.create_task(console.get("/simulate?hours=1", headers=one)) for one in (user, other)]
        await eventually(lambda: len(app.state.console.simulating) == 2, why="both wait for their turn")
    assert [(await one).status_code for one in calls] == [200, 200]


async def test_acts_on_many_jobs_of_three_users_leave_connections_to_the_others(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.store.audit.LONGEST_WAIT", "1min")  # the turns save the others, and not its end
    await client.submit("a", group="g")
    console = browse("10.0.0.9")
    users = [HERE | {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE)}"} for _ in range(3)]
    held_up = f"SELECT count(*) >= 3 {WAITING}"
    began = []
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job FOR UPDATE")
        for user in users:
            for _ in range(MOST_RUNNING):  # together more than the connections of the client
                answer = await console.post("/all?act=cancel", data={"number": 1}, headers=user)
                began.append((user, answer.headers["location"]))
        await eventually(lambda: connection.fetchval(held_up), why="each user has a turn")
        await asyncio.wait_for(client.submit("b", group="acme"), PATIENCE)
    for user, where in began:
        await eventually(partial(_is_done, console, where, user), why="it ends")


@pytest.mark.parametrize("path", ["/jobs/{job_id}/high", "/periodic/disable"])
async def test_acts_of_one_user_leave_connections_to_the_others(  # noqa: PLR0917 - fixtures
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any], monkeypatch: Any, path: str
) -> None:
    monkeypatch.setattr("joex.store.audit.LONGEST_WAIT", "1min")
    app, path = create_console(client, Access(token=OWNERS)), path.format(job_id=await client.submit("a"))
    await client.periodic.put("nightly", "a", "08:00")
    console, owner = browse(app=app), {"Authorization": f"Bearer {OWNERS}"}
    user = HERE | {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE)}"}
    post = partial(console.post, path, data={"id": "nightly"}, headers=user)
    assert [(await post()).status_code, (await console.get("/pools", headers=owner)).status_code] == [303, 200]
    held_up = f"SELECT count(*) > 0 {WAITING}"
    async with connection.transaction():
        await connection.execute("LOCK TABLE joex_private.job, joex_private.periodic_task")
        acts = [asyncio.create_task(post()) for _ in range(20)]  # twice the connections of the client
        await eventually(lambda: connection.fetchval(held_up), why="one reads what it changes")
        answer = await asyncio.wait_for(console.get("/pools", headers=owner), PATIENCE)
        assert answer.status_code == 200
    assert {(await one).status_code for one in acts} == {303}


async def test_an_act_on_many_jobs_skips_one_that_another_transaction_holds(
    browse: Open, client: Client, connection: asyncpg.Connection, monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.store.audit.LONGEST_WAIT", "1ms")
    await client.submit_many([NewJob("a", {}, "g"), NewJob("a", {}, "g")])
    console = browse()
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job ORDER BY seq LIMIT 1 FOR UPDATE")
        answer = await console.post("/all?act=cancel", data={"number": 2}, headers=HERE)
        where = answer.headers["location"]
        await eventually(partial(_says, console, where, "1 job of 2 changed, 1 skipped"), why="it goes on")
        await eventually(partial(_is_over, console, where), why="it ends")


async def test_an_act_on_a_job_that_another_transaction_holds_says_so(
    browse: Open, client: Client, connection: asyncpg.Connection, monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.store.audit.LONGEST_WAIT", "1ms")
    job_id = await client.submit("a")
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job FOR UPDATE")
        answer = await browse().post(f"/jobs/{job_id}/cancel", headers=HERE)
    assert (answer.status_code, "Another transaction holds what this changes: try again." in answer.text) == (409, True)
    assert "<h1>This can't be done now</h1>" in unescape(answer.text)


async def test_a_page_that_can_not_be_shown_now_says_whether_that_is_the_database(
    browse: Open, monkeypatch: Any
) -> None:
    async def refuse(*_: Any) -> None:
        raise ConfigError("database role: permission denied")

    monkeypatch.setattr("joex.console.jobs.search_jobs", refuse)
    for title, detail in (
        ("The database can't be used", "permission denied"),
        ("Not now", "0 of your lists wait for their turn: try again"),
    ):
        page = (answer := await browse().get("/jobs")).text
        assert (answer.status_code, f"<h1>{title}</h1>" in unescape(page), detail in page) == (503, True, True)
        monkeypatch.setattr("joex.http.turns.MOST_IN_LINE", 0)


async def test_an_act_on_many_jobs_that_the_database_interrupts_counts_each_of_them_once(
    browse: Open, client: Client, monkeypatch: Any
) -> None:
    note, tried, ends = audit.note, list[UUID](), list[str]()

    async def cancel(connection: Any, job_id: UUID) -> str:
        tried.append(job_id)
        if job_id == tried[0]:
            raise Locked("another transaction holds it")
        if len(tried) == 2:
            raise DatabaseUnavailable("it is away")
        return await jobs.cancel(connection, job_id)

    async def note_later(connection: Any, act: str, subject: str, detail: Any) -> None:
        ends.append(act)
        if len(ends) == 2:  # (The first one is the beginning.)
            raise DatabaseUnavailable("it is away again")
        await note(connection, act, subject, detail)

    monkeypatch.setattr("joex.console.acts._PAUSE", 0)
    monkeypatch.setitem(ACTS, "cancel", replace(ACTS["cancel"], do=cancel))
    monkeypatch.setattr(audit, "note", note_later)
    await client.submit_many([NewJob("a", {}, "g"), NewJob("a", {}, "g")])
    console = browse()
    answer = await console.post("/all?act=cancel", data={"number": 2}, headers=HERE)
    await eventually(partial(_is_over, console, answer.headers["location"]), why="it ends")
    assert "1 job of 2 changed, 1 skipped" in (await console.get(answer.headers["location"])).text


async def _is(connection: asyncpg.Connection, sql: str, wanted: int) -> bool:
    return bool(await connection.fetchval(sql) == wanted)


async def _is_done(console: httpx.AsyncClient, where: str, headers: dict[str, str]) -> bool:
    return "Done." in (await console.get(where, headers=headers)).text


async def _says(console: httpx.AsyncClient, where: str, text: str) -> bool:
    return text in (await console.get(where)).text


async def _is_over(console: httpx.AsyncClient, where: str) -> bool:
    return "Done." in (await console.get(where)).text


async def test_an_act_on_many_jobs_survives_a_restart_of_the_database(
    browse: Open, client: Client, connection: asyncpg.Connection, postgres: Any, database_url: str
) -> None:
    await client.submit_many([NewJob("a", {}, "g") for _ in range(300)])
    console = browse()
    answer = await console.post("/all?act=cancel&group=g", data={"number": 300}, headers=HERE)
    cancelled = "SELECT count(*) FROM joex_private.job WHERE state = 'cancelled'"
    await eventually(lambda: connection.fetchval(cancelled), why="it has begun")
    postgres.restart("immediate")
    await eventually(lambda: _is_over(console, answer.headers["location"]), why="it goes on")
    again = await connect(database_url, name="joex test, after the restart")
    assert await again.fetchval(cancelled) == 300
    await again.close()


def cards(page: str) -> list[str]:
    """The queues that an overview shows."""
    return re.findall(r"<h3[^>]*><a[^>]*><bdi>([^<]*)</bdi>", page)


async def test_of_three_thousand_queues_the_overview_shows_fifty_and_finds_the_others(
    browse: Open, client: Client
) -> None:
    await client.submit_many([NewJob("a", {}, "acme", f"tenant-{nr:04}") for nr in range(3000)])
    console = browse()

    async def shown(path: str) -> tuple[list[str], str]:
        page = (await console.get(path)).text
        return cards(page), page

    first, page = await shown("/")
    assert first == [f"tenant-{nr:04}" for nr in range(50)]
    assert "50 queues of 3,000, from 1 on" in page
    assert "and 2,950 others" in page
    assert page.count("JoexQueueUnserved") == 20
    assert "And 2,980 more." in page
    assert (await shown("/?page=60"))[0][-1] == "tenant-2999"
    found, page = await shown("/?queue=TENANT-299")
    assert found == [f"tenant-{nr}" for nr in range(2990, 3000)]
    assert "10 queues of 10." in page
    assert await shown("/?queue=nobody") != (first, page)
    assert (await console.get("/fairness?queue=tenant-0007")).text.count("tenant-0") < 10


async def test_the_overview_has_a_search_while_one_is_in_force_though_few_queues_are_left(
    browse: Open, client: Client
) -> None:
    await client.submit_many([NewJob("a", {}, "acme", queue) for queue in ("mail", "pdf")])
    console = browse()
    assert 'role="search"' not in (await console.get("/")).text
    for searched, shown, found in (("mail", ["mail"], "1 queue of 1."), ("gone", [], "0 queues of 0.")):
        page = (await console.get("/", params={"queue": searched})).text
        assert 'role="search"' in page
        assert f'value="{searched}"' in page
        assert found in page
        assert cards(page) == shown
        assert "There is no unfinished job" not in page
        assert "others" not in page


async def test_while_the_database_is_away_the_last_numbers_stay(browse: Open, client: Client, postgres: Any) -> None:
    app = create_console(client)
    console = browse(app=app)
    await client.submit("a", group="acme")
    assert "acme" in (await console.get("/fairness")).text
    postgres.stop("immediate")
    app.state.console.snapshots.expire(OWNER.key)
    answer = await console.get("/fairness")
    assert (answer.status_code, "acme" in answer.text, "The database is away" in answer.text) == (200, True, True)
    answer = await console.get("/jobs")
    assert (answer.status_code, "<h1>The database is away</h1>" in answer.text) == (503, True)
    with pytest.raises(DatabaseUnavailable):
        await Snapshots(client).get()
    postgres.start()
    app.state.console.snapshots.expire(OWNER.key)
    assert "The database is away" not in (await console.get("/fairness")).text


async def test_a_stranger_learns_nothing_of_the_database_while_it_is_away(browse: Open) -> None:
    async with Client("postgresql://shop@127.0.0.1:1/shop") as nowhere:
        console = browse("10.0.0.1", app=create_console(nowhere, Access(token=OWNERS)))
        made_up = f"{tokens.PREFIX}{'A' * 43}"
        for answer in (
            await console.get("/", headers={"Authorization": f"Bearer {made_up}"}),
            await console.post("/sign-in", data={"token": made_up}, headers=HERE),
        ):
            assert answer.status_code == 503
            assert "the database does not answer, so Joex can't check the token" in unescape(answer.text)
            assert not re.search("shop|127", answer.text)


async def test_a_user_with_a_token_does_not_learn_where_the_database_is_that_is_away(
    browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(_: Tokens, token: str) -> Caller:
        return Caller("acme", frozenset(Scope))  # it was known a moment ago

    monkeypatch.setattr(Tokens, "find", find)
    async with Client("postgresql://shop@127.0.0.1:1/shop") as nowhere:
        app = create_console(nowhere, Access(token=OWNERS))
        for token, is_told in (OWNERS, True), ("acme's", False):
            answer = await browse("10.0.0.1", app=app).get("/jobs", headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, "127.0.0.1" in answer.text) == (503, is_told)


async def test_a_page_says_that_its_numbers_are_old_while_the_link_to_the_database_is_silent(
    client: Client, postgres: Any, database_name: str, browse: Open
) -> None:
    await client.submit("a", group="acme")
    async with Proxy(postgres.port) as proxy, Client(postgres.tcp_url(database_name, port=proxy.port)) as through:
        app, now = create_console(through), 1000.0
        snapshots = app.state.console.snapshots
        snapshots._clock = lambda: now
        console = browse(app=app)
        assert "reconnecting" not in _main((await console.get("/fairness")).text)
        proxy.freeze()
        now += SHORTEST_PAUSE
        first = await console.get("/fairness")
        assert "reconnecting" not in _main(first.text)
        now += OVERDUE
        page = await console.get("/fairness", headers={"If-None-Match": first.headers["ETag"]})
        assert "has not answered for a while: reconnecting. These are the numbers of 20" in _main(page.text)
        assert "acme" in page.text
        proxy.thaw()
        await eventually(lambda: _has(snapshots, 2), why="the reading ends")
        assert "reconnecting" not in _main((await console.get("/fairness")).text)


async def test_the_console_reads_again_soon_after_a_link_that_was_silent_until_the_reading_failed(
    client: Client, monkeypatch: Any
) -> None:
    now, fails_after, read = 1000.0, 0.0, stats.every_group

    async def read_or_fail(*given: Any, **named: Any) -> Any:
        nonlocal now
        if fails_after:
            now += fails_after
            raise DatabaseUnavailable("no answer in time")
        return await read(*given, **named)

    monkeypatch.setattr(stats, "every_group", read_or_fail)
    snapshots = Snapshots(client, lambda: now)
    await snapshots.get()
    fails_after, now = 30.0, now + SHORTEST_PAUSE
    await eventually(partial(_is_away, snapshots), why="the reading fails")
    fails_after = 0.0
    assert ((await snapshots.get()).number, await _is_away(snapshots)) == (1, True)  # it asks for no more than a part
    now += 30.0 / SHARE_AFTER_ACTS
    await eventually(lambda: _has(snapshots, 2), why="it has read again")
    assert not await _is_away(snapshots)


async def _is_away(snapshots: Snapshots) -> bool:
    await snapshots.get()
    return snapshots.why_old("") is not None


def _main(page: str) -> str:
    return page.partition("<main")[2]


async def test_the_numbers_are_those_of_the_views(client: Client, connection: asyncpg.Connection) -> None:
    await open_the_shop(client, connection)
    snapshot = await Snapshots(client).get()
    [expected] = await stats.queue_stats(connection)
    queue = snapshot.queues["default"]
    assert queue.sums == {
        name: getattr(expected, name) for name in ("waiting", "deferred", "scheduled", "running", "stuck")
    }
    assert queue.oldest == pytest.approx(expected.oldest_runnable_seconds, abs=5)
    assert (len(queue.groups), queue.slots, queue.executors) == (expected.groups, 8, 2)
    assert sum(snapshot.ended.values()) == sum(
        (await stats.finished_between(connection, snapshot.at.replace(year=2020), snapshot.at)).values()
    )
    bound = await snapshot.within(Bounds(groups=("acme",)))
    [group] = bound.queues["default"].groups
    assert (group.stats.group, group.turn, group.share, bound.executors) == ("acme", None, None, ())
    assert not bound.ended
    assert await snapshot.within(EVERYTHING) is snapshot
    assert not (await snapshot.within(Bounds(queues=("other",)))).queues


async def test_the_group_whose_turn_it_is_is_the_one_that_the_next_take_serves(
    client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit_many([NewJob("a", {}, f"g{nr % 7}") for nr in range(70)])
    await client.groups.set("g1", weight=3)
    await client.groups.set("g2", paused=True)
    await client.groups.set("g3", max_running=1)
    me = await executor(connection, "me", pool_size=30)
    snapshots = Snapshots(client)
    served: list[str] = []
    standings: dict[str, Standing] = {}
    for _ in range(30):
        snapshots.expire("ann")
        groups = (await snapshots.get("ann")).queues["default"].groups
        [expected] = [one.stats.group for one in groups if one.turn == 1]
        [job] = await take(connection, me, 1)
        served.append(job.group)
        assert served[-1] == expected
        standings = {one.stats.group: one.standing for one in groups}
    assert (standings["g2"], standings["g3"]) == (Standing.PAUSED, Standing.AT_LIMIT)
    assert served.count("g3") == 1


@pytest.mark.parametrize("most_read", [3, 1000])
async def test_a_search_finds_page_by_page_what_the_list_has(
    client: Client, connection: asyncpg.Connection, most_read: int
) -> None:
    await open_the_shop(client, connection)
    await client.keyed.add("keyed.task", "a-key", {"data": {}})
    everything = (await list_jobs(connection, Filter(), most=1000)).jobs
    wanted = [
        Search(),
        Search(queue="default", group="acme"),
        Search(group="globex"),
        Search(task="mail.send"),
        Search(states=["failed", "waiting"]),
        Search(submitter="ann"),
        Search(subject="SCAN"),
        Search(subject="100%_\\"),
        Search(tracker="none"),
        Search(queue="other"),
        Search(bounds=Bounds(groups=("acme", "hooli"))),
        Search(group="acme", bounds=Bounds(groups=("hooli",))),
        Search(subject="."),
        Search(subject="***="),
    ]
    for one in wanted:
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await search_jobs(connection, one, cursor, 7, most_read=most_read)
            assert len(page.jobs) <= 7
            found += [job.id for job in page.jobs]
            cursor, pages = page.next, pages + 1
        expected = [job.id for job in everything if _matches(one, job)]
        assert found == expected, one
    assert len([one for one in everything if _matches(wanted[6], one)]) > 50
    with pytest.raises(InvalidJob, match="cursor"):
        await search_jobs(connection, Search(), "nonsense")


async def test_a_search_says_how_far_back_it_has_read(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit_many([NewJob("a", {}, "rare" if nr == 0 else "usual") for nr in range(10_001)])
    await connection.execute("""
        UPDATE joex_private.job
        SET state = 'success', lane = NULL, finished_at = '2026-01-01Z'::timestamptz + seq * interval '1s'
    """)
    console = browse()
    page = (await console.get("/jobs?group=rare&state=success")).text
    seen = await connection.fetchval("SELECT finished_at FROM joex.jobs ORDER BY seq LIMIT 1 OFFSET 1")
    assert f'those that ended since <time datetime="{seen.isoformat()}">{seen:%Y-%m-%d %H:%M:%SZ}' in page
    [cursor] = re.findall(r'cursor=([^"]+)">Read further', page)
    last = (await console.get(f"/jobs?group=rare&state=success&cursor={cursor}")).text
    assert ("ended since" in last, 'id="j-' in last) == (False, True)


@pytest.mark.parametrize("state", ["waiting", "success"])
async def test_a_search_of_a_bound_viewer_stops_at_no_job_of_others_and_counts_none(
    client: Client, connection: asyncpg.Connection, state: str
) -> None:
    await client.submit_many([NewJob("a", {}, "globex", "secret") for _ in range(7)])
    await client.submit_many([NewJob("a", {}, "acme", "zebra") for _ in range(3)])
    if state == "success":
        await connection.execute("UPDATE joex_private.job SET state = 'success', lane = NULL, finished_at = now()")
    for wanted, found in (
        (Search(bounds=Bounds(groups=("acme",))), 3),
        (Search(bounds=Bounds(groups=("acme", "shop"))), 3),
        (Search(bounds=Bounds(queues=("zebra",))), 3),
        (Search(queue="zebra", bounds=Bounds(groups=("acme",))), 3),
        (Search(queue="secret", bounds=Bounds(groups=("acme",))), 0),
        (Search(group="globex", bounds=Bounds(groups=("acme",))), 0),
        (Search(queue="secret", group="globex", bounds=Bounds(queues=("zebra",))), 0),
    ):
        page = await search_jobs(connection, wanted, None, 5, most_read=5)
        assert (len(page.jobs), page.next, page.back_to) == (found, None, None), wanted
        assert await count_jobs(connection, wanted, most_read=5) == (found, True), wanted


def _matches(wanted: Search, job: Any) -> bool:
    equal = ("queue", "group", "task", "submitter", "tracker")
    return (
        all(getattr(wanted, name) in (None, getattr(job, name)) for name in equal)
        and (wanted.states is None or job.state in wanted.states)
        and (wanted.subject is None or wanted.subject.lower() in job.subject.lower())
        and wanted.bounds.holds(job.queue, job.group)
    )


async def test_wrong_input_gets_a_line_that_names_the_field(browse: Open, client: Client) -> None:
    console = browse()
    await client.submit("a", group="acme")
    for path, status, text in (
        ("/group?queue=default&group=acme&weight=101", 400, "weight: expected a whole number, 1 to 100"),
        ("/group?queue=default&group=acme&max_running=many", 400, "max_running: expected"),
        (f"/group?queue=default&group=acme&max_running={'0' * 20}{'9' * 20}", 400, "max_running: expected"),
        ("/group?queue=default&group=nobody", 404, "no unfinished jobs"),
        ("/group?queue=default", 400, "group: "),
        ("/fairness?queue=nothing", 404, "nothing"),
        ("/fairness?page=0", 400, "page: "),
        ("/jobs?state=nothing", 400, "state"),
        ("/jobs?cursor=nonsense", 400, "cursor: "),
        ("/jobs/00000000-0000-0000-0000-000000000000", 404, "There is no job"),
        ("/jobs/nothing", 400, "job_id: "),
        ("/jobs?text=%00", 400, "text: must not contain a NUL character"),
        ("/jobs?queue=%00", 400, "queue: must not contain a NUL character"),
        ("/pool?home=a&pool=%00", 400, "pool: must not contain a NUL character"),
        ("/simulate?run=1&queue=%00", 400, "queue: must not contain a NUL character"),
        (f"/jobs?text={'a' * 65}", 400, "text: String should have at most 64 characters"),
        (f"/all?act=cancel&text={'a' * 65}", 400, "text: String should have at most 64 characters"),
        ("/periodic?timer=nonsense", 200, "nonsense"),
    ):
        answer = await console.get(path)
        assert (answer.status_code, text in answer.text) == (status, True), (path, answer.text)
    huge = await console.post("/group", content=b"a" * 200_000, headers=HERE)
    assert huge.status_code == 413
    assert (await console.post("/group", data={"queue": "default"}, headers=HERE)).status_code == 400
    assert (await console.post("/executors/drain", data={}, headers=HERE)).status_code == 404


async def test_the_console_forgets_groups_that_have_no_jobs_and_no_settings_any_more(client: Client) -> None:
    """Any submitter may name new ones for ever."""
    snapshots = Snapshots(client)
    for nr in range(3):
        job_id = await client.submit("a", group=f"g{nr}")
        assert job_id is not None
        snapshots.expire("ann")
        await snapshots.get("ann")
        await client.remove(job_id)
    assert set(snapshots._places) == {"g2"}


async def test_a_token_that_is_revoked_while_its_simulation_waits_sees_nothing(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 0.0)  # each look-up asks the database
    app = create_console(client)
    console = app.state.console
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW)}"}
    async with console.simulation:  # another user's
        call = asyncio.create_task(browse(app=app).get("/simulate?hours=1", headers=cookie))
        await eventually(lambda: bool(console.simulating), why="it waits for its turn")
        await tokens.revoke(connection, "token-0")
    assert (await call).status_code == 401


async def test_a_pool_is_simulated_on_the_jobs_that_have_ended(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any]
) -> None:
    console = browse()
    assert "No job of the queue" in (await console.get("/simulate?hours=1")).text
    await open_the_shop(client, connection)
    given = "hours=1&least=1&most=1&pool_size=4&price=0.5&group=acme&weight=3"
    page = (await console.get(f"/simulate?{given}&unknown=<")).text
    [link] = re.findall(r'href="([^"]*/pool.yaml[^"]*)"', page)
    assert unescape(link) == "/simulate/pool.yaml?queue=default&pool_size=4&least=1&most=1"
    assert "Waits of 40 jobs" in page
    assert re.search(r"as it was</th>\s*<td class=\"number\">40</td>", page)
    assert re.search(r"<bdi>acme</bdi></th><td class=\"number\">3</td>", page)
    file = await console.get(unescape(link))
    assert file.headers["content-disposition"] == 'attachment; filename="pool.yaml"'
    assert yaml.safe_load(file.text)["spec"]["scaling"] == {"minReplicas": 1, "maxReplicas": 1}
    assert yaml.safe_load((await console.get("/simulate/pool.yaml?queue=%22%5Da%3A%0A-")).text)["spec"]["queues"] == [
        '"]a:\n-'
    ]
    for wrong in ("least=5&most=4", "weight=0", "weight=101", "price=-1", "hours=0", "pool_size=many", "most=100000"):
        assert (await console.get(f"/simulate?hours=1&{wrong}")).status_code == 400, wrong
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, groups=['acme'])}"}
    assert (await browse("10.0.0.9").get("/simulate?hours=1", headers=cookie)).status_code == 403


async def test_the_page_of_a_simulation_has_the_groups_that_wait_the_longest_of_all(
    browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def traced(*_: Any) -> AsyncIterator[list[TracedJob]]:
        for nr in range(25):
            yield [TracedJob(datetime(2026, 1, 31, tzinfo=UTC), f"group-{nr}", 1.0, seq=nr)]

    monkeypatch.setattr("joex.console.simulate.traced", traced)
    page = (await browse().get("/simulate?hours=1&least=1&most=1&pool_size=1")).text
    assert "Waits of 25 jobs" in page
    assert "that would wait the longest, 20 of 25<" in page
    assert re.findall(r"<bdi>group-(\d+)</bdi>", page) == [str(nr) for nr in range(24, 4, -1)]


async def test_a_simulation_reads_jobs_when_the_command_has_taken_those_before(
    browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no JSON is made of them in the event loop."""
    job, read, taken, threads = TracedJob(datetime(2026, 1, 31, tzinfo=UTC), "acme", 1.0), [], asyncio.Event(), set()
    lines_of = simulate._lines

    class Slow(asyncio.StreamWriter):
        async def drain(self) -> None:
            await taken.wait()
            await super().drain()

    async def traced(*_: Any) -> AsyncIterator[list[TracedJob]]:
        for nr in range(3):
            read.append(nr)
            yield [job]

    def lines(*given: Any) -> bytes:
        threads.add(threading.get_ident())
        return lines_of(*given)

    monkeypatch.setattr("asyncio.streams.StreamWriter", Slow)
    monkeypatch.setattr("joex.console.simulate.traced", traced)
    monkeypatch.setattr(simulate, "_lines", lines)
    call = asyncio.create_task(browse().get("/simulate?hours=1&queue=default"))
    await eventually(lambda: bool(threads), why="the first job is written")
    assert read == [0]
    taken.set()
    assert "Waits of 3 jobs" in (await call).text
    assert threading.get_ident() not in threads


async def test_the_page_says_why_the_command_ends_while_a_simulation_still_reads_jobs(
    browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def traced(*_: Any) -> AsyncIterator[list[TracedJob]]:
        while True:
            yield [TracedJob(datetime(2026, 1, 31, tzinfo=UTC), "acme", 1.0, weight=0)]

    monkeypatch.setattr("joex.console.simulate.traced", traced)
    assert "line 1: weight: expected 1 to" in (await browse().get("/simulate?hours=1")).text


async def test_a_simulation_whose_jobs_are_not_read_in_time_ends(browse: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async def traced(*_: Any) -> AsyncIterator[list[TracedJob]]:
        await asyncio.Event().wait()
        yield []

    monkeypatch.setattr("joex.console.simulate.traced", traced)
    monkeypatch.setattr("joex.console.simulate._WITHIN", 0.1)
    answer = await asyncio.wait_for(browse().get("/simulate?hours=1"), PATIENCE)
    assert "The simulation took more than 0 seconds: choose a shorter time." in answer.text


async def test_simulations_of_one_viewer_do_not_keep_those_of_another_waiting(
    browse: Open, client: Client, token: Callable[..., Any]
) -> None:
    app = create_console(client)
    far, other = browse("10.0.0.9", app=app), browse(app=app)
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW)}"}
    async with app.state.console.simulation:  # one runs
        first = asyncio.create_task(far.get("/simulate?hours=1", headers=cookie))
        await eventually(lambda: bool(app.state.console.simulating), why="it waits for its turn")
        answer = await far.get("/simulate?hours=2", headers=cookie)
        assert (answer.status_code, "goes on" in answer.text) == (409, True)
        second = asyncio.create_task(other.get("/simulate?hours=1"))
        await eventually(lambda: len(app.state.console.simulating) == 2, why="it waits for its turn")
    assert "No job of the queue" in (await first).text
    assert "No job of the queue" in (await second).text
    assert "No job of the queue" in (await far.get("/simulate?hours=1", headers=cookie)).text


async def test_the_calls_of_one_user_keep_no_connection_from_another(
    browse: Open, client: Client, token: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.console.sign_in.MOST_CALLS", 1)
    app = create_console(client)
    far, cookie = browse("10.0.0.9", app=app), {"Cookie": f"__Host-joex-console={await token(Scope.VIEW)}"}
    async with app.state.console.simulation:
        waiting = asyncio.create_task(far.get("/simulate?hours=1", headers=cookie))
        await eventually(lambda: bool(app.state.console.simulating), why="it waits for its turn")
        answer = await far.get("/", headers=cookie)
        assert (answer.status_code, "1 of your calls are being served: try again" in answer.text) == (503, True)
        assert int(answer.headers["retry-after"]) > 0
        for path in ("/healthz", "/sign-in"):
            assert (await far.get(path)).status_code == 200
        assert (await browse(app=app).get("/")).status_code == 200
    assert (await waiting).status_code == 200
    assert (await far.get("/", headers=cookie)).status_code == 200


async def test_probes_are_served_beside_as_many_pages_as_can_be(
    client: Client, token: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MOST_REQUESTS", 2)
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    app = create_console(client, Access(token=OWNERS))
    async with served(app) as address, asyncio.timeout(PATIENCE), app.state.console.simulation:
        viewers = [await asyncio.open_connection(*address) for _ in range(2)]
        for _, writer in viewers:
            cookie = f"__Host-joex-console={await token(Scope.VIEW)}"
            writer.write(f"GET /simulate?hours=1 HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
        await eventually(lambda: len(app.state.console.simulating) == 2, why="both wait for their turn")
        url = f"http://{address[0]}:{address[1]}"
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {OWNERS}"}) as owner:
            answer = await owner.get("/")
            assert (answer.status_code, "2 calls are being served: try again" in answer.text) == (503, True)
            assert (await owner.get("/healthz")).status_code == 200
        assert not [reader for reader, _ in viewers if reader.at_eof()]
        for _, writer in viewers:
            writer.close()


async def test_forms_of_one_tenant_that_do_not_end_leave_places_to_the_others(
    browse: Open, client: Client, token: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "MOST_FORMS", 1)
    far, job_id = browse("10.0.0.9", app=create_console(client)), await client.submit("a", group="acme")
    one, same, other = [
        HERE | {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, Scope.OPERATE, groups=groups)}"}
        for groups in (["acme"], ["acme"], ["acme", "globex"])
    ]
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        begun.set()
        await may_end.wait()
        yield b"a=b"

    act = partial(far.post, f"/jobs/{job_id}/high")
    coming = asyncio.create_task(act(content=parts(), headers=one))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    answer = await act(headers=same)
    assert (answer.status_code, "1 of your forms are being served: try again" in answer.text) == (503, True)
    assert (await far.get("/", headers=same)).status_code == 200
    assert (await act(headers=other)).status_code == 303
    may_end.set()
    assert [(await coming).status_code, (await act(headers=same)).status_code] == [303, 303]


async def test_pages_of_one_tenant_leave_connections_to_those_of_others_however_long_each_takes(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, read = list[UUID](), asyncio.Event(), jobs.get_job

    async def hold_a_connection(used: Any, job_id: UUID, **more: Any) -> Any:
        begun.append(job_id)
        await may_end.wait()
        return await read(used, job_id, **more)

    monkeypatch.setattr(jobs, "get_job", hold_a_connection)
    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 0.0)  # each look-up asks the database
    app = create_console(client, Access(token=OWNERS))
    job_id, tenant, other = await client.submit("t", group="acme"), browse(app=app), browse(app=app)
    tenant.headers["Authorization"] = f"Bearer {await token(Scope.VIEW, groups=['acme'])}"
    other.headers["Authorization"] = f"Bearer {OWNERS}"
    reading = [asyncio.create_task(tenant.get(f"/jobs/{job_id}")) for _ in range(20)]
    try:
        await eventually(lambda: len(begun) >= sign_in.MOST_AT_WORK, why="some are read")
        assert (await asyncio.wait_for(other.get("/jobs"), PATIENCE)).status_code == 200
        assert len(begun) == sign_in.MOST_AT_WORK
        await tokens.revoke(connection, "token-0")
    finally:
        may_end.set()
    answers = [(await one).status_code for one in reading]
    assert sorted(answers) == [200] * sign_in.MOST_AT_WORK + [303] * (len(reading) - sign_in.MOST_AT_WORK)


@asynccontextmanager
async def app_of_command(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastAPI]:
    """What ``joex console`` serves."""
    given, may_end = asyncio.Queue[FastAPI](), asyncio.Event()

    async def serve(app: FastAPI, *_: Any) -> None:
        given.put_nowait(app)
        await may_end.wait()

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(console_command, "reacting_to_signals", lambda _: nullcontext())
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(console_command._serve(ConsoleSettings(), OWNERS, url, listener, None))
        try:
            yield await given.get()
        finally:
            may_end.set()
            await serving


async def test_pages_of_a_tenant_leave_connections_and_turns_to_others_however_many_tokens_it_has(  # noqa: PLR0917 - fixtures
    browse: Open, client: Client, connection: asyncpg.Connection, database_url: str, token: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.client.client.time_limit", lambda _: 600.0)
    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 0.0)  # each look-up asks the database
    may_search, search, searching = asyncio.Event(), search_jobs, asyncio.Event()

    async def search_when_it_may(*given: Any) -> Any:
        searching.set()
        await may_search.wait()
        return await search(*given)

    monkeypatch.setattr("joex.console.acts.search_jobs", search_when_it_may)
    job_of = {group: await client.submit("t", group=group) for group in ("many", "a", "b", "c")}
    async with app_of_command(database_url, monkeypatch) as app:

        def browser(value: str) -> httpx.AsyncClient:
            made = browse(app=app)
            made.headers.update(HERE | {"Authorization": f"Bearer {value}"})
            return made

        bound = [await token(Scope.VIEW, Scope.OPERATE, groups=[group]) for group in (*["many"] * 4, *"abc")]
        (*many, idle, a, b, c), owner = map(browser, bound), browser(OWNERS)
        assert (await many[0].post("/all?act=cancel", data={"number": 1})).status_code == 303
        await asyncio.wait_for(searching.wait(), PATIENCE)
        async with connection.transaction():
            await connection.execute("LOCK TABLE joex_private.job_log")
            pages = [asyncio.create_task(one.get(f"/jobs/{job_of['many']}")) for one in many * sign_in.MOST_AT_WORK]
            most = connection_shares.MOST_SHARED - 3

            async def are_held(number: int) -> None:
                is_held = partial(connection.fetchval, f"SELECT count(*) = $1 {WAITING}", number)
                await eventually(is_held, why="so many pages have a connection")

            await are_held(most)
            may_search.set()
            cancelled = "SELECT count(*) > 0 FROM joex.jobs WHERE state = 'cancelled'"
            await eventually(lambda: connection.fetchval(cancelled), why="the act goes on")
            for name, http, has_one in (("a", a, 1), ("b", b, 2), ("c", c, 2)):  # the last one is for who is not bound
                pages.append(asyncio.create_task(http.get(f"/jobs/{job_of[name]}")))
                await are_held(most + has_one)
                for own in (idle, owner):
                    asked = own.get("/"), own.get("/jobs"), owner.get("/pools")
                    answers = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
                    assert {one.status_code for one in answers} == {200}
        assert {(await one).status_code for one in pages} == {200}


async def test_who_is_revoked_while_a_page_waits_for_a_connection_sees_nothing(  # noqa: PLR0917 - fixtures
    browse: Open, client: Client, connection: asyncpg.Connection, database_url: str, token: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 0.0)  # each look-up asks the database
    job_id = await client.submit("t")
    async with app_of_command(database_url, monkeypatch) as app, AsyncExitStack() as others:
        shares: Any = app.state.client.connections._places
        for nr in range(connection_shares.MOST_SHARED):
            await others.enter_async_context(shares.one_of(connection_shares.Holder(nr)))
        signed_in = {"Authorization": f"Bearer {await token(Scope.VIEW)}"}
        showing = asyncio.create_task(browse(app=app).get(f"/jobs/{job_id}", headers=signed_in))
        await eventually(lambda: bool(shares._waiting), why="it waits")
        assert await tokens.revoke(connection, "token-0")
        await others.aclose()
        answer = await asyncio.wait_for(showing, PATIENCE)
    assert (answer.status_code, "was revoked" in answer.text) == (401, True)


async def test_many_pages_of_one_tenant_that_wait_for_nothing_let_that_of_another_come_second(
    browse: Open, token: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 3600.0)
    far, shown = browse("10.0.0.9"), list[str]()

    async def open_page(bearer: str) -> None:
        answer = await far.get("/no-such-page", headers={"Authorization": f"Bearer {bearer}"})
        assert answer.status_code == 404
        shown.append(bearer)

    *many, few = [await token(Scope.VIEW, groups=[group]) for group in (*["acme"] * 5, "globex")]
    for bearer in (*many, few):  # now the tokens are known
        await open_page(bearer)
    shown.clear()
    await asyncio.gather(*[open_page(bearer) for bearer in many * 6], open_page(few))
    assert shown.index(few) <= 1


async def test_the_groups_of_a_queue_are_ordered_beside_the_event_loop(
    browse: Open, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, order = list[int](), queues._ORDERS["name"]

    def note(group: Group) -> Any:
        threads.append(threading.get_ident())
        return order(group)

    monkeypatch.setitem(queues._ORDERS, "name", note)
    await client.submit("a", queue="q", group="acme")
    assert (await browse().get("/fairness?queue=q&order=name")).status_code == 200
    assert threads
    assert threading.get_ident() not in threads


async def test_a_reading_puts_groups_and_their_settings_together_beside_the_event_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[int]()

    def note(*given: Any) -> stats.GroupStats:
        threads.append(threading.get_ident())
        return stats.GroupStats(*given)

    monkeypatch.setattr("joex.console.snapshot.GroupStats", note)
    await client.groups.set("acme", weight=2)
    await Snapshots(client).get()
    assert threads
    assert threading.get_ident() not in threads


async def test_the_groups_of_a_large_queue_are_ordered_when_it_is_the_turn_of_their_viewer(
    browse: Open, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MOST_BESIDE_OTHERS", 1)
    await client.submit_many([NewJob("a", {}, *place) for place in (("acme", "large"), ("b", "large"), ("b", "small"))])
    app = create_console(client)
    console, searches = browse(app=app), app.state.console.searches
    async with asyncio.timeout(PATIENCE):
        async with searches.turn_of(OWNER.tenant):
            large = asyncio.create_task(console.get("/fairness?queue=large"))
            await eventually(lambda: searches._of.total() == 1, why="it is in line")
            assert (await console.get("/fairness?queue=small")).status_code == 200
        assert (await large).status_code == 200


async def test_a_page_whose_viewer_has_hung_up_before_its_turn_is_not_made(
    browse: Open, client: Client, token: Callable[..., Any]
) -> None:
    console = create_console(client)

    async def disconnect() -> Any:
        return {"type": "http.disconnect"}

    async def hangs_up(scope: Any, _: Any, send: Any) -> None:
        await console(scope, disconnect, send)

    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, groups=['acme'])}"}
    answer = await browse("10.0.0.9", app=hangs_up).get("/", headers=cookie)
    assert (answer.status_code, "the caller has gone" in answer.text) == (400, True)


async def test_a_page_that_waits_for_its_turn_when_the_console_stops_says_so_at_once(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any]
) -> None:
    app, at_work = create_console(client), sign_in.MOST_AT_WORK
    far, cookie = (
        browse("10.0.0.9", app=app),
        {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, groups=['acme'])}"},
    )
    job_id = await client.submit("a", group="acme")
    assert (await far.get(f"/jobs/{job_id}", headers=cookie)).status_code == 200
    waiting = f"SELECT count(*) >= $1 {WAITING}"
    async with connection.transaction():
        await connection.execute("LOCK TABLE joex_private.job")
        pages = [asyncio.create_task(far.get(f"/jobs/{job_id}", headers=cookie)) for _ in range(8)]
        await eventually(lambda: connection.fetchval(waiting, at_work), why="some are read")
        app.state.closing.set()
        await eventually(lambda: sum(one.done() for one in pages) == len(pages) - at_work, why="no other waits")
        refused = [one.result() for one in pages if one.done()]
    answers = await asyncio.gather(*pages)
    assert sum(answer.status_code == 200 for answer in answers) == at_work
    for page in refused:
        assert (page.status_code, page.headers["retry-after"]) == (503, "2")
        assert "this server stops: try again" in page.text


@pytest.mark.parametrize(
    ("where", "limit", "viewers", "status"),
    [(sign_in, "MOST_CALLS", 2, 503), (sign_in, "MOST_AT_WORK", 1, 200), (route, "MOST_REQUESTS", 2, 200)],
)
async def test_a_page_counts_for_its_tenant_until_its_viewer_has_read_it_and_keeps_no_turn_meanwhile(  # noqa: PLR0917 - fixtures
    client: Client, token: Callable[..., Any], monkeypatch: Any, where: Any, limit: str, viewers: int, status: int
) -> None:
    monkeypatch.setattr(where, limit, 1)
    unread = unread_answers(monkeypatch)
    await client.submit_many([NewJob("a", {}, "acme") for _ in range(50)])
    known = [await token(Scope.VIEW, groups=["acme"]) for _ in range(viewers)]
    async with served(create_console(client)) as (host, port), asyncio.timeout(PATIENCE):
        reader, writer = await slowly_connected(f"{host}:{port}")
        head = f"GET /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {known[0]}\r\nConnection: close\r\n\r\n"
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(head.encode())
        await eventually(lambda: bool(unread), why="the page waits for its viewer")
        bearer = {"Authorization": f"Bearer {known[-1]}"}
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=bearer) as other:
            assert (await other.get("/periodic")).status_code == status
            writer.transport.resume_reading()  # type: ignore[attr-defined] # likewise
            assert (await reader.read()).endswith(b"</html>")
            assert (await other.get("/periodic")).status_code == 200
        writer.close()


@pytest.mark.parametrize("bound", [{}, {"groups": ["acme"]}], ids=["not bound", "bound"])
async def test_while_a_page_of_a_tenant_begins_its_others_wait_and_those_of_others_are_served(
    client: Client, token: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, bound: dict[str, Any]
) -> None:
    began, beginning, go_on = Turns.beginning, list[Any](), asyncio.Event()

    @asynccontextmanager
    async def begin(line: Turns, tenant: Any, closing: asyncio.Event) -> AsyncIterator[None]:
        async with began(line, tenant, closing):
            beginning.append(tenant)
            if tenant == beginning[0]:
                await go_on.wait()
            yield

    monkeypatch.setattr(Turns, "beginning", begin)
    many, other = await token(Scope.VIEW, **bound), await token(Scope.VIEW, groups=["globex"])
    async with (
        served(create_console(client)) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE) as http,
    ):
        of_many, of_other = ({"Authorization": f"Bearer {one}"} for one in (many, other))
        pages = [asyncio.create_task(http.get("/periodic", headers=of_many)) for _ in range(3)]
        await eventually(lambda: bool(beginning))
        answer = await http.get("/periodic", headers=of_other)
        assert (answer.status_code, len(beginning)) == (200, 2)
        go_on.set()
        assert {(await page).status_code for page in pages} == {200}


async def test_a_stop_waits_for_no_viewer_that_does_not_read_its_page_and_logs_no_traceback(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_PATIENCE", PATIENCE)
    monkeypatch.setattr(server, "_GO_ON_WITHIN", 0)
    unread = unread_answers(monkeypatch)
    await client.submit_many([NewJob("a", {}, "acme") for _ in range(50)])
    async with served(create_console(client, Access(token=OWNERS))) as (host, port):
        _, writer = await slowly_connected(f"{host}:{port}")
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(f"GET /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OWNERS}\r\n\r\n".encode())
        await eventually(lambda: bool(unread), why="the page waits for its viewer")
    writer.close()
    assert caplog.text == ""


async def test_a_page_of_a_job_has_the_latest_lines_that_fit_though_each_is_long(
    browse: Open, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit("a")
    [job] = await take(connection, await executor(connection, "one"))
    longest = MOST_SHOWN + 1
    lines = [runs.LogLine(job.id, job.lock_id, 1, 0.0, "info", f"{nr}".ljust(longest, '"')) for nr in range(30)]
    await runs.note_many(connection, lines, [])
    page = (await browse().get(f"/jobs/{job.id}")).text
    assert re.findall(r'<span class="message">(?:<bdi>)?(\d+)', page) == ["25", "26", "27", "28", "29"]
    assert f"The latest 5 lines; <code>joex logs {job.id}</code> prints all." in page


@pytest.mark.parametrize("path", ["/jobs?task=a", "/all?act=cancel&task=a", "/periodic", "/group?queue=q&group=acme"])
async def test_the_searches_of_one_viewer_leave_connections_to_the_others(
    browse: Open, client: Client, connection: asyncpg.Connection, token: Callable[..., Any], path: str
) -> None:
    app, searches = create_console(client, Access(token=OWNERS)), 20  # twice the connections of the client
    console, bound = browse(app=app), await token(Scope.VIEW, Scope.OPERATE, groups=["acme"])
    tenant, owner = ({"Authorization": f"Bearer {one}"} for one in (bound, OWNERS))
    await client.groups.set("acme", queue="q", weight=2)
    assert [(await console.get(one, headers=owner)).status_code for one in ("/pools", path)] == [200, 200]
    held_up = f"SELECT count(*) > 0 {WAITING} AND relation::regclass::text LIKE 'joex_private.%'"
    async with connection.transaction():
        await connection.execute("LOCK TABLE joex_private.job, joex_private.periodic_task")
        searching = [asyncio.create_task(console.get(path, headers=tenant)) for _ in range(searches)]
        await eventually(lambda: connection.fetchval(held_up))
        answer = await asyncio.wait_for(console.get("/pools", headers=owner), PATIENCE)
        assert answer.status_code == 200
    assert {(await one).status_code for one in searching} == {200}


@pytest.mark.parametrize("path", ["/periodic/timer", "/periodic"])
async def test_one_timer_of_a_user_is_checked_at_a_time(
    browse: Open, client: Client, monkeypatch: Any, path: str
) -> None:
    """Some take tens of milliseconds of the interpreter."""
    app, begun, may_end = create_console(client), list[str](), threading.Event()

    def check(timer: str, zone: str) -> Any:
        begun.append(timer)
        may_end.wait(PATIENCE)
        return check_timer(timer, zone)

    monkeypatch.setattr("joex.console.periodic.check_timer", check)
    console = browse(app=app)
    calls = [asyncio.create_task(console.get(path, params={"timer": "daily"})) for _ in range(5)]
    try:
        await eventually(lambda: bool(begun), why="one is checked")
        await eventually(lambda: app.state.console.searches._of.total() == len(calls), why="all are in line")
        assert len(begun) == 1
    finally:
        may_end.set()
    assert {(await one).status_code for one in calls} == {200}


async def test_what_other_settings_would_change_is_computed_beside_the_event_loop_for_one_page_of_a_user_at_a_time(
    browse: Open, client: Client, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 100,000 groups it takes half a second."""
    app, threads, may_end, of_all = create_console(client), list[int](), threading.Event(), Queue.with_settings

    def compute(*given: Any, **named: Any) -> Any:
        threads.append(threading.get_ident())
        may_end.wait(PATIENCE)
        return of_all(*given, **named)

    monkeypatch.setattr(Queue, "with_settings", compute)
    await executor(connection, "one")
    await client.submit("a", group="acme")
    console = browse(app=app)
    calls = [asyncio.create_task(console.get("/group?queue=default&group=acme&weight=7")) for _ in range(3)]
    try:
        await eventually(lambda: bool(threads), why="one is computed")
        await eventually(lambda: app.state.console.searches._of.total() == len(calls), why="all are in line")
        assert len(threads) == 1
    finally:
        may_end.set()
    assert {(await one).status_code for one in calls} == {200}
    assert threading.get_ident() not in threads


async def test_a_simulation_ends_when_its_viewer_hangs_up(client: Client) -> None:
    app = create_console(client, Access(token=OWNERS))
    simulating = app.state.console.simulating
    async with served(app) as address, app.state.console.simulation:
        _, writer = await asyncio.open_connection(*address)
        head = f"GET /simulate?hours=1 HTTP/1.1\r\nHost: x\r\nCookie: __Host-joex-console={OWNERS}\r\n\r\n"
        writer.write(head.encode())
        await eventually(lambda: bool(simulating), why="it waits for its turn")
        writer.close()
        await eventually(lambda: not simulating, why="it ends")


async def test_a_viewer_may_load_the_page_again_while_its_simulation_runs(client: Client) -> None:
    """A browser hangs up, and asks again at once: the console may hear both in either order."""
    app = create_console(client, Access(token=OWNERS))
    head = f"GET /simulate?hours=1 HTTP/1.1\r\nHost: x\r\nCookie: __Host-joex-console={OWNERS}\r\n\r\n"
    async with served(app) as address, asyncio.timeout(PATIENCE):
        async with app.state.console.simulation:
            (_, first), (answer, again) = [await asyncio.open_connection(*address) for _ in range(2)]
            first.write(head.encode())
            await eventually(lambda: bool(app.state.console.simulating), why="it waits for its turn")
            again.write(head.encode())
            first.close()
        assert b" 200 " in await answer.readline()
        again.close()


async def test_it_can_be_mounted_below_a_path_of_an_application(browse: Open, client: Client) -> None:
    outer = FastAPI()
    outer.mount("/joex", create_console(client, Access(token=OWNERS)))
    job_id = await client.submit("a", group="acme")
    console = browse(app=outer)
    assert (await console.get("/joex/jobs")).headers["location"] == "/joex/sign-in?to=%2Fjobs"
    answer = await console.post("/joex/sign-in", data={"token": OWNERS, "to": "/jobs"}, headers=HERE)
    assert (answer.headers["location"], "Path=/joex;" in answer.headers["set-cookie"]) == ("/joex/jobs", True)
    cookie = {"Cookie": f"joex-console={OWNERS}"}
    page = (await console.get("/joex/jobs", headers=cookie)).text
    assert f'href="/joex/jobs/{job_id}"' in page
    assert not re.search(r'(href|src|action)="/(?!joex)', page)
    answer = await console.post(f"/joex/jobs/{job_id}/cancel", headers=HERE | cookie)
    assert answer.headers["location"].startswith(f"/joex/jobs/{job_id}?done=cancelled.")
    assert "The job is cancelled." in (await console.get(answer.headers["location"], headers=cookie)).text
    assert (await console.get("/joex/static/console.js")).status_code == 200


async def test_the_page_of_a_pool_begins_with_the_step_that_held_before(
    browse: Open, connection: asyncpg.Connection
) -> None:
    console = browse()
    assert "No pool had a step within a day" in (await console.get("/pools")).text
    assert (await console.get("/pool?home=shop&pool=docs")).status_code == 404
    await size_pool(connection, "docs", [(300, 0, 3, 9), (90, 3, 2, 8)])
    page = (await console.get("/pool?home=shop&pool=docs")).text
    assert "0 steps within the last hour, and the one before" in page
    assert (page.count("3 → 2"), page.count("0 → 3")) == (1, 0)
    page = (await console.get("/pool?home=shop&pool=docs&hours=6")).text
    assert "2 steps within the last 6 hours" in page
    assert "and the one before" not in page
    for path in ("/pools", "/pool?home=shop&pool=docs"):
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", (await console.get(path)).text)


async def test_the_command_of_a_pool_is_whole_in_a_shell_whatever_its_name(
    browse: Open, connection: asyncpg.Connection
) -> None:
    await size_pool(connection, "docs; rm $HOME", [(5, 0, 3, 9)])
    page = unescape((await browse().get("/pool?home=shop&pool=docs%3B+rm+%24HOME")).text)
    assert "<code>joex pools --steps 'shop/docs; rm $HOME' --since 1h</code>" in page


async def test_pools_are_for_those_who_see_the_whole_system(browse: Open, client: Client, token: Any) -> None:
    cookie = {"Cookie": f"__Host-joex-console={await token(Scope.VIEW, groups=['acme'])}"}
    far = browse("10.0.0.9")
    for path in ("/pools", "/pool?home=shop&pool=docs"):
        assert (await far.get(path, headers=cookie)).status_code == 403
    assert 'href="/pools"' not in (await far.get("/", headers=cookie)).text
