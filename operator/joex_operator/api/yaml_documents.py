"""Reads YAML that somebody has written: only what JSON has, which is what an API server would get.

Each error is one line with the place. Aliases are bounded, because a few hundred bytes of them are millions of objects,
and so are levels: Python's stack has room for a thousand calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

from joex.errors import ConfigError

_DEEPEST = 210
"""Levels: a little more than arguments may have."""
_MOST_BY_ALIASES = 100_000
"""Characters and values that the aliases of a file may add."""
_LONGEST_NUMBER = 1000
_SHOWN = 40
_TAG = "tag:yaml.org,2002:"


def read_documents(text: str) -> list[Any]:
    """The documents of a text, which may be empty (None).

    Raises:
        ConfigError: it is no YAML, or more than JSON has; the message begins with the place, if that is known.
    """
    try:
        loader = _Loader(text)
        try:
            return list(_documents(loader))
        except (ValueError, OverflowError) as error:  # of the scanner
            raise ConfigError(f"{_place(loader.get_mark())}there is no such character or version") from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{_place(error.problem_mark)}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from error


def _documents(loader: yaml.SafeLoader) -> Iterator[Any]:
    while loader.check_data():  # type: ignore[no-untyped-call]
        yield loader.get_data()


def _place(mark: yaml.Mark | None) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML would silently take the last, and what is no JSON.

    A time without quotes is text, as an API server gets it.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base's
        first: [(tag, pattern) for tag, pattern in some if tag != f"{_TAG}timestamp"]
        for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012 - likewise
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_TAG) in ("null", "bool", "int", "float", "seq", "map", "str")
    }

    def __init__(self, text: str) -> None:
        self._depth = self._size = self._by_aliases = 0
        self._sizes: dict[yaml.Node, int] = {}
        super().__init__(text)

    def compose_node(self, parent: yaml.Node | None, index: int) -> Any:
        """As the base's, within bounds."""
        before, mark = self._size, self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node: Any = super().compose_node(parent, index)
            if node not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias of what it is a part of", mark)
            self._by_aliases += self._sizes[node]
            self._size += self._sizes[node]
            if self._by_aliases > _MOST_BY_ALIASES:
                problem = f"aliases that add more than {_MOST_BY_ALIASES:,} characters and values"
                raise yaml.composer.ComposerError(None, None, problem, mark)
            return node
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"more than {_DEEPEST} levels", mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        self._depth -= 1
        self._size += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        self._sizes[node] = self._size - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as it is called
        """As the base's, of values that JSON has."""
        kind = node.tag.removeprefix(_TAG)
        if kind in ("int", "float") and len(node.value) > _LONGEST_NUMBER:
            raise _not_json(node, kind)
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # no half of a pair of UTF-16
        except (ValueError, LookupError, OverflowError) as error:
            raise _not_json(node, kind) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise _not_json(node, kind)
        return value


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuse a key that is there twice; before a constructor adds the keys that the mapping merges."""
    keys: set[str] = set()
    for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
        if key.value in keys:
            raise yaml.composer.ComposerError(None, None, f"duplicate key {key.value!r}", key.start_mark)
        keys.add(key.value)


def _not_json(node: yaml.Node, kind: str) -> yaml.YAMLError:
    problem = f"expected {kind} as in JSON; got {node.value[:_SHOWN]!r}"
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
