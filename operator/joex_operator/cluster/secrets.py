"""Reads the URLs of the pools' databases from their secrets."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from joex.core.url import check_database_url
from joex.places import Places
from joex_operator.api.names import ALLOWED
from joex_operator.api.objects import Pool
from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi, NotFound, path_of
from joex_operator.control.fleet import UrlUnknown
from joex_operator.metrics import database_name

_KEPT_FOR = 300.0
_RECHECKED_IN = 10.0
_LONGEST = 64_000
"""Of a value that is kept, in characters of base64: a URL is shorter, and a secret may have a megabyte."""
_DIGESTING = ThreadPoolExecutor(1)
"""A thread of its own: those of asyncio may all wait for the names of hosts that pools have in their URLs."""


class _Value(NamedTuple):
    """A value of a secret."""

    namespace: str
    secret: str
    key: str


class _Digest(NamedTuple):
    """The digest of a value, for the pool with this uid."""

    uid: str
    content: str
    digest: str


class Secrets:
    """Reads the secrets that pools name, one by one, and caches each value for minutes or until `recheck`.

    It keeps nothing else of a secret, and a value only while a pool names it: their authors can make many large ones.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._values: dict[_Value, tuple[float, str]] = {}
        self._named: dict[tuple[str, str], _Value] = {}  # the value of each pool
        self._pools: Counter[_Value] = Counter()  # how many name it
        self._digests: dict[tuple[str, str], _Digest] = {}  # of each pool, of what its last reconcile has read
        self._digesting: Places[str] = Places(1)  # by namespaces

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database.

        Raises:
            UrlUnknown: the secret or its key is missing, the secret does not allow pools to use it, or its value is
                no URL.
        """
        ref = pool.spec.database
        field = f"spec.database: secret {ref.secret_name!r}"
        try:
            content = await self._read(self._name_of(pool))
        except NotFound as error:
            problem = f"{field} does not exist in namespace {pool.namespace!r}"
            raise UrlUnknown("SecretMissing", problem, is_withdrawn=True) from error
        except ApiError as error:
            raise UrlUnknown("SecretUnreadable", f"{field}: {error}") from error
        if content is None:
            raise UrlUnknown("SecretKeyMissing", f"{field} has no key {ref.secret_key!r}")
        if len(content) <= _LONGEST:
            await self._prepare_digest(pool, content)
        try:
            return _url_in(content)
        except UnicodeError:
            problem = "expected text in UTF-8"
        except (ValueError, binascii.Error) as error:
            problem = str(error)
        self._expire(pool)
        # (Outside of the except blocks: an error of the decoder, which has all bytes, would be the context of this.)
        raise UrlUnknown("InvalidURL", f"{field}, key {ref.secret_key!r}: {problem}")

    def digest(self, pool: Pool) -> str:
        """A digest of the URL that was last read for this pool; empty: none was read.

        It becomes part of an annotation, which more users may read than the secret. So it is slow to compute, and other
        for each pool: who reads it can't try passwords in numbers.
        """
        return "" if (known := self._digest_of(pool)) is None else known.digest

    async def _prepare_digest(self, pool: Pool, content: str) -> None:
        """Compute what `digest` returns, in a thread: those of many pools take longer than a lease may wait.

        One at a time, because each takes 16 MiB; of the namespaces that wait, each has its turn.
        """
        if self._is_digested(pool, content):
            return  # without a turn: the digests of others may need all of them
        async with self._digesting.one_of(pool.namespace):
            if not self._is_digested(pool, content):
                loop = asyncio.get_running_loop()
                made = await loop.run_in_executor(_DIGESTING, _slow_digest, content, pool.uid)
                if (pool.namespace, pool.name) in self._named:  # it may have gone meanwhile
                    self._digests[pool.namespace, pool.name] = _Digest(pool.uid, content, made)

    def _digest_of(self, pool: Pool) -> _Digest | None:
        known = self._digests.get((pool.namespace, pool.name))
        return known if known is not None and known.uid == pool.uid else None

    def _is_digested(self, pool: Pool, content: str) -> bool:
        known = self._digest_of(pool)
        return known is not None and known.content == content

    def database(self, pool: Pool) -> str:
        """The name of the database of the URL of `digest`; empty: none was read."""
        known = self._digest_of(pool)
        try:
            return "" if known is None else database_name(_url_in(known.content))
        except ValueError:
            return ""

    def recheck(self, pool: Pool) -> None:
        """Read the secret of a pool again soon, because its database has failed, or an executor is not ready."""
        self._expire(pool, _RECHECKED_IN)

    def forget(self, namespace: str, pool: str) -> None:
        """Forget a pool that is gone, and its value, if no other pool names that."""
        self._digests.pop((namespace, pool), None)
        value = self._named.pop((namespace, pool), None)
        if value is None:
            return
        self._pools[value] -= 1
        if not self._pools[value]:
            del self._pools[value]
            self._values.pop(value, None)

    def _name_of(self, pool: Pool) -> _Value:
        """The value that a pool names, which it holds from now on."""
        ref = pool.spec.database
        value = _Value(pool.namespace, ref.secret_name, ref.secret_key)
        before = self._named.get((pool.namespace, pool.name))
        if before != value:
            self.forget(pool.namespace, pool.name)
            self._named[pool.namespace, pool.name] = value
            self._pools[value] += 1
        return value

    def _expire(self, pool: Pool, seconds: float = 0.0) -> None:
        """Read the value of a pool again after so many seconds at most. What was read stays: others may use it."""
        value = self._named.get((pool.namespace, pool.name))
        if value is not None and (known := self._values.get(value)) is not None:
            self._values[value] = (min(known[0], time.monotonic() + seconds), known[1])

    async def _read(self, value: _Value) -> str | None:
        """The content of a value, None: its secret has no such key."""
        known = self._values.get(value)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        secret = await self._api.get(path_of(value.namespace, "secrets", value.secret))
        label, allowed = ALLOWED
        if (secret["metadata"].get("labels") or {}).get(label) != allowed:
            # Before anything else about the secret, because the author of a pool may not be one who may read it.
            raise UrlUnknown(
                "SecretNotAllowed",
                f"spec.database: secret {value.secret!r} is not for pools. To allow it: "
                f"kubectl --namespace {value.namespace} label secret {value.secret} {label}={allowed}",
                is_refusal=True,
                is_withdrawn=True,
            )
        content: str | None = (secret.get("data") or {}).get(value.key)
        self._values.pop(value, None)
        if content is not None and len(content) <= _LONGEST and value in self._pools:
            self._values[value] = (time.monotonic() + _KEPT_FOR, content)
        return content


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
