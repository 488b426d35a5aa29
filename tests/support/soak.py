"""What `make soak`, the long run of all tests, has more of: it sets ``JOEX_TEST_SOAK=1``."""

import os

SOAK = os.environ.get("JOEX_TEST_SOAK") == "1"
