"""Write the Grafana dashboard of the chart from scripts/dashboard.yaml.

With --check: fail if the file differs.
"""  # noqa: INP001 - not a package

from __future__ import annotations

import json
import string
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "scripts" / "dashboard.yaml"
DASHBOARD = ROOT / "charts" / "joex" / "files" / "grafana" / "joex.json"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTORS = {"<pool>": 'namespace=~"$namespace", pool=~"$pool"', "<queue>": 'queue=~"$queue"'}
DESCRIPTION = "Pools, queues, executors and operator of Joex. docs/reference/metrics.md explains each number."
VARIABLES = {
    "namespace": "label_values(joex_pool_executors_desired, namespace)",
    "pool": 'label_values(joex_pool_executors_desired{namespace=~"$namespace"}, pool)',
    "queue": 'label_values(joex_pool_queue_info{namespace=~"$namespace", pool=~"$pool"}, queue)',
}
LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}


def dashboard(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": "joex",
        "title": "Joex",
        "description": DESCRIPTION,
        "tags": ["joex"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "liveNow": False,
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": [_data_source(), *(_variable(name, query) for name, query in VARIABLES.items())]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_placed(rows), 1)],
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        "hide": 0,
        "regex": "",
        "skipUrlSync": False,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
        "regex": "",
        "skipUrlSync": False,
    }


def _placed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows and their panels, from left to right and from top to bottom."""
    y = 0
    for row in rows:
        yield {
            "type": "row",
            "title": row["row"],
            "collapsed": False,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
            "panels": [],
        }
        x, y, below = 0, y + 1, y + 1
        for panel in row["panels"]:
            width, height = panel["size"]
            if x + width > WIDTH:
                x, y = 0, below
            yield {**_panel(panel), "gridPos": {"h": height, "w": width, "x": x, "y": y}}
            x, below = x + width, y + height
        y = below


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    kind, defaults, options = _style(panel)
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel["text"],
        "datasource": SOURCE,
        "targets": _targets(panel, instant=kind == "stat"),
        "fieldConfig": {"defaults": {"unit": panel.get("unit", "short"), **defaults}, "overrides": []},
        "options": options,
    }


def _style(panel: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The type of a panel, its defaults of fields, and its options: a number, states over time, or lines."""
    if "colors" in panel:
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return "stat", _colors(panel["colors"]), {"colorMode": "value", "graphMode": "none", "reduceOptions": reduced}
    if "states" in panel:
        states = {
            str(value): {"text": text, "color": color, "index": index}
            for index, (value, (text, color)) in enumerate(panel["states"].items())
        }
        defaults = {**_colors({0: "text"}), "mappings": [{"type": "value", "options": states}]}
        tooltip = {"mode": "single", "sort": "none"}
        return (
            "state-timeline",
            defaults,
            {"mergeValues": True, "showValue": "never", "rowHeight": 0.9, "legend": LEGEND, "tooltip": tooltip},
        )
    is_stacked = panel.get("stacked", False)
    lines = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if is_stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        "lineInterpolation": "stepAfter" if panel.get("steps") else "linear",
    }
    most = {"max": panel["max"]} if "max" in panel else {}
    defaults = {"min": 0, "color": {"mode": "palette-classic"}, "custom": lines, **most}
    return "timeseries", defaults, {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}


def _colors(steps: Mapping[int, str]) -> dict[str, Any]:
    """Colors by value; the first one also holds below its value."""
    (_, lowest), *higher = steps.items()
    thresholds = [{"color": lowest, "value": None}, *({"color": color, "value": value} for value, color in higher)]
    return {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": thresholds}}


def _targets(panel: Mapping[str, Any], *, instant: bool) -> list[dict[str, Any]]:
    queries = [
        (legend.replace("<p>", str(percentile)), query.replace("<q>", f"{percentile / 100:g}"))
        for legend, query in panel["queries"].items()
        for percentile in panel.get("quantiles", [0])
    ]
    return [
        {
            "datasource": SOURCE,
            "refId": letter,
            "expr": _selected(query),
            "legendFormat": legend,
            "range": not instant,
            "instant": instant,
        }
        for letter, (legend, query) in zip(string.ascii_uppercase, queries, strict=False)
    ]


def _selected(query: str) -> str:
    for name, selector in SELECTORS.items():
        query = query.replace(name, selector)
    return query


def main(arguments: list[str]) -> int:
    """Write the file, or compare it. Returns the exit code."""
    wanted = json.dumps(dashboard(yaml.safe_load(DATA.read_text("utf-8"))), indent=2, ensure_ascii=False) + "\n"
    if arguments == ["--check"]:
        if DASHBOARD.read_text("utf-8") == wanted:
            return 0
        sys.stderr.write(f"{DASHBOARD.relative_to(ROOT)} is stale: run python scripts/generate_dashboard.py\n")
        return 1
    DASHBOARD.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
