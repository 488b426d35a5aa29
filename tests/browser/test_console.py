"""The console, as a person sees it who looks after tenants."""

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Route, expect

from joex import Client
from joex.core.access import Scope
from joex.core.job import NewJob
from joex.store import audit, runs, tokens
from tests.browser.conftest import PHONE, Viewer, live, not_loaded_again
from tests.support.postgres import TestServer
from tests.support.proxy import Proxy
from tests.support.shop import executor, finish, size_pool, take
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.asyncio(loop_scope="module")]

ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&amp;{{7*7}}\u202e"


async def test_a_person_finds_the_tenant_that_waits_and_why_and_what_weight_3_would_change(
    viewer: Viewer, connection: asyncpg.Connection
) -> None:
    page = await viewer.open()
    await page.get_by_role("link", name="default").first.click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="acme"))
    await expect(row).to_contain_text("waits")
    await expect(page.get_by_role("row").filter(has_text="initech")).to_contain_text("paused")
    await expect(page.get_by_role("row").filter(has_text="hooli")).to_contain_text("at limit")
    await row.get_by_role("link", name="acme").click()
    await expect(page.get_by_role("heading", name="Why it waits")).to_be_visible()
    await expect(page.locator(".reasons")).to_contain_text("all slots are busy: 8, of 2 executors")

    await page.get_by_label("Weight").fill("3")
    await page.get_by_role("button", name="Preview").click()
    preview = page.locator("#preview").get_by_role("row").filter(has_text="acme")
    await expect(preview).to_contain_text("+1.6")
    await page.get_by_role("button", name="Apply weight 3").click()
    await expect(page.get_by_role("status").filter(has_text="changed")).to_be_visible()
    assert await connection.fetchval("SELECT weight FROM joex.group_stats WHERE grp = 'acme'") == 3
    [act, *_] = await audit.list_acts(connection, None, 1)
    assert (act.act, act.caller, act.group, act.detail) == ("set_group", "owner", "acme", {"weight": 3})


async def test_a_pool_shows_its_sizes_and_why_without_javascript(viewer: Viewer) -> None:
    page = await viewer.open(java_script_enabled=False)
    await page.get_by_role("link", name="Pools").click()
    await page.get_by_role("link", name="documents").click()
    chart = page.get_by_role("img", name="The size of the pool within the last hour")
    await expect(chart).to_have_accessible_description(re.compile("The target ranged from 1 to 2 executors"))
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.first).to_contain_text("2 → 2")
    await expect(rows.first).to_contain_text("60 jobs wait or run, 4 slots each: 15 executors; the maximum is 2")
    await expect(rows.last).to_contain_text("0 → 1")
    await expect(page.locator(".check")).to_contain_text("joex pools --steps shop/documents --since 1h")
    await page.get_by_role("link", name="24 hours").click()
    await expect(page.locator("caption")).to_contain_text("3 steps within the last 24 hours")


async def test_a_pool_of_many_steps_and_of_a_hostile_name_is_shown_as_text_on_a_phone(
    viewer: Viewer, connection: asyncpg.Connection
) -> None:
    sizes = [(300 - nr, nr % 7, (nr + 1) % 7, nr % 50) for nr in range(300)]
    await size_pool(connection, ATTACK, sizes, ATTACK)
    page = await viewer.open("/pools", viewport=PHONE)
    await page.get_by_role("link", name=ATTACK[:20]).click()
    await page.get_by_role("link", name="24 hours").click()
    await expect(page.locator("tbody tr")).to_have_count(300)
    await expect(page.locator("h1")).to_contain_text("<script>document.title='owned'</script>")
    await expect(page.locator("main script, main img")).to_have_count(0)
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


async def test_pausing_a_group_shows_at_once_and_can_be_undone_with_the_keyboard(viewer: Viewer) -> None:
    page = await viewer.open("/group?queue=default&group=globex")
    await page.get_by_role("button", name="Pause this group").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    await expect(page.locator(".reasons")).to_contain_text("is paused")
    await page.get_by_role("button", name="Resume this group").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).not_to_contain_text("paused")


async def test_a_page_follows_the_log_and_the_end_of_a_run_and_keeps_what_its_user_has_opened(
    viewer: Viewer, shop: dict[str, UUID], connection: asyncpg.Connection
) -> None:
    page = await viewer.open(f"/jobs/{shop['running']}")
    await not_loaded_again(page)
    await page.get_by_text("Arguments").click()
    await page.locator("summary").first.focus()
    lock_id = await connection.fetchval("SELECT lock_id FROM joex_private.job WHERE id = $1", shop["running"])
    await runs.note_many(connection, [runs.LogLine(shop["running"], lock_id, 1, 0.0, "info", "reads page 4")], [])
    await live(page, "reads page 4")
    ended = runs.EndedRun(shop["running"], lock_id, "success", result=json.dumps({"pages": 4}))
    await runs.finish_many(connection, [ended])
    await live(page, "it is finished: success")
    assert await page.locator("details").first.evaluate("each => each.open") is True
    assert await page.evaluate("document.activeElement.localName") == "summary"


async def test_what_a_user_types_stays_while_the_page_changes(viewer: Viewer, client: Client) -> None:
    page = await viewer.open("/fairness")
    await not_loaded_again(page)
    await page.get_by_label("Group contains").fill("umb")
    await page.get_by_label("Order").focus()
    await client.submit("mail.send", group="a-new-tenant")
    await live(page, "a-new-tenant")
    await expect(page.get_by_label("Group contains")).to_have_value("umb")


async def test_a_viewer_sees_no_button_that_changes_anything_and_gets_403(
    viewer: Viewer, connection: asyncpg.Connection, pages: Callable[[], list[str]], shop: dict[str, UUID]
) -> None:
    token = await tokens.create(connection, "ann", [Scope.VIEW])
    assert token is not None
    page = await viewer.open("/sign-in?to=/fairness")
    await page.get_by_label("Token").fill(f"{token[:-1]}!")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("unknown")
    viewer.troubles.clear()  # Chromium reports the status 401
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Fairness")).to_be_visible()
    [cookie] = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    assert await page.evaluate("document.cookie") == ""
    for path in pages():
        await page.goto(path)
        await expect(page.locator("form[method=post]")).to_have_count(1)  # signing out
        await expect(page.locator("main")).not_to_contain_text("page 3 is empty")
        await expect(page.locator("main")).not_to_contain_text("reads page 1")
    status = await page.evaluate(
        "async path => (await fetch(path, {method: 'POST'})).status", f"/jobs/{shop['waiting']}/cancel"
    )
    assert status == 403
    viewer.troubles.clear()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert await page.context.cookies() == []


async def test_a_token_that_is_bound_to_a_group_sees_nothing_of_others(
    viewer: Viewer, connection: asyncpg.Connection, pages: Callable[[], list[str]], shop: dict[str, UUID]
) -> None:
    token = await tokens.create(connection, "globex", list(Scope), groups=["globex"])
    page = await viewer.open("/sign-in")
    await page.get_by_label("Token").fill(token or "")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    seen = 0
    more = [f"/jobs?text={shop['waiting']}", "/jobs?state=failed", "/all?act=cancel&task=documents.parse"]
    for path in [*pages(), *more]:
        answer = await page.goto(path)
        assert answer is not None
        text = await page.locator("body").inner_text()
        seen += "globex" in re.sub("globex operates", "", text)
        others = "umbrella|hooli|initech|scan-|last scan|documents-|of 8 slots"
        hidden = others if "acme" in path else f"{others}|acme"  # (the answer that there is no such group names it)
        assert not re.search(hidden, await page.content()), (path, text)
        assert answer.status in {200, 403, 404}
    assert seen >= 4
    viewer.troubles.clear()  # Chromium reports the statuses 403 and 404
    # A job of its own names its executor, as it does in joex.jobs.
    await page.goto(f"/jobs/{shop['running globex']}")
    await expect(page.locator("main")).to_contain_text("shop/documents-")


async def test_postgresql_restarts_meanwhile_and_the_page_goes_on(
    viewer: Viewer, postgres: TestServer, client: Client
) -> None:
    page = await viewer.open()
    await not_loaded_again(page)
    postgres.stop("immediate")
    banner = page.locator("main .banner, #reconnecting").filter(has_text="reconnecting", visible=True)
    await expect(banner.first).to_be_visible()
    await expect(page.get_by_role("heading", name="default")).to_be_visible()
    postgres.start()
    await client.submit("mail.send", queue="after-the-restart")
    await live(page, "after-the-restart")
    await expect(banner).to_have_count(0)
    viewer.troubles.clear()  # Chromium reports answers with status 503


async def test_a_page_says_since_when_its_numbers_are_old_while_the_console_is_silent(
    viewer: Viewer, client: Client
) -> None:
    port = int(viewer.console.rpartition(":")[2])
    async with Proxy(port) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        page = await viewer.open(address)
        await not_loaded_again(page)
        banner = page.locator("#reconnecting")
        await expect(banner).to_be_hidden()
        proxy.freeze()
        await expect(banner).to_be_visible()
        await expect(banner).to_contain_text(re.compile(r"No new numbers since \d\d:\d\d:\d\dZ:"))
        await client.submit("mail.send", queue="after-the-silence")
        proxy.thaw()
        await live(page, "after-the-silence")
        await expect(banner).to_be_hidden()
        viewer.asked = [url for url in viewer.asked if not url.startswith(f"{address}/")]
    viewer.troubles.clear()  # Chromium reports links that were cut


async def test_everything_works_without_javascript(viewer: Viewer, connection: asyncpg.Connection) -> None:
    page = await viewer.open(java_script_enabled=False)
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_label("failed").check()
    await page.get_by_label("Group").fill("acme")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("tbody tr")).to_have_count(8)
    await page.locator("tbody a").first.click()
    await expect(page.locator("pre.error")).to_contain_text("ValueError: page 3 is empty")
    await page.get_by_role("button", name="Run again").click()
    await expect(page.get_by_role("status").filter(visible=True)).to_contain_text("waits again")
    await page.get_by_role("link", name="Periodic").click()
    await page.get_by_role("textbox", name="Timer").fill("Mon..Fri 8:00")
    await page.get_by_role("button", name="Explain").click()
    await expect(page.locator("#explained")).to_contain_text("Mon..Fri *-*-* 08:00:00")
    await page.get_by_role("button", name="Run nightly-report now").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("nightly-report")
    await page.get_by_role("link", name="Executors").click()
    await page.get_by_role("button", name="Drain shop/documents-1").click()
    await expect(page.get_by_role("row").filter(has_text="documents-1")).to_contain_text("draining")
    acts = {act.act for act in await audit.list_acts(connection, None, 10)}
    assert {"retry", "run_periodic_task", "drain"} <= acts


async def test_five_hundred_failed_jobs_are_retried_by_a_filter(
    viewer: Viewer, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit_many([NewJob("report.make", {}, "globex") for _ in range(500)])
    await connection.execute("""
        UPDATE joex_private.job SET state = 'failed', lane = NULL, finished_at = clock_timestamp()
        WHERE task = 'report.make' AND lane IS NOT NULL
    """)
    page = await viewer.open("/jobs")
    await page.get_by_label("failed").check()
    await page.get_by_label("Task").fill("report.make")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Run again…").click()
    await page.get_by_role("button", name="Run again 500 jobs").click()
    await expect(page.locator("main")).to_contain_text("500 jobs of 500 changed")
    await expect(page.locator("main")).to_contain_text("Done.")
    waiting = "SELECT count(*) FROM joex.jobs WHERE task = 'report.make' AND state = 'waiting' AND due_at IS NULL"
    assert await connection.fetchval(waiting) == 500


async def test_a_job_that_waits_for_its_time_runs_now(viewer: Viewer, client: Client) -> None:
    job_id = await client.submit("report.make", group="globex", not_before="1h")
    page = await viewer.open(f"/jobs/{job_id}")
    await expect(page.locator(".reasons")).to_contain_text("it is not due before")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.get_by_role("status").filter(visible=True)).to_contain_text("waits again")
    await expect(page.locator(".reasons")).not_to_contain_text("it is not due before")
    await expect(page.get_by_role("button", name="Run now")).to_have_count(0)


async def test_a_queue_is_paused_and_resumed(viewer: Viewer, connection: asyncpg.Connection) -> None:
    page = await viewer.open("/")
    card = page.locator("article.card").filter(has=page.get_by_role("heading", name="default"))
    await card.get_by_role("button", name="Pause the queue default").click()
    await expect(card).to_contain_text("paused since")
    await expect(page.locator(".alerts")).to_contain_text("The queue is paused")
    assert await connection.fetchval("SELECT paused_at IS NOT NULL FROM joex_private.queue WHERE name = 'default'")
    await card.get_by_role("button", name="Resume the queue default").click()
    await expect(card).not_to_contain_text("paused since")


async def test_a_timer_is_explained_while_it_is_typed(viewer: Viewer) -> None:
    page = await viewer.open("/periodic")
    await page.get_by_role("textbox", name="Timer").press_sequentially("*-*-01 4:00")
    await expect(page.locator("#explained")).to_contain_text("*-*-01 04:00:00")
    await page.get_by_role("textbox", name="Timer").fill("<b>nonsense</b>")
    await expect(page.locator("#explained")).to_contain_text("<b>nonsense</b>")


async def test_a_timer_has_the_meaning_of_what_was_typed_last_whichever_answer_comes_last(viewer: Viewer) -> None:
    page, asked, may_answer = await viewer.open("/periodic"), asyncio.Event(), asyncio.Event()

    async def answer_late(route: Route) -> None:
        asked.set()
        await may_answer.wait()
        await route.continue_()

    await page.route(re.compile("periodic/timer.*hourly"), answer_late)
    timer = page.get_by_role("textbox", name="Timer")
    await timer.fill("hourly")
    async with asyncio.timeout(PATIENCE):
        await asked.wait()
    await timer.fill("daily")
    await expect(page.locator("#explained")).to_contain_text("*-*-* 00:00:00")
    async with page.expect_response(re.compile("hourly")) as coming:
        may_answer.set()
    await (await coming.value).finished()
    await page.evaluate("new Promise(done => setTimeout(done))")
    await expect(page.locator("#explained")).to_contain_text("*-*-* 00:00:00")


async def test_what_a_job_carries_is_shown_as_text_and_never_obeyed(
    viewer: Viewer, client: Client, connection: asyncpg.Connection
) -> None:
    worker = await executor(connection, "hostile", queues=["hostile"])
    group = f"{ATTACK}/?&#"
    hostile = NewJob(ATTACK, {ATTACK: ATTACK}, group, "hostile", subject=ATTACK, submitter=ATTACK)
    [_, job_id] = await client.submit_many([hostile, hostile])
    [job] = await take(connection, worker, 1, queue="hostile")
    line = runs.LogLine(job.id, job.lock_id, 1, 0.0, "info", ATTACK)
    await runs.note_many(connection, [line], [runs.Progress(job.id, job.lock_id, 50, ATTACK)])
    pages = ["/?", "/fairness?queue=hostile", f"/jobs/{job.id}", f"/jobs/{job_id}", "/jobs?queue=hostile", "/executors"]
    page = await viewer.open()
    for path in pages:
        await page.goto(path)
        assert await page.title() != "owned"
        await expect(page.locator("main script, main img")).to_have_count(0)
    await page.goto("/fairness?queue=hostile")
    await page.get_by_role("link", name=ATTACK[:20]).click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("<script>document.title='owned'</script>")
    await page.get_by_role("button", name="Pause this group").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    assert await connection.fetchval("SELECT paused FROM joex_private.group_setting WHERE grp = $1", group)
    await finish(connection, [job], "failed", error=ATTACK)
    await page.goto(f"/jobs/{job.id}")
    await expect(page.locator("pre.error")).to_contain_text("{{7*7}}")
    await expect(page.locator(".log")).to_contain_text("<img src=x")
    await expect(page.locator(".life .error")).to_contain_text("<script>document.title='owned'</script>")
    await page.goto("/jobs?text=" + "%3Cscript%3E")
    await expect(page.locator("main")).to_contain_text("<script>")
    assert await page.title() == "Jobs · Joex"


async def test_axe_finds_nothing(viewer: Viewer, pages: Callable[[], list[str]]) -> None:
    page = await viewer.open("/sign-in")
    for path in ["/sign-in", *pages()]:
        await page.goto(path)
        found = await Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"


async def test_the_dark_colours_have_contrast(viewer: Viewer, pages: Callable[[], list[str]]) -> None:
    page = await viewer.open(color_scheme="dark")
    for path in pages()[2:]:
        await page.goto(path)
        found = await Axe().run(page, options={"runOnly": ["color-contrast"]})
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"


async def test_no_page_is_wider_than_the_screen_of_a_phone(viewer: Viewer, pages: Callable[[], list[str]]) -> None:
    page = await viewer.open(viewport=PHONE)
    for path in ["/sign-in", *pages()]:
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


async def test_of_ten_thousand_groups_the_page_shows_fifty_and_tells_of_the_others(
    viewer: Viewer, client: Client
) -> None:
    await client.submit_many([NewJob("mail.send", {}, f"tenant-{nr}", "wide") for nr in range(10_000)])
    page = await viewer.open("/fairness?queue=wide")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await expect(page.locator("main")).to_contain_text("9,950 others")
    await page.get_by_label("Group contains").fill("tenant-9999")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody")).to_contain_text("unserved")


async def test_the_pictures_of_the_docs_can_be_taken(viewer: Viewer, tmp_path: Path) -> None:
    folder = Path(os.environ.get("JOEX_TEST_PICTURES", tmp_path))
    page = await viewer.open("/fairness", viewport={"width": 1100, "height": 560}, color_scheme="light")
    await expect(page.get_by_role("row")).to_have_count(6)
    await page.screenshot(path=folder / "console-fairness.png")
    assert (folder / "console-fairness.png").stat().st_size > 10_000
