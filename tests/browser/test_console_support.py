"""The console, as a person sees it who answers a tenant's questions about its jobs."""

import re
from ipaddress import ip_network
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
import yaml
from playwright.async_api import Browser, Locator, Page, expect

from joex import Client
from joex.console.app import create_console
from joex.console.sign_in import Access
from joex.core.access import Scope
from joex.core.job import NewJob
from joex.store import audit, tokens
from tests.browser.conftest import PHONE, Viewer, live, not_loaded_again, serving
from tests.support.shop import executor, finish, take

pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.asyncio(loop_scope="module")]


def answer(page: Page) -> Locator:
    """What the console says about the last act."""
    return page.get_by_role("status").filter(visible=True)


async def test_a_job_is_found_by_its_tracker_put_first_and_cancelled(
    viewer: Viewer, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit("documents.parse", group="acme", tracker="order-17", subject="Order 17")
    page = await viewer.open("/jobs")
    await page.get_by_label("Tracker").fill("order-17")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.locator("tbody th a").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Order 17 waiting")
    await expect(page.locator(".reasons")).to_contain_text("all slots are busy: 8, of 2 executors")
    await page.get_by_role("button", name="High priority").click()
    await expect(answer(page)).to_contain_text("Its priority is high.")
    order = "SELECT priority || ' ' || state FROM joex.jobs WHERE tracker = 'order-17'"
    assert await connection.fetchval(order) == "high waiting"
    await page.get_by_role("button", name="Cancel").click()
    await expect(answer(page)).to_contain_text("The job is cancelled.")
    assert await connection.fetchval(order) == "high cancelled"
    acts = [(act.act, act.caller) for act in await audit.list_acts(connection, None, 2)]
    assert acts == [("cancel", "owner"), ("set_priority", "owner")]


async def test_a_run_is_found_by_its_id_shows_how_far_it_is_and_is_asked_to_end(
    viewer: Viewer, shop: dict[str, UUID], connection: asyncpg.Connection
) -> None:
    page = await viewer.open("/jobs")
    await page.get_by_label("Id, or part of the subject").fill(f" {shop['running']} ")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/jobs/{shop['running']}")
    await expect(page.get_by_role("progressbar")).to_have_attribute("value", "66")
    await expect(page.locator("main")).to_contain_text("66 % page 2 of 3")
    await expect(page.locator(".log")).to_contain_text("page 2 is faint")
    await page.get_by_role("button", name="Cancel").click()
    await expect(answer(page)).to_contain_text("Its run is asked to end.")
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert await connection.fetchval("SELECT cancel_requested FROM joex.jobs WHERE id = $1", shop["running"])


@pytest.mark.parametrize("has_code", [True, False], ids=["javascript", "plain"])
async def test_the_timeline_tells_of_each_attempt_where_it_ran_and_how_it_ended(
    viewer: Viewer, client: Client, connection: asyncpg.Connection, *, has_code: bool
) -> None:
    job_id = await client.submit("mail.send", queue="mails", subject="Newsletter")
    first = await executor(connection, "shop/mails-0", queues=["mails"])
    taken = await take(connection, first, 1, queue="mails")
    await finish(connection, taken, "stuck", error="ConnectionError: the mail server is away", delay=300.0)
    page = await viewer.open(f"/jobs/{job_id}", viewport=PHONE, java_script_enabled=has_code)
    timeline = page.get_by_role("region", name="Timeline").get_by_role("listitem")
    await expect(timeline.nth(1)).to_contain_text("Attempt 1 began on shop/mails-0")
    await expect(timeline.nth(2)).to_contain_text("Attempt 1 failed on shop/mails-0, to be retried after 5m")
    await expect(timeline.nth(2)).to_contain_text("ConnectionError: the mail server is away")
    await expect(timeline.nth(3)).to_contain_text("Not before")
    await expect(timeline.last).to_contain_text("stuck now")
    await connection.execute("UPDATE joex_private.job SET due_at = now() WHERE id = $1", job_id)
    second = await executor(connection, "shop/mails-1", queues=["mails"])
    await finish(connection, await take(connection, second, 1, queue="mails"), "success")
    await page.reload()
    words = [
        "Submitted",
        "Attempt 1 began",
        "Attempt 1 failed",
        "Attempt 2 began",
        "Attempt 2 succeeded",
        "Ended: success",
    ]
    await expect(timeline).to_contain_text(words)
    await expect(timeline.nth(4)).to_contain_text("shop/mails-1")


async def test_what_a_tenant_has_submitted_by_mistake_is_cancelled_by_a_filter(viewer: Viewer) -> None:
    page = await viewer.open("/jobs")
    await page.get_by_label("Group").fill("initech")
    await page.get_by_label("Id, or part of the subject").fill("INVOICE")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("tbody tr")).to_have_count(6)
    await page.get_by_role("button", name="Cancel…").click()
    await expect(page.locator("dl.facts")).to_contain_text("initech")
    await page.get_by_role("button", name="Cancel 6 jobs").click()
    await expect(page.locator("main")).to_contain_text("6 jobs of 6 changed")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_label("cancelled").check()
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("tbody tr")).to_have_count(6)
    await expect(page.locator("tbody")).not_to_contain_text(re.compile("acme|globex|hooli|umbrella"))


async def test_a_periodic_task_is_disabled_and_enabled_again(viewer: Viewer) -> None:
    page = await viewer.open("/periodic")
    row = page.get_by_role("row").filter(has_text="nightly-report")
    await page.get_by_role("button", name="Disable nightly-report").click()
    await expect(row).to_contain_text("disabled")
    await page.get_by_role("button", name="Enable nightly-report").click()
    await expect(row).not_to_contain_text("disabled")


async def test_another_pool_is_simulated_and_its_file_downloaded(viewer: Viewer, tmp_path: Path) -> None:
    page = await viewer.open("/simulate")
    await page.get_by_label("Executors, at least").fill("1")
    await page.get_by_label("at most").fill("3")
    await page.get_by_role("button", name="Simulate").click()
    for name in ("as it was", "simulated"):
        await expect(page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))).to_have_count(1)
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download pool.yaml").click()
    await (await downloading.value).save_as(tmp_path / "pool.yaml")
    pool = yaml.safe_load((tmp_path / "pool.yaml").read_text())
    assert pool["spec"]["scaling"] == {"minReplicas": 1, "maxReplicas": 3}


async def test_a_tab_that_nobody_sees_asks_nothing_and_is_up_to_date_when_it_is_seen(
    viewer: Viewer, client: Client
) -> None:
    page = await viewer.open()
    await page.clock.install()
    await page.reload()
    await not_loaded_again(page)
    await page.evaluate("Object.defineProperty(document, 'hidden', {get: () => !window.isSeen})")
    before = len(viewer.asked)
    await page.clock.run_for(600_000)
    await client.submit("mail.send", queue="meanwhile")
    await page.evaluate("fetch('/static/icon.svg')")
    assert [url.rpartition("/")[2] for url in viewer.asked[before:]] == ["icon.svg"]
    await page.evaluate("window.isSeen = true; document.dispatchEvent(new Event('visibilitychange'))")
    await live(page, "meanwhile")


async def test_a_page_leads_to_the_sign_in_when_its_users_token_is_revoked(
    viewer: Viewer, connection: asyncpg.Connection
) -> None:
    token = await tokens.create(connection, "ann", [Scope.VIEW])
    page = await viewer.open("/sign-in?to=/fairness")
    await page.get_by_label("Token").fill(token or "")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Fairness")).to_be_visible()
    assert await tokens.revoke(connection, "ann")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_failed_job_is_deleted_from_its_page(
    viewer: Viewer, shop: dict[str, UUID], connection: asyncpg.Connection
) -> None:
    page = await viewer.open(f"/jobs/{shop['failed']}")
    await page.get_by_role("button", name="Delete").click()
    await expect(answer(page)).to_contain_text("The job is deleted.")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert await connection.fetchval("SELECT count(*) FROM joex.jobs WHERE id = $1", shop["failed"]) == 0
    [act] = await audit.list_acts(connection, None, 1)
    assert (act.act, act.caller, act.subject) == ("remove", "owner", str(shop["failed"]))


async def test_an_act_on_many_jobs_is_stopped_while_it_goes_on(
    viewer: Viewer, client: Client, connection: asyncpg.Connection
) -> None:
    await client.submit_many([NewJob("mail.send", {}, "mistaken") for _ in range(300)])
    page = await viewer.open("/jobs?group=mistaken")
    await page.get_by_role("button", name="Cancel…").click()
    # (The act waits for the locked job, so it goes on until the click.)
    async with connection.transaction():
        await connection.execute(
            "SELECT FROM joex_private.job WHERE grp = 'mistaken' ORDER BY seq OFFSET 40 LIMIT 1 FOR UPDATE"
        )
        await page.get_by_role("button", name="Cancel 300 jobs").click()
        await expect(page.locator("main")).to_contain_text("It goes on.")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    await expect(page.locator("main")).to_contain_text("Stopped.")
    state = "SELECT count(*) FROM joex.jobs WHERE grp = 'mistaken' AND state = 'cancelled'"
    cancelled = await connection.fetchval(state)
    assert cancelled < 300
    await expect(page.locator("main")).to_contain_text(f"{cancelled} job")


async def test_a_proxy_signs_its_users_in_by_a_header(
    browser: Browser, client: Client, connection: asyncpg.Connection
) -> None:
    access = Access(proxies=[ip_network("127.0.0.0/8")], operators=frozenset({"ann"}))
    async with serving(create_console(client, access)) as address:
        viewer = Viewer(browser, address)
        page = await viewer.open("/group?queue=default&group=globex", extra_http_headers={"X-Forwarded-User": "bob"})
        await expect(page.get_by_role("banner")).to_contain_text("bob")
        await expect(page.get_by_role("button", name="Pause this group")).to_have_count(0)
        page = await viewer.open("/group?queue=default&group=globex", extra_http_headers={"X-Forwarded-User": "ann"})
        await page.get_by_role("button", name="Pause this group").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
        await viewer.close()
        assert viewer.troubles == []
    [act] = [one for one in await audit.list_acts(connection, None, 10) if one.act == "set_group"][:1]
    assert (act.caller, act.group) == ("ann", "globex")


async def test_the_overview_says_what_needs_attention_until_it_is_over(
    viewer: Viewer, client: Client, connection: asyncpg.Connection
) -> None:
    page = await viewer.open()
    await not_loaded_again(page)
    alerts = page.get_by_role("region", name="What needs attention").get_by_role("listitem")
    await client.submit("mail.send", queue="mails")
    unserved = alerts.filter(has_text="No executor serves this queue: jobs of 1 group wait. JoexQueueUnserved")
    await expect(unserved).to_have_count(1)
    await expect(alerts.filter(has_text="Jobs wait in 1 paused group.")).to_have_count(1)
    await executor(connection, "shop/mails-0", queues=["mails"])
    await expect(unserved).to_have_count(0)
    await live(page, "mails")
