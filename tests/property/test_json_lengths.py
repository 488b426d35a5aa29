"""What is refused by its lengths alone is too long as jsonb."""

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from joex.core.json_values import is_longer

pytestmark = pytest.mark.property

texts = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(texts, max_size=5)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(texts, max_size=2), inner),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values)
async def test_a_value_that_is_longer_by_its_lengths_is_longer_as_jsonb(connection: asyncpg.Connection, value):
    text = to_json(value, inf_nan_mode="null").decode()
    size = await connection.fetchval("SELECT pg_column_size($1::text::jsonb #> '{}')", text)
    assert not is_longer(value, size)
