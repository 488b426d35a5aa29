"""Values of the tuple layer: their bytes sort as the values do, and each form gives the value back."""

import math
import struct
from uuid import UUID

import pytest
from fdb.tuple import SingleFloat
from hypothesis import assume, given
from hypothesis import strategies as st

from joex.core import tuples
from joex.core.tuples import Versionstamp

pytestmark = pytest.mark.property

singles = st.floats(width=32, allow_nan=False).map(SingleFloat)
stamps = st.builds(
    Versionstamp, st.binary(min_size=10, max_size=10).filter(lambda b: b != b"\xff" * 10), st.integers(0, 65535)
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.uuids()
    | singles
    | stamps
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


def nested(depth):
    """This many nested tuples."""
    value: tuple[object, ...] = ()
    for _ in range(depth - 1):
        value = (value,)
    return value


def same(one, other):
    """Equal, and of the same type all the way down: 1, 1.0 and True are three values here, and so are 0.0 and -0.0."""
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, float) and struct.pack(">d", one) == struct.pack(">d", other)
    return type(one) is type(other) and one == other


@given(values)
def test_a_value_comes_back_from_its_bytes(value):
    assert same(tuples.unpack(tuples.pack("id", value)), value)


@given(
    st.binary(min_size=1, max_size=40) | st.sampled_from([b"\x05" * 1000, b"\x02\xff\x00", b"\x15\x00", b"\x14\x14"])
)
def test_any_bytes_are_read_and_come_back(packed):
    value = tuples.unpack(packed)
    assert tuples.pack("id", value) == packed
    again = tuples.from_json("id", tuples.to_json(value))
    assert tuples.pack("id", again) == packed
    assert tuples.pack("type", tuples.from_name(tuples.to_name("type", value))) == packed


def test_a_part_of_a_tuple_is_a_value():
    with pytest.raises(ValueError, match="packed: not a part of a tuple"):
        tuples.pack("id", (1, tuples.Packed(b"\xff")))


@pytest.mark.parametrize("said", ["", "f", "xy"])
def test_json_of_bytes_that_are_none_is_refused(said):
    with pytest.raises(ValueError, match="id: not a packed"):
        tuples.from_json("id", {"packed": said})


@pytest.mark.parametrize("said", [{"packed": "15" * 1001}, [1, [{"packed": "15" * 600}], {"packed": "15" * 401}]])
def test_json_of_more_packed_bytes_than_fit_is_refused_before_they_are_read(said, monkeypatch):
    read: list[bytes] = []
    monkeypatch.setattr(tuples, "unpack", read.append)
    with pytest.raises(ValueError, match=r"^id: at most 1000 bytes when packed; got 1001$"):
        tuples.from_json("id", said)
    assert not read


@given(values)
def test_a_value_comes_back_from_its_json(value):
    assert same(tuples.from_json("id", tuples.to_json(value)), value)


@given(values)
def test_a_value_comes_back_from_its_name(value):
    assert same(tuples.from_name(tuples.to_name("type", value)), value)


@given(
    st.text(max_size=20)
    | st.builds("#{}".format, st.text(max_size=20) | st.integers() | st.floats())
    | values.map(lambda value: tuples.to_name("type", value))
    | st.builds(lambda value: tuples.to_name("type", tuples.to_name("type", value)), values)
)
def test_each_text_is_the_name_of_one_value(text):
    """Of any queue and task: submitted jobs have a type, by which callers can find them."""
    assume("\0" not in text)
    assert tuples.to_name("type", tuples.from_name(text)) == text


@given(values, values)
def test_different_values_have_different_names(one, other):
    assert (tuples.to_name("type", one) == tuples.to_name("type", other)) is (
        tuples.pack("type", one) == tuples.pack("type", other)
    )


@given(st.integers(-(2**200), 2**200), st.integers(-(2**200), 2**200))
def test_bytes_order_as_integers_do(one, other):
    assert (tuples.pack("id", one) < tuples.pack("id", other)) is (one < other)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_bytes_order_as_floats_do(one, other):
    if one != other:
        assert (tuples.pack("id", one) < tuples.pack("id", other)) is (one < other)


@given(st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=8), max_size=4))
def test_bytes_order_as_tuples_of_texts_do(one, other):
    def key(texts):
        return [text.encode() for text in texts]

    assert (tuples.pack("id", tuple(one)) < tuples.pack("id", tuple(other))) is (key(one) < key(other))


@given(values)
def test_no_value_is_above_the_highest_rank(value):
    assert tuples.pack_priority(value) == tuples.pack("priority", value) < b"\xff"


def test_numbers_that_are_not_finite_have_a_form_in_json():
    assert tuples.to_json((math.inf,)) == [{"double": "7ff0000000000000"}]
    assert math.isnan(tuples.from_json("id", tuples.to_json(math.nan)))


def test_a_uuid_in_json_is_an_object():
    value = UUID(int=7)
    assert tuples.to_json(value) == {"uuid": str(value)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, "id: not a value that FoundationDB's tuple layer orders"),
        (2**3000, "id: not a value that FoundationDB's tuple layer orders"),
        ("\ud800", "id: not a value that FoundationDB's tuple layer orders"),
        ("x" * 1000, "id: at most 1000 bytes when packed; got 1002"),
        (nested(101), "id: not a value that FoundationDB's tuple layer orders: at most 100 tuples within each other"),
        (Versionstamp(b"\xff" * 10), "id: not a value that FoundationDB's tuple layer orders: Incomplete versionstamp"),
        (object(), "id: not a value that FoundationDB's tuple layer orders"),
    ],
)
def test_what_has_no_place_is_refused(value, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        tuples.pack("id", value)


def test_a_versionstamp_that_is_not_complete_is_shown_though_a_client_of_another_make_has_stored_it():
    packed = b"\x33" + b"\xff" * 10 + b"\x00\x07"
    stored = tuples.unpack(packed)
    assert tuples.to_json(stored) == {"packed": packed.hex()}
    assert tuples.pack("id", stored) == packed


@pytest.mark.parametrize(
    "value", [{}, {"a": "b"}, {"bytes": "?"}, {"uuid": 1}, {"versionstamp": "00"}, {"double": "x"}]
)
def test_json_that_says_no_value_is_refused(value):
    with pytest.raises(ValueError, match=r"^id: "):
        tuples.from_json("id", value)


def test_an_object_that_is_no_value_is_refused_without_a_look_at_all_that_is_in_it():
    class Large:
        def __repr__(self) -> str:
            pytest.fail("it takes long")

    for value, got in (({"a": Large(), "b": 1}, "'a', 'b'"), ({"uuid": Large()}, "Large"), ({}, "no name")):
        with pytest.raises(ValueError, match=f"^type: an object here has one name of bytes, .*; got {got}$"):
            tuples.from_json("type", value)
