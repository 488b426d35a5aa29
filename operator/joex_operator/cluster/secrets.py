"""The URLs of the pools' databases, from their secrets."""

from __future__ import annotations

import base64
import binascii
import time

from joex.core.url import check_database_url
from joex_operator.api.objects import Pool
from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi, path_of
from joex_operator.control.fleet import UrlUnknown

_KEPT_FOR = 300.0
_DOUBTED_FOR = 10.0


class Secrets:
    """Reads secrets one by one, and only those that pools name; each again after minutes, or when it is doubted."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._known: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database.

        Raises:
            UrlUnknown: secret or key is missing, or holds something else.
        """
        ref = pool.spec.database
        field = f"spec.database: secret {ref.secret_name!r}"
        try:
            data = await self._read(pool.namespace, ref.secret_name)
        except ApiError as error:
            if error.is_missing:
                raise UrlUnknown("SecretMissing", f"{field} does not exist in namespace {pool.namespace!r}") from error
            raise UrlUnknown("SecretUnreadable", f"{field}: {error}") from error
        if ref.secret_key not in data:
            self._forget(pool)
            raise UrlUnknown("SecretKeyMissing", f"{field} has no key {ref.secret_key!r}")
        try:
            url = base64.b64decode(data[ref.secret_key], validate=True).decode().strip()
            check_database_url(url)
        except (ValueError, binascii.Error) as error:
            self._forget(pool)
            raise UrlUnknown("InvalidURL", f"{field}, key {ref.secret_key!r}: {error}") from error
        return url

    def doubt(self, pool: Pool) -> None:
        """The database has refused: read the secret again soon."""
        key = (pool.namespace, pool.spec.database.secret_name)
        until, data = self._known.get(key, (0.0, {}))
        if data:
            self._known[key] = (min(until, time.monotonic() + _DOUBTED_FOR), data)

    def _forget(self, pool: Pool) -> None:
        """What is in the secret is of no use: the next look sees whether somebody has mended it."""
        self._known.pop((pool.namespace, pool.spec.database.secret_name), None)

    async def _read(self, namespace: str, name: str) -> dict[str, str]:
        until, data = self._known.get((namespace, name), (0.0, {}))
        if time.monotonic() < until:
            return data
        secret = await self._api.get(path_of(namespace, "secrets", name))
        data = secret.get("data") or {}
        self._known[namespace, name] = (time.monotonic() + _KEPT_FOR, data)
        return data
