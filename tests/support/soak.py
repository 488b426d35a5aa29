"""What `make soak`, the long run of all tests, has more of: it sets ``JOEX_TEST_SOAK=1``."""

import os

SOAK = os.environ.get("JOEX_TEST_SOAK") == "1"


def examples(number: int) -> int:
    """How many examples a property is tried with: all in a long run, otherwise a third."""
    return number if SOAK else -(-number // 3)
