"""Marks of tests that the oldest libraries can't pass."""

import pytest

from joex.bounded_validation import ENDS_EARLY

ends_early = pytest.mark.skipif(not ENDS_EARLY, reason="this pydantic can't end the check of a dict at a wrong member")
