"""The digests of the URLs in secrets, by which a changed one reaches the executors."""

import asyncio
import base64
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from joex_operator.cluster.kubernetes_api import NotFound
from joex_operator.cluster.secrets import Secrets
from joex_operator.control.fleet import UrlUnknown
from joex_operator.decide.manifests import replica_deployment, template_hash
from joex_operator.decide.plan import DatabaseProblem
from tests.support.waiting import PATIENCE, eventually
from tests.unit.joex_operator.builders import pool


class Api:
    """Has one secret, under each name."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.labels: dict[str, str] | None = {"joex.dev/pools": "allowed"}

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        assert path.startswith(("/api/v1/namespaces/prod/secrets/", "/api/v1/namespaces/mail/secrets/"))
        data = {key: base64.b64encode(value.encode()).decode() for key, value in self.data.items()}
        return {"metadata": {} if self.labels is None else {"labels": self.labels}, "data": data}


def secrets_of(api: Any) -> Secrets:
    return Secrets(api)


async def test_a_changed_url_is_another_template_and_nothing_else_of_the_secret_is() -> None:
    api = Api()

    async def template(**more: str) -> str:
        api.data = {"url": "postgresql://app:one@db/shop", **more}
        secrets = secrets_of(api)  # which has read nothing yet
        assert secrets.digest(pool()) == ""
        await secrets.database_url(pool())
        return template_hash(pool(), "joex:1", "prod.1", secrets.digest(pool()))

    before = await template()
    assert await template() == before
    assert await template(other="2") == before
    assert await template(url="postgresql://app:two@db/shop") != before


async def test_the_digest_of_one_url_is_another_for_each_pool() -> None:
    api = Api()
    api.data = {"url": "postgresql://app:one@db/shop"}
    secrets = secrets_of(api)
    some = [pool(), replace(pool(), name="letters", uid="another")]
    for one in some:
        await secrets.database_url(one)
    assert len({secrets.digest(one) for one in some}) == 2


async def test_slow_digests_hold_up_nothing_else_that_the_operator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It renews its leases meanwhile: else it loses them at its start with many pools, and starts over for ever."""
    api = Api()
    threads: list[threading.Thread] = []
    scrypt = hashlib.scrypt

    def noted(*args: Any, **more: Any) -> bytes:
        threads.append(threading.current_thread())
        return scrypt(*args, **more)

    monkeypatch.setattr(hashlib, "scrypt", noted)
    api.data = {"url": "postgresql://app:one@db/shop"}
    secrets = secrets_of(api)
    for _ in range(2):
        await secrets.database_url(pool())
        assert secrets.digest(pool())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_a_pool_whose_digest_is_known_waits_for_those_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes pools again and again keeps the thread at work; a namespace's periodic tasks need many URLs."""
    api, has_begun, may_go = Api(), threading.Event(), threading.Event()
    api.data = {"url": "postgresql://app:one@db/shop"}
    secrets = secrets_of(api)
    await secrets.database_url(pool())
    known = secrets.digest(pool())

    def scrypt(*_: Any, **__: Any) -> bytes:
        has_begun.set()
        may_go.wait(PATIENCE)
        return b"another"

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    another = asyncio.create_task(secrets.database_url(replace(pool(), name="another")))
    try:
        await eventually(has_begun.is_set)
        async with asyncio.timeout(PATIENCE / 2):
            await secrets.database_url(pool())
    finally:
        may_go.set()
        await another
    assert secrets.digest(pool()) == known


async def test_the_next_digest_is_for_a_namespace_that_waits_for_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes the secret of forty pools again and again held up each new pool of others for seconds."""
    api, has_begun, may_go = Api(), threading.Event(), threading.Event()
    api.data = {"url": "postgresql://app:one@db/shop"}
    secrets = secrets_of(api)
    salts: list[bytes] = []

    def scrypt(*_: Any, salt: bytes, **__: Any) -> bytes:
        salts.append(salt)
        has_begun.set()
        may_go.wait(PATIENCE)
        return b"a digest"

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    some = [replace(pool(), name=f"many-{number}", uid=f"many-{number}") for number in range(5)]
    some.append(replace(pool(), namespace="mail", uid="of another namespace"))
    reading = [asyncio.create_task(secrets.database_url(one)) for one in some]
    try:
        await eventually(has_begun.is_set)
    finally:
        may_go.set()
        await asyncio.gather(*reading)
    assert salts[1] == b"of another namespace"


async def test_names_of_hosts_that_no_server_resolves_hold_up_no_pool_of_another() -> None:
    """asyncio looks names up in its own threads, which are few, and each look-up may take a minute."""
    api = Api()
    api.data = {"url": "postgresql://app:one@db/shop"}
    loop, resolved = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    looking_up = loop.run_in_executor(None, resolved.wait)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await secrets_of(api).database_url(pool()) == api.data["url"]
    finally:
        resolved.set()
        await looking_up


async def test_a_replica_notes_its_database_and_no_part_of_the_login() -> None:
    api = Api()
    api.data = {"url": "postgresql://app:one@db:5432/shop?sslmode=require"}
    secrets = secrets_of(api)
    assert secrets.database(pool()) == ""
    await secrets.database_url(pool())
    read = {"secret": secrets.digest(pool()), "database": secrets.database(pool())}
    made = replica_deployment(pool(), 0, "joex:1", "prod.1", **read)
    assert made["metadata"]["annotations"]["joex.dev/database"] == "db:5432/shop"


async def test_a_digest_and_its_database_are_what_the_pool_has_read_though_another_one_has_read_the_secret_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To compute another digest then would hold up the event loop: the thread is for the one that is asked for."""
    monkeypatch.setattr("joex_operator.cluster.secrets._KEPT_FOR", 0.0)  # so the next pool reads the secret again
    api, another = Api(), replace(pool(), name="letters")
    api.data = {"url": "postgresql://app@old/shop"}
    secrets = secrets_of(api)
    await secrets.database_url(pool())
    before = secrets.digest(pool())
    api.data = {"url": "postgresql://app@new/shop"}
    await secrets.database_url(another)
    assert (secrets.digest(pool()), secrets.database(pool())) == (before, "old/shop")
    assert secrets.database(another) == "new/shop"


@pytest.mark.parametrize("key", ["missing", "mistaken"])
async def test_a_pool_that_names_a_wrong_key_replaces_no_executor_of_a_pool_with_the_same_secret(key: str) -> None:
    """A digest that was not known made replicas of another template, which the next reconcile rolled out again."""
    api = Api()
    api.data = {"url": "postgresql://app:one@db/shop", "mistaken": "mysql://app@db/shop"}
    secrets = secrets_of(api)
    await secrets.database_url(pool())
    before = secrets.digest(pool()), secrets.database(pool())
    with pytest.raises(UrlUnknown):
        await secrets.database_url(replace(pool(database={"secretName": "joex-db", "secretKey": key}), name="broken"))
    await secrets.database_url(replace(pool(database={"secretName": "another"}), name="third"))
    assert (secrets.digest(pool()), secrets.database(pool())) == before


async def test_of_a_secret_the_operator_keeps_the_values_that_pools_name_while_they_do() -> None:
    """Whoever makes pools, and secrets of a megabyte, again and again, would fill its memory."""
    api = Api()
    api.data = {"url": "postgresql://app:one@db/shop", "other": "postgresql://app:two@db/shop", "large": "x" * 900_000}
    secrets = secrets_of(api)

    def kept() -> set[str]:
        text = repr(vars(secrets))
        return {name for name, value in api.data.items() if base64.b64encode(value.encode()).decode() in text}

    first, second = pool(), replace(pool(), name="second")
    others = [
        replace(pool(database={"secretName": "joex-db", "secretKey": key}), name="x") for key in ("other", "large")
    ]
    await secrets.database_url(first)
    await secrets.database_url(second)
    await secrets.database_url(others[0])
    assert kept() == {"url", "other"}
    with pytest.raises(UrlUnknown, match="expected a URL of at most 4096 characters; got 900000"):
        await secrets.database_url(others[1])  # the pool names another value now
    assert kept() == {"url"}
    secrets.forget("prod", "second")
    assert secrets.digest(first)
    assert kept() == {"url"}
    secrets.forget("prod", first.name)
    assert kept() == set()


async def test_what_is_read_for_a_pool_that_has_gone_meanwhile_is_not_kept() -> None:
    api, asked, may_answer = Api(), asyncio.Event(), asyncio.Event()
    api.data = {"url": "postgresql://app:one@db/shop"}
    get = api.get

    async def slow(path: str) -> dict[str, Any]:
        asked.set()
        await may_answer.wait()
        return await get(path)

    api.get = slow  # type: ignore[method-assign, assignment]
    secrets = secrets_of(api)
    reading = asyncio.create_task(secrets.database_url(pool()))
    await asked.wait()
    secrets.forget("prod", pool().name)
    may_answer.set()
    assert await reading == api.data["url"]
    assert secrets.digest(pool()) == ""
    assert not any(vars(secrets)[name] for name in ("_values", "_digests", "_named", "_pools"))


@pytest.mark.parametrize("labels", [None, {}, {"joex.dev/pools": "true"}, {"joex.dev/pool": "allowed"}])
async def test_the_operator_uses_no_secret_whose_owner_has_not_allowed_it(labels: dict[str, str] | None) -> None:
    api = Api()
    api.data, api.labels = {"url": "postgresql://app:one@db/shop"}, labels
    secrets = secrets_of(api)
    with pytest.raises(UrlUnknown) as refused:
        await secrets.database_url(pool())
    assert refused.value.problem == DatabaseProblem("SecretNotAllowed", str(refused.value), is_refusal=True)
    assert "kubectl --namespace prod label secret joex-db joex.dev/pools=allowed" in str(refused.value)
    assert refused.value.is_withdrawn
    assert secrets.digest(pool()) == ""
    api.labels = {"joex.dev/pools": "allowed"}
    assert await secrets.database_url(pool()) == "postgresql://app:one@db/shop"  # the next reconcile asks again


async def test_a_secret_that_does_not_allow_pools_tells_their_authors_nothing_of_its_keys() -> None:
    api = Api()
    api.labels = {}
    answers = set()
    for api.data in ({}, {"url": "mysql://hidden"}, {"url": "postgresql://app:one@db/shop"}):
        with pytest.raises(UrlUnknown) as refused:
            await secrets_of(api).database_url(pool())
        answers.add((refused.value.problem.reason, str(refused.value)))
    assert len(answers) == 1


@pytest.mark.parametrize("data", [{}, {"url": "mysql://app@db/shop"}])
async def test_a_mistake_in_a_secret_takes_the_url_from_nobody_who_has_it(data: dict[str, str]) -> None:
    """Somebody may just be changing the password."""
    api = Api()
    api.data = data
    with pytest.raises(UrlUnknown) as refused:
        await secrets_of(api).database_url(pool())
    assert not refused.value.is_withdrawn


async def test_a_secret_that_is_deleted_takes_the_url_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(*_: Any) -> dict[str, Any]:
        raise NotFound("no such secret")

    api = Api()
    monkeypatch.setattr(api, "get", get)
    with pytest.raises(UrlUnknown) as refused:
        await secrets_of(api).database_url(pool())
    assert refused.value.is_withdrawn
