"""What a release does about its claim of a namespace when the API server refuses it."""

import asyncio
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, Configuration

from joex_operator.cluster import namespace_claims
from joex_operator.cluster.kubernetes_api import (
    ApiError,
    Forbidden,
    KubernetesApi,
    NamespaceTerminating,
    NoNamespace,
    NotFound,
)
from joex_operator.cluster.lease import LeaseLock
from joex_operator.cluster.namespace_claims import NamespaceClaims
from joex_operator.control.fleet import FleetError
from joex_operator.metrics import OperatorMetrics
from tests.support.waiting import PATIENCE, eventually

TERMINATING = NamespaceTerminating("unable to create new content in namespace shop")
FORBIDDEN = ApiError("leases is forbidden")


class Server:
    """An API server with the Leases of one namespace, or one that refuses to make them."""

    def __init__(self) -> None:
        self.refusal: ApiError | None = None
        self.lease: dict[str, Any] | None = None
        self.made = 0
        self.uid = "uid-1"
        self.hides_namespaces = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(self, path: str) -> dict[str, Any]:
        if path != "/api/v1/namespaces/shop":
            return self._found(path)
        if self.hides_namespaces:
            raise ApiError("namespaces is forbidden")
        return {"metadata": {"uid": self.uid}}

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as the API has it
        if self.refusal is not None:
            raise self.refusal
        self.made += 1
        self.lease = {**body, "metadata": {**body["metadata"], "uid": f"lease-{self.made}"}}
        return self.lease

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        await self.answers.wait()
        self._found(path)
        self.lease = body
        return body

    def _found(self, path: str) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound(path)
        return self.lease


class Asking:
    """An API server that counts the requests that it has at the same time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    async def get(self, path: str) -> dict[str, Any]:
        if path.endswith("/leases/joex.dev"):
            raise NotFound(path)
        return {"metadata": {"uid": path}}

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as the API has it
        return await self._answer(body)

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as the API has it
        return await self._answer(body)

    async def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(100):  # so that all other requests can come meanwhile
            await asyncio.sleep(0)
        self.now -= 1
        return {**body, "metadata": {**body["metadata"], "uid": "lease"}}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def claims(server: Server) -> NamespaceClaims:
    """A release that holds the namespace shop."""
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert claims.holds("shop")
    assert claims.problem() is None
    return claims


async def refuse(server: Server, claims: NamespaceClaims, refusal: ApiError) -> None:
    """Delete the Lease, refuse another one, and let the claims find that for longer than their deadline."""
    server.lease, server.refusal = None, refusal
    await claims.claim(["shop"])
    lock = claims._locks.get("shop")
    if lock is not None:
        lock.renewed_at = -1000.0
        await claims.claim(["shop"])


async def test_a_claim_lasts_while_its_namespace_is_being_deleted(server: Server, claims: NamespaceClaims) -> None:
    await refuse(server, claims, TERMINATING)
    assert claims.holds("shop")
    await refuse(server, claims, NoNamespace("namespaces shop not found"))
    assert claims.problem() is None
    assert not claims.holds("shop")


@pytest.mark.parametrize(
    ("details", "error"),
    [
        ({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}, NamespaceTerminating),
        ({"causes": [{"reason": "FieldValueForbidden", "field": "spec"}]}, Forbidden),
        ({"kind": "leases"}, Forbidden),
        ({"kind": "namespaces", "name": "shop"}, Forbidden),
        ("none, from a proxy", Forbidden),
    ],
)
async def test_the_cause_in_an_answer_tells_that_its_namespace_is_being_deleted(
    monkeypatch: pytest.MonkeyPatch, details: object, error: type[ApiError]
) -> None:
    async def send(*_request: object) -> tuple[int, object, None]:
        return 403, {"kind": "Status", "message": "verboten", "details": details}, None

    async with ApiClient(Configuration()) as client:  # nothing here asks an API server
        api = KubernetesApi(client, OperatorMetrics())
        monkeypatch.setattr(api, "_send", send)
        with pytest.raises(ApiError, match="verboten") as caught:
            await api.create("/leases", {})
    assert type(caught.value) is error


async def test_ten_claims_are_made_or_renewed_at_once_so_that_a_thousand_are_in_time() -> None:
    asking = Asking()
    claims = NamespaceClaims(asking, "joex/joex-operator")  # type: ignore[arg-type]
    namespaces = [f"shop-{number}" for number in range(25)]
    for _ in range(2):
        asking.most = 0
        await claims.claim(namespaces)
        assert asking.most == 10
    assert all(map(claims.holds, namespaces))


async def test_of_two_releases_the_second_leaves_the_namespace_alone_and_says_so(
    server: Server, claims: NamespaceClaims
) -> None:
    second = NamespaceClaims(server, "tools/joex-operator")  # type: ignore[arg-type]
    await second.claim(["shop"])
    assert not second.holds("shop")
    assert second.problem() == (
        "the release joex/joex-operator manages the namespace shop: tools/joex-operator leaves it alone"
    )
    await claims.claim(["shop"])
    assert claims.holds("shop")


async def test_who_takes_the_lease_of_a_namespace_stops_the_operator_in_no_other(
    server: Server, claims: NamespaceClaims
) -> None:
    """Whoever may change Leases in a namespace can do so, such as users with the role `edit` there."""
    lost: list[str] = []
    claims.on_loss = lost.append
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "tools/joex-operator"
    await claims.claim(["shop"])
    assert (claims.holds("shop"), lost) == (False, ["shop"])
    assert claims.problem() == (
        "the release tools/joex-operator manages the namespace shop: joex/joex-operator leaves it alone"
    )
    server.lease["spec"]["holderIdentity"] = ""
    await claims.claim(["shop"])
    assert (claims.holds("shop"), lost, claims.problem()) == (True, ["shop"], None)


async def test_a_namespace_that_is_made_again_has_another_uid(server: Server, claims: NamespaceClaims) -> None:
    assert claims.uid_of("shop") == "uid-1"
    deleted = uids_at_deletion(claims)
    await refuse(server, claims, NoNamespace("namespaces shop not found"))
    assert deleted == ["uid-1"]
    with pytest.raises(FleetError, match="does not act in the namespace shop any more"):
        claims.uid_of("shop")
    server.refusal, server.uid = None, "uid-2"
    await claims.claim(["shop"])
    assert (claims.holds("shop"), claims.uid_of("shop")) == (True, "uid-2")


async def test_a_namespace_that_is_made_again_between_two_renewals_is_another_one(
    server: Server, claims: NamespaceClaims
) -> None:
    deleted = uids_at_deletion(claims)
    server.lease, server.uid = None, "uid-2"
    await claims.claim(["shop"])
    assert (claims.holds("shop"), claims.uid_of("shop"), deleted) == (True, "uid-2", ["uid-1"])


async def test_a_lease_that_is_made_again_is_a_new_claim_of_the_same_namespace(
    server: Server, claims: NamespaceClaims
) -> None:
    deleted = uids_at_deletion(claims)
    server.lease = None
    await claims.claim(["shop"])
    assert (claims.holds("shop"), claims.uid_of("shop"), deleted) == (True, "uid-1", [])


def uids_at_deletion(claims: NamespaceClaims) -> list[str]:
    """The UIDs that a release knows of the namespaces that have been deleted, at that time."""
    found: list[str] = []
    claims.on_deletion = lambda namespace: found.append(claims.uid_of(namespace))
    return found


async def test_a_release_leaves_a_namespace_alone_while_it_cannot_read_its_uid(server: Server) -> None:
    server.hides_namespaces = True
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert not claims.holds("shop")
    assert claims.problem() == "can't claim the namespace shop: namespaces is forbidden"
    server.hides_namespaces = False
    await claims.claim(["shop"])
    assert (claims.holds("shop"), claims.problem()) == (True, None)


async def test_a_lease_that_was_made_by_hand_for_this_release_is_a_claim(server: Server) -> None:
    server.lease = {
        "metadata": {"name": "joex.dev", "uid": "by hand"},
        "spec": {"holderIdentity": "joex/joex-operator"},
    }
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert claims.holds("shop")


async def test_another_release_is_forgotten_with_its_namespace(server: Server) -> None:
    server.lease = {
        "metadata": {"name": "joex.dev", "uid": "by hand"},
        "spec": {"holderIdentity": "other/joex-operator"},
    }
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert claims.problem() == (
        "the release other/joex-operator manages the namespace shop: joex/joex-operator leaves it alone"
    )
    server.lease, server.refusal = None, NoNamespace("namespaces shop not found")
    await claims.claim(["shop"])
    assert claims.problem() is None


async def test_a_claim_that_the_api_server_refuses_to_renew_stops_the_operator_in_no_other_namespace(
    server: Server, claims: NamespaceClaims
) -> None:
    """What others have written into a Lease can make the API server refuse it."""
    lost: list[str] = []
    claims.on_loss = lost.append
    await refuse(server, claims, FORBIDDEN)
    assert (claims.holds("shop"), lost) == (False, ["shop"])
    assert claims.problem() == "can't claim the namespace shop: leases is forbidden"
    server.refusal = None
    await claims.claim(["shop"])
    assert (claims.holds("shop"), claims.problem()) == (True, None)


async def test_namespaces_that_come_and_go_leave_nothing_behind() -> None:
    claims = NamespaceClaims(Server(), "joex/joex-operator")  # type: ignore[arg-type]
    empty = sizes(claims)
    server = Server()
    claims._api = server  # type: ignore[assignment]
    for number in range(3):
        server.uid, server.refusal, server.hides_namespaces = f"uid-{number}", None, True
        await claims.claim(["shop"])  # can't read its UID
        server.hides_namespaces = False
        await claims.claim(["shop"])
        await refuse(server, claims, NoNamespace("namespaces shop not found"))
    assert sizes(claims) == empty


def sizes(claims: NamespaceClaims) -> dict[str, int]:
    return {name: len(some) for name, some in vars(claims).items() if isinstance(some, dict | set | list)}


async def test_a_release_without_the_right_to_claim_says_so(server: Server) -> None:
    server.refusal = FORBIDDEN
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert not claims.holds("shop")
    assert claims.problem() == "can't claim the namespace shop: leases is forbidden"


async def test_a_claim_that_is_not_renewed_in_time_is_over_while_the_api_server_does_not_answer(
    server: Server, claims: NamespaceClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release may have it then, and a request may wait for minutes."""
    for name in ("_DEADLINE", "_RENEW_EVERY", "_LOOK_EVERY", "_JUDGE_EVERY"):
        monkeypatch.setattr(namespace_claims, name, 0.02)
    lost: list[str] = []
    gained = asyncio.Event()
    claims.on_loss = lost.append
    server.answers.clear()
    monkeypatch.setattr(namespace_claims, "_ANSWER_WITHIN", 10 * PATIENCE)
    running = asyncio.create_task(claims.run(gained.set))
    try:
        await eventually(lambda: not claims.holds("shop"), why="the claim is over")
        assert lost == ["shop"]
        assert not gained.is_set()
        server.answers.set()
        async with asyncio.timeout(PATIENCE):
            await gained.wait()
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_lease_about_which_there_is_no_answer_holds_up_no_other_claim_for_long(
    server: Server, claims: NamespaceClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace_claims, "_ANSWER_WITHIN", 0.01)
    server.answers.clear()
    async with asyncio.timeout(PATIENCE):
        await claims.claim(["shop"])
    assert claims.holds("shop")
    again = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE):
        await again.claim(["shop"])
    assert again.problem() == "can't claim the namespace shop: no answer within 0.01 seconds"


@pytest.mark.parametrize("without", [{}, {"spec": None}])
async def test_a_lease_that_was_made_again_without_a_spec_is_nobodys_to_release(
    server: Server, without: dict[str, Any]
) -> None:
    """`kubectl create` accepts one; the operator started over for it with "KeyError: 'spec'"."""
    lock = LeaseLock(server, name="joex.dev", namespace="shop", identity="one", duration=15.0)  # type: ignore[arg-type]
    server.lease = made = {"metadata": {"name": "joex.dev", "uid": "by hand"}, **without}
    await lock.release()
    assert server.lease is made
    assert await lock.acquire()
