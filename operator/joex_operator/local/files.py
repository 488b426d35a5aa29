"""The files of ``joex up``: JoexPools and PeriodicTasks, in the format of a cluster's manifests.

It refuses what an API server would refuse, in one line that names the file, the document and the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joex.errors import ConfigError
from joex_operator.api.names import API_VERSION
from joex_operator.api.objects import parse_periodic, parse_pool
from joex_operator.api.spec import JoexPoolSpec, PeriodicTaskSpec
from joex_operator.api.yaml_documents import read_documents
from joex_operator.local.environment import variables

_FIELDS = {"apiVersion", "kind", "metadata", "spec", "status"}
_KINDS = ("JoexPool", "PeriodicTask")
_FIXED = {"JoexPool": "database", "PeriodicTask": "pool"}


@dataclass(frozen=True, slots=True)
class Document:
    """An object of a file. ``place``: its file and document number, for messages."""

    place: str
    manifest: Mapping[str, Any]
    spec: JoexPoolSpec | PeriodicTaskSpec

    @property
    def kind(self) -> str:
        """The kind of the object."""
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.manifest["metadata"]["name"])


Documents = dict[tuple[str, str], Document]
"""All objects, by kind and name."""


def read_files(paths: Iterable[Path], namespace: str) -> Documents:
    """The objects of these files, all in this namespace, whichever they name.

    Raises:
        ConfigError: one line about the first invalid object.
    """
    found: Documents = {}
    for path in paths:
        for document in _read_file(path, namespace):
            key = document.kind, document.name
            if key in found:
                raise ConfigError(f"{document.place}: metadata.name: {found[key].place} has the same name and kind")
            found[key] = document
    if not any(kind == "JoexPool" for kind, _ in found):
        raise ConfigError(f"{', '.join(map(str, paths))}: no JoexPool")
    _check_pools(found)
    return found


def check_changes(before: Documents, after: Documents) -> None:
    """Check that no immutable field has changed.

    Raises:
        ConfigError: one has.
    """
    for key, document in after.items():
        fixed, old = _FIXED[document.kind], before.get(key)
        if old is not None and getattr(old.spec, fixed) != getattr(document.spec, fixed):
            raise ConfigError(f"{document.place}: spec.{fixed}: can't be changed: give it another name")


def _read_file(path: Path, namespace: str) -> Iterator[Document]:
    for number, manifest in enumerate(load_yaml(path), start=1):
        if manifest is None:
            continue
        place = f"{path}, document {number}"
        try:
            yield _document(place, manifest, namespace)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error


def load_yaml(path: Path) -> list[Any]:
    """The documents of a YAML file.

    Raises:
        ConfigError: the file is missing or is no YAML; the message says where.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        return read_documents(text)
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from error


def _document(place: str, manifest: Any, namespace: str) -> Document:
    if not isinstance(manifest, Mapping):
        raise ConfigError(f"expected an object; got {manifest!r}")
    kind, metadata = manifest.get("kind"), manifest.get("metadata")
    if kind not in _KINDS:
        raise ConfigError(f"kind: expected {' or '.join(_KINDS)}, of {API_VERSION}; got {kind!r}")
    unknown = [key for key in manifest if key not in _FIELDS]
    if unknown:
        raise ConfigError(f"{unknown[0]}: there is no such field")
    if not isinstance(metadata, Mapping):
        raise ConfigError("metadata: expected an object, with a name")
    own = {**manifest, "metadata": {**metadata, "namespace": namespace}}
    if kind == "PeriodicTask":
        return Document(place, own, parse_periodic(own).spec)
    spec = parse_pool(own).spec
    variables(spec)  # raises SpecError if spec.template is invalid
    return Document(place, own, spec)


def _check_pools(documents: Documents) -> None:
    """Refuse a PeriodicTask of a pool that the files lack: it would never run."""
    for document in documents.values():
        spec = document.spec
        if isinstance(spec, PeriodicTaskSpec) and ("JoexPool", spec.pool) not in documents:
            raise ConfigError(f"{document.place}: spec.pool: there is no JoexPool {spec.pool!r} in these files")
