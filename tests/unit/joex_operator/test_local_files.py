"""The files of `joex up`: valid ones are read, errors are reported with their place."""

import json
from pathlib import Path

import pytest
import yaml

from joex.errors import ConfigError
from joex_operator.api.objects import parse_pool
from joex_operator.api.yaml_documents import read_documents
from joex_operator.local.files import check_changes, read_files

HERE = "this-machine"
POOL = {
    "apiVersion": "joex.dev/v1alpha1",
    "kind": "JoexPool",
    "metadata": {"name": "docs", "namespace": "of-a-cluster"},
    "spec": {"app": "shop.tasks:app", "database": {"secretName": "db"}},
}
TASK = {
    "apiVersion": "joex.dev/v1alpha1",
    "kind": "PeriodicTask",
    "metadata": {"name": "nightly"},
    "spec": {"pool": "docs", "task": "clean", "timer": "*-*-* 03:00"},
}


def with_spec(document, **spec):
    return {**document, "spec": {**document["spec"], **spec}}


@pytest.fixture
def write(tmp_path):
    def write(*documents, name="pool.yaml", text=""):
        path = tmp_path / name
        path.write_text(text or yaml.safe_dump_all(documents))
        return path

    return write


def test_several_documents_in_several_files_become_objects_of_one_namespace(write):
    other = write(TASK, name="tasks.yaml")
    found = read_files([write(None, POOL), other], HERE)
    assert list(found) == [("JoexPool", "docs"), ("PeriodicTask", "nightly")]
    assert {document.manifest["metadata"]["namespace"] for document in found.values()} == {HERE}
    assert found["JoexPool", "docs"].spec == parse_pool(POOL).spec
    assert found["PeriodicTask", "nightly"].place == f"{other}, document 1"


def test_the_examples_are_right():
    folder = Path(__file__).parents[3] / "examples"
    found = read_files([path for path in sorted(folder.glob("*.yaml")) if path.name != "workload.yaml"], HERE)
    assert set(found) == {("JoexPool", "documents"), ("PeriodicTask", "count-nightly")}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("text", "expected an object; got 'text'"),
        ({"kind": "Deployment"}, "kind: expected JoexPool or PeriodicTask, of joex.dev/v1alpha1; got 'Deployment'"),
        ({**POOL, "apiVersion": "joex.dev/v9"}, "apiVersion: expected joex.dev/v1alpha1; got 'joex.dev/v9'"),
        ({**POOL, "sepc": {}}, "sepc: there is no such field"),
        ({**POOL, "metadata": None}, "metadata: expected an object, with a name"),
        (
            {**POOL, "metadata": {"name": "docs", "deletionTimestamp": "yesterday"}},
            "metadata.deletionTimestamp: expected a time such as '2026-11-20T12:00:00Z'; got 'yesterday'",
        ),
        ({**POOL, "metadata": {"name": "Docs"}}, "metadata.name: expected 1 to 40 of a-z, 0-9 and '-'; got 'Docs'"),
        (with_spec(POOL, poolSize="two"), "spec.poolSize: Input should be a valid integer; got 'two'"),
        (with_spec(POOL, colour="red"), "spec.colour: there is no such field"),
        (with_spec(POOL, scaling={"minReplicas": 99}), "spec.scaling: minReplicas must not be above maxReplicas"),
        (with_spec(POOL, template={"spec": 5}), "spec.template.spec: expected an object; got 5"),
        (with_spec(TASK, pool="other"), "spec.pool: there is no JoexPool 'other' in these files"),
        (with_spec(TASK, timer=5), "spec.timer: Input should be a valid string; got 5"),
        (with_spec(TASK, timer="0 25 * * *"), "spec.timer: hour: expected 0 to 23; got '25'"),
        (with_spec(TASK, timeZone="Mars"), "spec.timeZone: expected a name like 'Europe/Zurich' or 'UTC'; got 'Mars'"),
    ],
)
def test_a_wrong_document_is_named_with_its_field(write, document, said):
    path = write({**POOL, "metadata": {"name": "right"}}, document)
    with pytest.raises(ConfigError) as error:
        read_files([path], HERE)
    assert str(error.value) == f"{path}, document 2: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", ", line 1, column 5: expected the node content, but found '<stream end>'"),
        ("spec:\n  a: 1\n  a: 2", ", line 3, column 3: duplicate key 'a'"),
        ("a: \x00", ", unacceptable character #x0000: special characters are not allowed"),
        ("# nothing", ": no JoexPool"),
        ("a: " + "[" * 20_000, ", line 1, column 213: more than 210 levels"),
        ("a: &a [*a]", ", line 1, column 8: an alias of what it is a part of"),
        ("a: " + "1" * 5000, f", line 1, column 4: expected int as in JSON; got '{'1' * 40}'"),
        ("a: 1" + ":59" * 5000, ", line 1, column 4: expected int as in JSON; got '1:59"),
        ("a: !!int abc", ", line 1, column 4: expected int as in JSON; got 'abc'"),
        ("a: !!int ''", ", line 1, column 4: expected int as in JSON; got ''"),
        ("a: !!bool abc", ", line 1, column 4: expected bool as in JSON; got 'abc'"),
        ("a: .nan", ", line 1, column 4: expected float as in JSON; got '.nan'"),
        ('a: "\\ud800"', ", line 1, column 4: expected str as in JSON; got '\\ud800'"),
        ('a: "\\U7fffffff"', ", line 1, column 7: there is no such character or version"),
        ("%YAML 1." + "1" * 5000 + "\n--- a", ", line 1, column "),
        ("a: !!set {a, b}", ", line 1, column 4: could not determine a constructor"),
        ("a: !!timestamp abc", ", line 1, column 4: could not determine a constructor"),
    ],
)
def test_what_is_no_yaml_is_named_with_its_line(write, text, said):
    path = write(text=text)
    with pytest.raises(ConfigError) as error:
        read_files([path], HERE)
    assert str(error.value).startswith(f"{path}{said}")
    assert "\n" not in str(error.value)


def test_aliases_of_a_few_bytes_are_no_millions_of_values():
    text = "a0: &a0 [x]\n" + "".join(f"a{nr}: &a{nr} [{', '.join([f'*a{nr - 1}'] * 10)}]\n" for nr in range(1, 9))
    with pytest.raises(ConfigError, match=r"line 6, column .*: aliases that add more than 100,000"):
        read_documents(text)
    with pytest.raises(ConfigError, match=r"line 2, column .*: aliases that add more than 100,000"):
        read_documents(f"a: &a {'x' * 30_000}\nb: [*a, *a, *a, *a]")
    assert read_documents("a: &a {b: 1}\nc: *a\n---\na: &a 2\nd: {<<: {e: *a}}") == [
        {"a": {"b": 1}, "c": {"b": 1}},
        {"a": 2, "d": {"e": 2}},
    ]


def test_a_key_that_a_mapping_merges_and_has_itself_is_no_duplicate():
    text = "base: &base {a: 1, b: 1}\nx: {y: &m {<<: *base, a: 2}}\ntop: {<<: *m, b: 3}"
    assert read_documents(text) == [{"base": {"a": 1, "b": 1}, "x": {"y": {"a": 2, "b": 1}}, "top": {"a": 2, "b": 3}}]
    with pytest.raises(ConfigError, match="line 2, column 22: duplicate key 'a'"):
        read_documents("base: &base {a: 1}\nm: {<<: *base, a: 2, a: 3}")


def test_what_json_has_is_read_as_an_api_server_gets_it():
    text = "{a: 2026-02-30, b: 2026-02-03T04:05:06Z, c: 1.5, d: yes, e: ~, f: 0x10, g: '\u00e4', h: []}"
    assert read_documents(text) == [
        {"a": "2026-02-30", "b": "2026-02-03T04:05:06Z", "c": 1.5, "d": True, "e": None, "f": 16, "g": "ä", "h": []}
    ]
    deep = "[" * 209 + "]" * 209
    assert json.dumps(read_documents(f"a: {deep}")[0]["a"]) == deep


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.yaml: No such file"):
        read_files([Path("missing.yaml")], HERE)
    (tmp_path / "latin").write_bytes(b"\xe4")
    with pytest.raises(ConfigError, match="latin: not UTF-8: "):
        read_files([tmp_path / "latin"], HERE)


def test_two_objects_of_one_name_are_refused_in_whatever_files(write):
    first = write(POOL, name="first.yaml")
    with pytest.raises(ConfigError, match=r"second.yaml, document 1: metadata.name: .*first.yaml, document 1 has"):
        read_files([first, write(POOL, name="second.yaml")], HERE)


def test_what_a_cluster_would_not_let_change_can_not_be_changed(write):
    before = read_files([write(POOL, TASK)], HERE)
    check_changes(before, read_files([write(with_spec(POOL, poolSize=9))], HERE))
    check_changes(before, read_files([write(with_spec(POOL, database={"secretName": "db", "secretKey": "url"}))], HERE))
    moved = write(with_spec(POOL, database={"secretName": "other"}))
    with pytest.raises(ConfigError, match=r"pool.yaml, document 1: spec.database: can't be changed"):
        check_changes(before, read_files([moved], HERE))
    other = write(POOL, {**POOL, "metadata": {"name": "other"}}, with_spec(TASK, pool="other"))
    with pytest.raises(ConfigError, match=r"document 3: spec.pool: can't be changed"):
        check_changes(before, read_files([other], HERE))
