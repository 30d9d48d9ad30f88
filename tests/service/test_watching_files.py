"""Dashboard and alerts: every expression parses, and asks for what the service really tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
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
PROMTOOL = shutil.which("promtool")
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


GALLERY = "{gallery='digits'}"
SEARCHES = "vouch_request_seconds_bucket{route='/v1/galleries/{gallery}/search',le="
TROUBLE: dict[str, dict[str, str]] = {
    "VouchDown": {"up{job='vouch'}": "0x240"},
    "VouchNotAnswering": {f"vouch_canary_age_seconds{GALLERY}": "41x240"},
    "VouchErrors": {
        "vouch_requests_total{method='POST',route='/v1',status='500'}": "0+2x240",
        "vouch_requests_total{method='POST',route='/v1',status='200'}": "0+98x240",
    },
    "VouchOverloaded": {"vouch_problems_total{code='overloaded'}": "0+1x240"},
    "VouchSlow": {
        f"{SEARCHES}'1.0'}}": "0x240",
        **{f"{SEARCHES}'{limit}'}}": "0+1x240" for limit in ("2.0", "+Inf")},
    },
    "VouchEncoderStops": {f"vouch_encoder_stops_total{GALLERY}": "0x220 3x20"},
    "VouchDecodersLost": {"vouch_decoders_lost_total": "0x220 30x20"},
    "VouchCacheUnreachable": {"vouch_cache_info{state='redis (unreachable)'}": "1x240"},
    "VouchCacheRefusesWrites": {"vouch_cache_info{state='redis (refuses writes)'}": "1x240"},
    "VouchBundleRefused": {
        "vouch_bundle_activations_total{gallery='digits',outcome='refused'}": "0x220 1x20"
    },
    "VouchCalibrationStale": {f"vouch_calibration_stale{GALLERY}": "1x240"},
    "VouchDrift": {f"vouch_drift_alarm{GALLERY}": "1x240"},
    "VouchMoreAbsentQueries": {
        f"vouch_absent_share_lower{GALLERY}": "0.4x480",
        f"vouch_absent_share{GALLERY}": "0.2x480",
    },
    "VouchMatchesWrong": {f"vouch_error_alarm{GALLERY}": "1x240"},
    "VouchManyOutliers": {
        f"vouch_outliers_total{GALLERY}": "0+4x480",
        "vouch_verdicts_total{gallery='digits',verdict='match'}": "0+10x480",
    },
}
"""What the series of an alert do, every 15 s, when it is to fire."""

SOUND: dict[str, dict[str, str]] = {
    "as it starts": {},
    "canaries are rare": {
        f"vouch_canary_age_seconds{GALLERY}": "300x240",
        f"vouch_canary_period_seconds{GALLERY}": "300x240",
    },
}
"""What the series do on a service that has no trouble."""

FIRST_EVENTS = {"VouchOverloaded", "VouchEncoderStops", "VouchDecodersLost", "VouchBundleRefused"}
"""Alerts on the increase of counters, which must exist before it."""


def series(text: str) -> dict[str, float]:
    """Each series of an exposition, as PromQL writes it → its value."""
    return {
        f"{sample.name}{{{','.join(f'{k}={v!r}' for k, v in sample.labels.items())}}}".removesuffix(
            "{}"
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vouch_") and "\n" not in repr(sample.labels)
    }


@pytest.mark.process
@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")
def test_each_alert_fires_in_its_trouble_and_none_on_a_sound_service(
    start: StartClient, tmp_path: Path
) -> None:
    """By Prometheus' own evaluation of the series that a service has at its start."""
    sound = series(start(feedback=tmp_path / "feedback.sqlite3").get("/metrics").text)
    assert {rule["alert"] for rule in alerts()} == set(TROUBLE)
    tests = []
    for alert, trouble in {**SOUND, **TROUBLE}.items():
        if alert in FIRST_EVENTS:
            assert set(trouble) <= set(sound), alert
        values = {name: f"{value}x480" for name, value in sound.items()} | trouble
        if alert != "VouchDown":
            values["up{job='vouch'}"] = "1x480"
        end = "2h" if any("x480" in change for change in trouble.values()) else "1h"
        fired = [{"labels": f"{{alertname='{alert}'}}", "value": 1}] if alert in TROUBLE else []
        asked = "count by (alertname) (ALERTS{alertstate='firing'})"
        tests.append(
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": text} for name, text in values.items()],
                "promql_expr_test": [{"expr": asked, "eval_time": end, "exp_samples": fired}],
            }
        )
    file = tmp_path / "tests.yml"
    rules = [str(WATCH / "alerts.yml")]
    document = {"rule_files": rules, "evaluation_interval": "15s", "tests": tests}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [str(PROMTOOL), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
