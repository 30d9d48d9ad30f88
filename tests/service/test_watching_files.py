"""Dashboard and alerts: every expression parses, and asks for what the service really tells."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from service.observability.metrics import Telemetry
from service.serving.metrics import GalleryMetrics
from tests.end_to_end.questions import search

StartClient = Callable[..., TestClient]

WATCH = Path(__file__).parents[2] / "docker" / "watch"
STATE_OF_THE_SCRAPE = "up"
"""The one metric that Prometheus adds by itself."""

LABELS_OF_A_SCRAPE = {"job", "instance", "le"}


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((WATCH / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (WATCH / "dashboard.json").read_text(encoding="utf-8")
    )["panels"]
    return found


def expressions() -> list[str]:
    """All of them, with Grafana's variables filled in."""
    asked = [rule["expr"] for rule in alerts()]
    asked += [target["expr"] for panel in panels() for target in panel["targets"]]
    return [expression.replace("$gallery", "digits") for expression in asked]


def selectors(node: Any) -> Iterator[Any]:
    """Every selector within a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    else:
        for part in ("lhs", "rhs", "expr"):
            if getattr(node, part, None) is not None:
                yield from selectors(getattr(node, part))
        for argument in getattr(node, "args", []):
            yield from selectors(argument)


def grouped_by(expression: str) -> set[str]:
    groups = re.findall(r"by \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


@pytest.fixture
def told(start: StartClient, tmp_path: Path, digit: bytes) -> dict[str, set[str]]:
    """Name of each sample that the service tells, with feedback too → its labels."""
    client = start(feedback=tmp_path / "feedback.sqlite3")
    search(client, digit)
    names = {
        found.name: set(found.labels)
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for found in family.samples
    }
    # Those that nothing has been counted in yet have no samples; prometheus_client knows them.
    registered = Telemetry().registry._collector_to_names
    for collector, samples in registered.items():
        labels = collector._labelnames if isinstance(collector, MetricWrapperBase) else ()
        for name in samples:
            names.setdefault(name, set(labels))
    for name, family in GalleryMetrics._families().items():
        names.setdefault(name, set(family._labelnames))
    names[STATE_OF_THE_SCRAPE] = set()
    return names


def test_every_metric_and_label_that_is_asked_for_is_told(told: dict[str, set[str]]) -> None:
    asked = expressions()
    assert len(asked) > 25
    for expression in asked:
        at_hand = set(LABELS_OF_A_SCRAPE)
        found = list(selectors(promql_parser.parse(expression)))
        assert found, expression
        for selector in found:
            assert selector.name in told, f"no metric {selector.name}: {expression}"
            labels = told[selector.name] | LABELS_OF_A_SCRAPE
            for matcher in selector.matchers.matchers:
                assert matcher.name in labels, f"{selector.name} has no {matcher.name}"
            at_hand |= labels
        assert grouped_by(expression) <= at_hand, expression


def test_what_is_not_told_would_be_noticed(told: dict[str, set[str]]) -> None:
    expression = 'sum by (shop) (rate(vouch_searches_total[5m])) / (1 + max(vouch_stale{a="b"}))'
    found = [selector.name for selector in selectors(promql_parser.parse(expression))]
    assert found == ["vouch_searches_total", "vouch_stale"]
    assert not set(found) & set(told)
    assert grouped_by(expression) == {"shop"}


def test_what_the_annotations_name_is_told(told: dict[str, set[str]]) -> None:
    named = {
        name
        for rule in alerts()
        for text in rule["annotations"].values()
        for name in re.findall(r"vouch_[a-z_]+", text)
    }
    assert named
    assert all(any(sample.startswith(name) for sample in told) for name in named)


def test_alerts_say_what_to_look_at() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_panels_have_places_of_their_own() -> None:
    corners = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(corners)) == len(corners)
    assert len({panel["id"] for panel in panels()}) == len(corners)
