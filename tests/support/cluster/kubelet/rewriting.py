"""Rewrites the texts of a container with the paths and addresses that replace mounts and the pod's network. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ALL_ADDRESSES = re.compile(r"(?<![\w.])0\.0\.0\.0(?![\w.])|\[::\]")
_SERVICE = re.compile(r"(?<![\w.-])([a-z][a-z0-9-]*)\.([a-z0-9][a-z0-9-]*)\.svc(?:\.cluster\.local)?(?![\w-]|\.\w)")
_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")

Service = tuple[str, str]
"""Name and namespace."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Put in variables, as Kubernetes does: ``$(NAME)``; unknown ones stay; ``$$`` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def services(text: str) -> set[Service]:
    """The services that a text names, as in ``NAME.NAMESPACE.svc``.

    >>> sorted(services("http://a.b.svc:80,c.d.svc.cluster.local/ e.svc f.g.svc.example"))
    [('a', 'b'), ('c', 'd')]
    """
    return {(name, namespace) for name, namespace in _SERVICE.findall(text)}


@dataclass(frozen=True)
class Rewriting:
    """The pod's address, the mounts of a container, by their paths, and the addresses of services."""

    address: str
    mounts: Mapping[str, Path] = field(default_factory=dict)
    services: Mapping[Service, str] = field(default_factory=dict)

    def __call__(self, text: str) -> str:
        """The text with local paths and the pod's own address.

        >>> there = Rewriting("127.9.0.1", {"/etc/joex": Path("/pod/v1"), "/etc/joex/more": Path("/pod/v2")})
        >>> there("--file=/etc/joex/a:/etc/joex/more/b:/etc/joexed:/x/etc/joex")
        '--file=/pod/v1/a:/pod/v2/b:/etc/joexed:/x/etc/joex'
        >>> there("http://0.0.0.0:80 and 10.0.0.0")
        'http://127.9.0.1:80 and 10.0.0.0'
        """
        text = _ALL_ADDRESSES.sub(self.address, text)
        text = _SERVICE.sub(lambda found: self.services.get((found[1], found[2]), found[0]), text)
        paths = sorted((path for path in self.mounts if path != "/tmp"), key=len, reverse=True)  # noqa: S108 - a mount
        if not paths:
            return text
        anywhere = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, paths))})(?![\w.-])")
        return anywhere.sub(lambda found: str(self.mounts[found[1]]), text)

    def variables(self) -> dict[str, str]:
        """Variables for the parts that can't be rewritten."""
        temporary = self.mounts.get("/tmp")  # noqa: S108 - a mount
        return {"JOEX_TEST_POD_IP": self.address, **({"TMPDIR": str(temporary)} if temporary else {})}
