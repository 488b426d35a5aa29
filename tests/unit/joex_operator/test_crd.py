"""The CRDs: structural, complete, and as committed."""

import re
import subprocess
import sys
from pathlib import Path
from zoneinfo import available_timezones

import pytest

from joex.core.timers import Timer
from joex_operator.api.crd import _structural, periodic_crd, pool_crd

ROOT = Path(__file__).resolve().parents[3]
CRDS = [pool_crd(), periodic_crd()]
KINDS = [crd["spec"]["names"]["kind"] for crd in CRDS]


def schema_of(crd):
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def parts(schema, path=""):
    """Every schema in a schema, with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from parts(part, f"{path}.{name}")
    if "items" in schema:
        yield from parts(schema["items"], f"{path}[]")


def at(crd, path):
    return dict(parts(schema_of(crd)))[path]


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_a_schema_is_structural(crd):
    for path, part in parts(schema_of(crd)):
        assert part.keys().isdisjoint({"$ref", "$defs", "anyOf", "title", "additionalProperties"}), path
        assert "type" in part or part.get("x-kubernetes-int-or-string"), path


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_every_field_of_a_spec_is_explained(crd):
    for path, part in parts(schema_of(crd)["properties"]["spec"], "spec"):
        assert part.get("description") or path.endswith("[]"), path


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_text_and_lists_under_rules_are_bounded_so_that_their_cost_is(crd):
    for path, part in parts(schema_of(crd)):
        if "x-kubernetes-validations" in part and part.get("type") == "string":
            assert "maxLength" in part, path


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_every_rule_has_a_message(crd):
    rules = [rule for _, part in parts(schema_of(crd)) for rule in part.get("x-kubernetes-validations", [])]
    assert rules
    assert all(rule["message"] and rule["rule"] for rule in rules)


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_an_objects_defaults_are_empty_so_that_those_of_its_fields_hold(crd):
    for path, part in parts(schema_of(crd)):
        if part.get("type") == "object":
            assert part.get("default", {}) == {}, path


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_conditions_are_a_map_by_type(crd):
    conditions = at(crd, ".status.conditions")
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_defaults_are_written_as_people_write_them():
    pool = CRDS[0]
    assert at(pool, ".spec.retryDelay")["default"] == "1m"
    assert at(pool, ".spec.countingScheme")["default"] == "4,1"
    assert at(pool, ".spec.scaling.behavior.scaleDown.stabilizationWindowSeconds")["default"] == 300
    assert at(pool, ".spec.queues")["default"] == ["default"]
    assert "default" not in at(pool, ".spec.timeout")
    assert "default" not in at(pool, ".spec.replicas")


def test_kubectl_scale_finds_its_numbers_and_the_pods():
    version = CRDS[0]["spec"]["versions"][0]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    for path in version["subresources"]["scale"].values():
        assert at(CRDS[0], path)["type"] in ("integer", "string")


@pytest.mark.parametrize("crd", CRDS, ids=KINDS)
def test_printed_columns_show_what_there_is(crd):
    known = {path for path, _ in parts(schema_of(crd))} | {".metadata.creationTimestamp"}
    for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]:
        assert column["jsonPath"].partition("[?")[0] in known


def test_what_people_may_not_change_is_guarded_by_a_rule():
    for crd, path in ((CRDS[0], ".spec.database"), (CRDS[1], ".spec.pool")):
        assert any(rule["rule"] == "self == oldSelf" for rule in at(crd, path)["x-kubernetes-validations"])


def rule_at(path):
    """The one rule of a text, as a regular expression of Python; for these, CEL's syntax is the same."""
    (rule,) = at(CRDS[1], path)["x-kubernetes-validations"]
    return re.compile(rule["rule"].removeprefix("self.matches('").removesuffix("')").replace("\\\\", "\\"))


TIMERS = [
    "*:*:*", "minutely", "Mon..Fri 08:30", "Mon,Sat *-1..6/2,12-* 00/2:30:07.5", "*-02~1", "@1735689600",
    "Sun 2020..2030-01-01 Europe/Zurich", "12:00 Etc/GMT+5", "0 3 * * *", "\t*/5 9-17\tL JAN,MAR MON#2 ", "0 0 LW * 5L",
]  # fmt: skip


@pytest.mark.parametrize("timer", TIMERS)
def test_no_timer_that_can_be_read_is_refused_by_the_api_server(timer):
    assert Timer.parse(timer).normal
    assert rule_at(".spec.timer").search(timer)


def test_no_zone_that_there_is_is_refused_by_the_api_server():
    rule = rule_at(".spec.timeZone")
    assert [zone for zone in available_timezones() if not rule.search(zone)] == []


@pytest.mark.parametrize("text", ["", " ", "-", "daily!", "(0 3 * * *)", "Mon\N{EN DASH}Fri"])
def test_what_can_not_be_a_timer_by_its_characters_is_refused_by_the_api_server(text):
    assert not rule_at(".spec.timer").search(text)


def test_numbers_have_the_format_that_fits_them():
    assert at(CRDS[0], ".spec.poolSize")["format"] == "int32"


def test_what_a_structural_schema_cannot_say_is_refused_rather_than_dropped():
    with pytest.raises(ValueError, match="oneOf"):
        _structural({"oneOf": []}, {})


def check(*arguments):
    script = ROOT / "scripts" / "generate_crds.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


def test_the_committed_files_are_as_made_from_the_models():
    done = check("--check")
    assert done.returncode == 0, done.stderr
