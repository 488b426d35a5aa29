"""``joex`` in the containers of the local cluster: the program itself, which resolves the services' names.

There is no DNS, and the kubelet replaces names of services by addresses only when it starts a container. But the
operator reads the URLs of databases in secrets, through the API. In a pod of a real cluster the resolver would find the
names; here they are found in ``JOEX_TEST_HOSTS``, a file like ``/etc/hosts`` that `service_proxy.py` writes. Other
names go the usual way. It runs by its path, since a container's PYTHONPATH need not have the tests; `local.py` puts it
on the PATH.
"""

import os
import sys
from pathlib import Path

from joex.cli import main
from joex.store import name_lookups

_resolve = name_lookups.resolve


def resolve(name: str) -> list[str]:
    """Resolve the names of services from the file, all others as usual."""
    return _resolve(_addresses().get(name, name))


def _addresses() -> dict[str, str]:
    lines = Path(os.environ["JOEX_TEST_HOSTS"]).read_text().splitlines()
    return {name: address for address, *names in map(str.split, lines) for name in names}


if __name__ == "__main__":
    name_lookups.resolve = resolve
    sys.argv[0] = "joex"
    main()
