"""``joex operator`` with other times than users' operators have, so that a test need not wait for these.

``JOEX_TEST_TIMES`` has their seconds as JSON, such as ``{"leader_election._DURATION": 5}``, by the names of the modules
in `_MODULES` and of their constants.
"""

import json
import os
import sys

from joex.cli import main
from joex_operator.cluster import leader_election, namespace_claims

_MODULES = {"leader_election": leader_election, "namespace_claims": namespace_claims}


def _set(name: str, seconds: float) -> None:
    module, _, constant = name.partition(".")
    before = getattr(_MODULES[module], constant)
    setattr(_MODULES[module], constant, type(before)(seconds))


if __name__ == "__main__":
    for name, seconds in json.loads(os.environ["JOEX_TEST_TIMES"]).items():
        _set(name, seconds)
    sys.argv[0] = "joex"
    main()
