"""What commands print of untrusted texts."""

import json
from typing import Any

import pytest

from joex.cli.output import note, print_json, print_json_line, say

HOSTILE = "a\x1b]0;title\x07 \x9b2J \u202e\u2066 \r b \U000e0041 \ud800"
FINE = 'ü 日本 😀 "quoted" \\ back'


@pytest.mark.parametrize("show", [say, note])
def test_a_line_has_nothing_that_a_terminal_would_obey(show, capsys):
    show(HOSTILE + FINE)
    printed = "".join(capsys.readouterr())
    assert printed.rstrip("\n").isprintable()
    assert printed.endswith(f"{FINE}\n")


@pytest.mark.parametrize("show", [print_json, print_json_line])
def test_json_has_none_either_and_means_the_same(show, capsys):
    value = [{HOSTILE: HOSTILE, "fine": FINE}]
    show(value)
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert json.loads(printed) == value
    assert json.dumps(FINE, ensure_ascii=False) in printed


def test_json_with_hundreds_of_levels_is_not_many_times_as_long_as_without_lines(capsys):
    deep: list[Any] = ["", ""] * 10_000
    for _ in range(150):
        deep = [deep]
    value = [{"id": 1, "args": {"values": deep}}, {"id": 2, "args": {"values": [1, {"a": [None]}]}}]
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert len(printed) < 2 * len(json.dumps(value))
    assert printed.endswith(json.dumps(value[1:], indent=2).removeprefix("[") + "\n")
