"""What pydantic may need to say what is wrong with arguments: the quick look never says less than the exact one."""

import json

from hypothesis import given
from hypothesis import strategies as st

from joex.arguments import _bytes_of_problems, _most_of_problems

texts = st.text(st.sampled_from('a"\\:,[]{} \n\u00fc\U0001f600'), max_size=6)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(texts, parts, max_size=4),
    max_leaves=40,
)


@given(st.dictionaries(texts, values, max_size=3), st.booleans(), st.booleans())
def test_the_quick_look_never_says_less(args, is_ascii, is_packed):
    written = json.dumps(args, ensure_ascii=is_ascii, separators=(",", ":") if is_packed else None)
    assert _most_of_problems(written) >= _bytes_of_problems(written)
