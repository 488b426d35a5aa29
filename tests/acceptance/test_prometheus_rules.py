"""The alerts, the dashboard and their documentation fit the existing metrics."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from joex.observe.metrics import Metrics as ExecutorMetrics
from joex_operator.metrics import OperatorMetrics

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "charts/joex/files/prometheus/rules.yaml"
STORIES = ROOT / "tests/support/prometheus/rules_test.yaml"
DASHBOARD = ROOT / "charts/joex/files/grafana/joex.json"
DOCS = ROOT / "docs/reference/metrics.md"

NAME = re.compile(r"(?<![\w:])joex_\w+")
SAMPLES_OF_A_HISTOGRAM = re.compile("_(bucket|sum|count)$")


@pytest.fixture(scope="session")
def promtool():
    """Run promtool, which must accept its input; fails if there is no promtool, and none can be downloaded."""
    found = subprocess.run([ROOT / "scripts/get_program.sh", "promtool"], check=False, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.fail(f"promtool can't be had: {found.stderr}")

    def run(*arguments):
        done = subprocess.run([found.stdout.strip(), *arguments], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def rules(kind):
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def dashboard():
    return json.loads(DASHBOARD.read_text("utf-8"))


def queries():
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def existing():
    """The names of all metrics, as in queries; those of histograms without the suffixes of their samples."""
    executor = ExecutorMetrics(slots=1, busy=lambda: 0, tasks=())
    pages = [metrics.render()[0].decode() for metrics in (executor, OperatorMetrics())]
    return {name for page in pages for name in re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)}


def named(expression):
    """The metrics in an expression."""
    outside_of_texts = re.sub(r'"[^"]*"', '""', expression)
    return {SAMPLES_OF_A_HISTOGRAM.sub("", name) for name in NAME.findall(outside_of_texts)}


def headings(text):
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_the_rules_are_valid(promtool):
    promtool("check", "rules", str(RULES))


def test_each_alert_fires_when_it_should_and_only_then(promtool):
    promtool("test", "rules", str(STORIES))


def test_each_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not():
    checks = [
        check for story in yaml.safe_load(STORIES.read_text("utf-8"))["tests"] for check in story["alert_rule_test"]
    ]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == set(rules("alert"))
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == set(rules("alert"))


def test_of_an_ordinary_day_all_is_told_and_all_is_asked():
    ordinary = yaml.safe_load(STORIES.read_text("utf-8"))["tests"][0]
    assert [check["alertname"] for check in ordinary["alert_rule_test"]] == list(rules("alert"))
    asked = set().union(*(named(rule["expr"]) for rule in [*rules("alert").values(), *rules("record").values()]))
    assert set().union(*(named(series["series"]) for series in ordinary["input_series"])) >= asked


@pytest.mark.parametrize("name", rules("alert"))
def test_an_alert_tells_how_bad_it_is_what_it_is_and_what_to_do(name):
    rule = rules("alert")[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/reference/metrics.md#{name.lower()}"
    section = DOCS.read_text("utf-8").partition(f"\n## {name}\n")[2].strip()
    assert section.startswith(rule["labels"]["severity"].capitalize() + ". ")


def test_no_alert_is_explained_that_does_not_exist():
    explained = re.findall(r"^## (Joex\w+)$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert sorted(explained) == sorted(rules("alert"))


def test_what_rules_and_dashboard_ask_for_exists():
    expressions = [rule["expr"] for rule in [*rules("alert").values(), *rules("record").values()]] + queries()
    asked = set().union(*map(named, expressions))
    assert asked - existing() == set()


def test_each_recorded_series_is_asked_for_and_no_other():
    expressions = " ".join(rule["expr"] for rule in rules("alert").values()) + " ".join(queries())
    assert set(re.findall(r"\w+:joex_\w+:\w+", expressions)) == set(rules("record"))


def test_each_metric_is_explained_and_nothing_else():
    text = DOCS.read_text("utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    paragraphs = [line for line in text.splitlines() if line.startswith("`joex_")]
    explained = [name for row in rows for name in NAME.findall(row)]
    explained += [name for line in paragraphs for name in NAME.findall(line)[:1]]
    assert sorted(explained) == sorted(existing())
    assert set().union(*map(named, re.findall("`[^`]*`", text))) <= existing()


def test_the_links_of_the_documentation_lead_somewhere():
    text = DOCS.read_text("utf-8")
    for file, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", text):
        page = (DOCS.parent / file).read_text("utf-8") if file else text
        assert anchor in headings(page), f"{file}#{anchor}"


def test_the_expressions_of_the_dashboard_are_valid(promtool, tmp_path):
    given = {"$__rate_interval": "5m"}
    expressions = [re.sub(r"\$__\w+", lambda name: given[name[0]], query) for query in queries()]
    groups = [{"name": "dashboard", "rules": [{"record": f"e{n}", "expr": e} for n, e in enumerate(expressions)]}]
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump({"groups": groups}), "utf-8")
    promtool("check", "rules", str(tmp_path / "dashboard.yaml"))


def test_the_panels_of_the_dashboard_have_ids_units_and_words_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0, panel["title"]


def test_no_panel_of_the_dashboard_lies_over_another():
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard()["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(24))


def test_the_dashboard_works_with_any_data_source_and_knows_its_variables():
    def sources(part):
        if isinstance(part, dict):
            yield from ([part["datasource"]] if "datasource" in part else [])
            part = list(part.values())
        for one in part if isinstance(part, list) else []:
            yield from sources(one)

    assert {json.dumps(source, sort_keys=True) for source in sources(dashboard())} == {
        json.dumps({"type": "prometheus", "uid": "${datasource}"}, sort_keys=True)
    }
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables == {"datasource", "namespace", "pool", "queue"}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard())))
    assert used == variables
