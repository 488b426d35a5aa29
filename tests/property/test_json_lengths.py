"""What is refused by its lengths alone is too long as JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from joex.core.json_values import is_longer

pytestmark = pytest.mark.property

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(max_size=2), inner),
)


@given(values)
def test_a_value_that_is_longer_by_its_lengths_is_longer_as_json(value):
    assert not is_longer(value, len(to_json(value, inf_nan_mode="null")))
