"""The configurations of images: entrypoint, arguments, environment, folder. The tests write them into a file."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Image:
    """The configuration of an image."""

    entrypoint: list[str] = dataclasses.field(default_factory=list)
    command: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    folder: str = ""
    before: list[str] = dataclasses.field(default_factory=list)
    """A prefix of the command, which starts the container's program as another user and as the first process of a
    namespace: the program is the only child of the process that is started."""
    forked: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The programs that are forked with Joex loaded: by name the `loaded.address` and the file to run."""

    def argv(self, container: Mapping[str, Any]) -> list[str]:
        """The command of a container of this image; empty: neither the image nor the container has one.

        >>> image = Image(["joex"], ["executor"])
        >>> image.argv({}), image.argv({"args": ["--help"]}), image.argv({"command": ["sh"]})
        (['joex', 'executor'], ['joex', '--help'], ['sh'])
        """
        if container.get("command"):
            return [*container["command"], *container.get("args", [])]
        return [*self.entrypoint, *(container.get("args") or self.command)]


def write(path: Path, images: Mapping[str, Image]) -> None:
    """Write the configurations of all images."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({name: dataclasses.asdict(image) for name, image in images.items()}))
    aside.replace(path)


def find(path: Path, reference: str) -> Image:
    """The image with a name: as it is given, without its tag or digest, or its last part; an empty one if unknown."""
    known = json.loads(path.read_text())
    repository = untagged(reference)
    for name in (reference, repository, repository.rpartition("/")[2]):
        if name in known:
            return Image(**known[name])
    return Image()


def untagged(reference: str) -> str:
    """A reference without tag and digest.

    >>> untagged("registry.example:5000/joex:1.0@sha256:00")
    'registry.example:5000/joex'
    """
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
