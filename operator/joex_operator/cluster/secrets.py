"""Reads the URLs of the pools' databases from their secrets."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

from joex.core.url import check_database_url
from joex_operator.api.names import ALLOWED
from joex_operator.api.objects import Pool
from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi, NotFound, path_of
from joex_operator.control.fleet import UrlUnknown
from joex_operator.metrics import database_name

_KEPT_FOR = 300.0
_RECHECKED_IN = 10.0
_FORGOTTEN_AFTER = 3600.0
"""Seconds for which the operator could not read a secret again: no pool names it any more."""
_DIGESTING = ThreadPoolExecutor(1)
"""A thread of its own: those of asyncio may all wait for the names of hosts that pools have in their URLs."""


class Secrets:
    """Reads the secrets that pools name, one by one, and caches each for minutes or until `recheck`."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._known: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}
        self._digests: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._digesting = asyncio.Lock()

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database.

        Raises:
            UrlUnknown: the secret or its key is missing, the secret does not allow pools to use it, or its value is
                no URL.
        """
        ref = pool.spec.database
        field = f"spec.database: secret {ref.secret_name!r}"
        try:
            data = await self._read(pool.namespace, ref.secret_name)
        except NotFound as error:
            problem = f"{field} does not exist in namespace {pool.namespace!r}"
            raise UrlUnknown("SecretMissing", problem, is_withdrawn=True) from error
        except ApiError as error:
            raise UrlUnknown("SecretUnreadable", f"{field}: {error}") from error
        if ref.secret_key not in data:
            self._expire(pool)
            raise UrlUnknown("SecretKeyMissing", f"{field} has no key {ref.secret_key!r}")
        await self._prepare_digest(pool, data[ref.secret_key])
        try:
            return _url_in(data[ref.secret_key])
        except UnicodeError:
            problem = "expected text in UTF-8"
        except (ValueError, binascii.Error) as error:
            problem = str(error)
        self._expire(pool)
        # (Outside of the except blocks: an error of the decoder, which has all bytes, would be the context of this.)
        raise UrlUnknown("InvalidURL", f"{field}, key {ref.secret_key!r}: {problem}")

    def digest(self, pool: Pool) -> str:
        """A digest of the URL that was read last; empty: none was read.

        It becomes part of an annotation, which more users may read than the secret. So it is slow to compute, and other
        for each pool: who reads it can't try passwords in numbers.
        """
        content = self._content(pool)
        if content is None:
            return ""
        known = self._digests.get((pool.namespace, pool.name))
        if known is None or known[:2] != (pool.uid, content):  # another pool has just read another content
            known = self._digests[pool.namespace, pool.name] = (pool.uid, content, _slow_digest(content, pool.uid))
        return known[2]

    async def _prepare_digest(self, pool: Pool, content: str) -> None:
        """Compute what `digest` returns, in a thread: those of many pools take longer than a lease may wait.

        One at a time, because each takes 16 MiB.
        """
        if self._is_digested(pool, content):
            return  # without a turn: the digests of others may need all of them
        async with self._digesting:
            if not self._is_digested(pool, content):
                loop = asyncio.get_running_loop()
                made = await loop.run_in_executor(_DIGESTING, _slow_digest, content, pool.uid)
                self._digests[pool.namespace, pool.name] = (pool.uid, content, made)

    def _is_digested(self, pool: Pool, content: str) -> bool:
        return self._digests.get((pool.namespace, pool.name), ())[:2] == (pool.uid, content)

    def database(self, pool: Pool) -> str:
        """The name of the database of the URL that was read last, that of `digest`; empty: none was read."""
        content = self._content(pool)
        try:
            return "" if content is None else database_name(_url_in(content))
        except ValueError:
            return ""

    def recheck(self, pool: Pool) -> None:
        """Read the secret of a pool again soon, because its database has failed, or an executor is not ready."""
        self._expire(pool, _RECHECKED_IN)

    def forget(self, namespace: str, pool: str) -> None:
        """Forget a pool that is gone."""
        self._digests.pop((namespace, pool), None)

    def _content(self, pool: Pool) -> str | None:
        _, data = self._known.get((pool.namespace, pool.spec.database.secret_name), (0.0, {}))
        return data.get(pool.spec.database.secret_key)

    def _expire(self, pool: Pool, seconds: float = 0.0) -> None:
        """Read the secret of a pool again after so many seconds at most. What was read stays: others may use it."""
        key = (pool.namespace, pool.spec.database.secret_name)
        if (known := self._known.get(key)) is not None:
            self._known[key] = (min(known[0], time.monotonic() + seconds), known[1])

    async def _read(self, namespace: str, name: str) -> dict[str, str]:
        until, data = self._known.get((namespace, name), (0.0, {}))
        if time.monotonic() < until:
            return data
        secret = await self._api.get(path_of(namespace, "secrets", name))
        label, value = ALLOWED
        if (secret["metadata"].get("labels") or {}).get(label) != value:
            # Before anything else about the secret, because the author of a pool may not be one who may read it.
            raise UrlUnknown(
                "SecretNotAllowed",
                f"spec.database: secret {name!r} is not for pools. To allow it: "
                f"kubectl --namespace {namespace} label secret {name} {label}={value}",
                is_refusal=True,
                is_withdrawn=True,
            )
        data = secret.get("data") or {}
        now = time.monotonic()
        self._known = {key: one for key, one in self._known.items() if one[0] > now - _FORGOTTEN_AFTER}
        self._known[namespace, name] = (now + _KEPT_FOR, data)
        return data


def _slow_digest(content: str, salt: str) -> str:
    return hashlib.scrypt(content.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=8).hex()


def _url_in(content: str) -> str:
    """The URL in a value of a secret.

    Raises:
        ValueError: it is no base64, no text or no URL.
    """
    url = base64.b64decode(content, validate=True).decode().strip()
    check_database_url(url)
    return url
