"""What a release does about its claim of a namespace when the API server refuses it."""

from typing import Any

import pytest

from joex_operator.cluster.kubernetes_api import ApiError, NotFound
from joex_operator.cluster.namespace_claims import NamespaceClaims
from joex_operator.control.fleet import FleetError

TERMINATING = ApiError("unable to create new content in namespace shop because it is being terminated")
FORBIDDEN = ApiError("leases is forbidden")


class Server:
    """An API server with the Leases of one namespace, or one that refuses to make them."""

    def __init__(self) -> None:
        self.refusal: ApiError | None = None
        self.lease: dict[str, Any] | None = None

    async def get(self, path: str) -> dict[str, Any]:
        return self._found(path)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as the API has it
        if self.refusal is not None:
            raise self.refusal
        self.lease = body
        return body

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._found(path)
        self.lease = body
        return body

    def _found(self, path: str) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound(path)
        return self.lease


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
        lock.answered_at = -1000.0
        await claims.claim(["shop"])


async def test_a_claim_lasts_while_its_namespace_is_being_deleted(server: Server, claims: NamespaceClaims) -> None:
    await refuse(server, claims, TERMINATING)
    assert claims.holds("shop")
    await refuse(server, claims, NotFound("namespaces shop not found"))
    assert claims.problem() is None
    assert not claims.holds("shop")


async def test_a_lease_that_was_made_by_hand_for_this_release_is_a_claim(server: Server) -> None:
    server.lease = {"metadata": {"name": "joex.dev"}, "spec": {"holderIdentity": "joex/joex-operator"}}
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert claims.holds("shop")


async def test_another_release_is_forgotten_with_its_namespace(server: Server) -> None:
    server.lease = {"metadata": {"name": "joex.dev"}, "spec": {"holderIdentity": "other/joex-operator"}}
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert claims.problem() == (
        "the release other/joex-operator manages the namespace shop: joex/joex-operator leaves it alone"
    )
    server.lease, server.refusal = None, NotFound("namespaces shop not found")
    await claims.claim(["shop"])
    assert claims.problem() is None


async def test_a_release_that_may_no_longer_claim_starts_over(server: Server, claims: NamespaceClaims) -> None:
    with pytest.raises(FleetError, match="can't renew the claim of the namespace shop: leases is forbidden"):
        await refuse(server, claims, FORBIDDEN)


async def test_a_release_without_the_right_to_claim_says_so(server: Server) -> None:
    server.refusal = FORBIDDEN
    claims = NamespaceClaims(server, "joex/joex-operator")  # type: ignore[arg-type]
    await claims.claim(["shop"])
    assert not claims.holds("shop")
    assert claims.problem() == "can't claim the namespace shop: leases is forbidden"
