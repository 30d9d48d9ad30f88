"""``vouch-build reproduce`` from the command line to the page, on scikit-learn's digits."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.pipeline.run import Run
from index_builder.reproduction.cells import ExperimentPlan
from index_builder.reproduction.evaluate import evaluate_decision, evaluate_method
from index_builder.reproduction.protocols import (
    PROTOCOLS,
    ProtocolConfig,
    ProtocolData,
    load_protocol,
    protocol_config,
    published,
)
from index_builder.reproduction.protocols.protocol import all_against_all, held_out_task
from index_builder.reproduction.retrieval import search
from index_builder.reproduction.summary import COLUMNS
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import BuildError, ConfigError
from model_store.machine import usable_processors
from model_store.sphere import unit_direction
from tests.support.build_command import vouch_build

pytestmark = pytest.mark.bundle

ARGUMENTS = ("reproduce", "--protocol", "digits", "--methods", "lam_posthoc_fixed", "--seeds", "1")


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    """As many as each of two cells side by side has."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, usable_processors() // 2))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished reproduction, by the real command."""
    place = tmp_path_factory.mktemp("reproduce")
    done = vouch_build(*ARGUMENTS, "--epochs", "2", "--out", "digits", cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "digits"


@pytest.fixture(scope="module")
def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return found


def test_every_method_and_the_decision_layer_are_measured(report: dict[str, Any]) -> None:
    assert [method["name"] for method in report["methods"]] == ["lam_posthoc_fixed", "vouch"]
    for method in report["methods"]:
        known = {name for name, value in method["metrics"].items() if value["mean"] is not None}
        assert {"recall_at_1", "map_at_r", "nmi", "ood_auroc", "ece", "ausc", "aurc"} <= known
        assert {"ood_auroc: 3 and 8", "dir_at_far_0.1", "error_auroc", "brier"} <= known


def test_both_rows_are_of_the_same_lists(report: dict[str, Any]) -> None:
    alone, decided = (method["metrics"] for method in report["methods"])
    assert alone["recall_at_1"] == decided["recall_at_1"]
    assert alone["map_at_r"] == decided["map_at_r"]
    assert decided["ood_auroc"]["mean"] > alone["ood_auroc"]["mean"]


def test_time_and_memory_of_each_stage_are_reported(report: dict[str, Any]) -> None:
    for method in report["methods"]:
        for stage in ("training", "fit", "evaluation"):
            assert method["costs"][stage]["seconds"]["mean"] > 0
            assert 2**27 < method["costs"][stage]["peak_bytes"]["mean"] < 2**34


def test_a_finished_cell_is_not_measured_again(out: Path, report: dict[str, Any]) -> None:
    kept, lost = (out / "cells" / name / "seed-0.json" for name in ("lam_posthoc_fixed", "vouch"))
    before = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    trained = (out / "encoders" / "seed-0" / "checkpoint.safetensors").stat().st_mtime_ns
    result = CliRunner().invoke(app, [*ARGUMENTS, "--epochs", "2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert kept.stat().st_mtime_ns == before[0]
    assert (out / "encoders" / "seed-0" / "checkpoint.safetensors").stat().st_mtime_ns == trained
    again, first = json.loads(lost.read_bytes()), json.loads(before[1])
    assert again["metrics"] == pytest.approx(first["metrics"])


@pytest.mark.process
def test_side_by_side_or_one_by_one_gives_the_same(out: Path, tmp_path: Path) -> None:
    """By as many threads each: sums of another number are rounded otherwise."""
    command = [*ARGUMENTS, "--epochs", "2", "--jobs", "2", "--out", "."]
    done = vouch_build(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("lam_posthoc_fixed", "vouch"):
        cell = Path("cells") / name / "seed-0.json"
        beside, alone = (json.loads((where / cell).read_bytes()) for where in (tmp_path, out))
        assert beside["metrics"] == pytest.approx(alone["metrics"])
        assert beside["machine"] == alone["machine"]


def test_what_cannot_be_measured_harms_nothing_else(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cells" / "vouch" / "seed-0.json").unlink()

    def refuse(*_: object) -> None:
        raise BuildError("The curvature is zero.")

    monkeypatch.setattr("index_builder.reproduction.cells.evaluate_decision", refuse)
    result = CliRunner().invoke(app, [*ARGUMENTS, "--epochs", "2", "--out", str(tmp_path)])
    assert isinstance(result.exception, BuildError)
    assert "1 of 2 measurements failed" in str(result.exception)
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert [method["name"] for method in report["methods"]] == ["lam_posthoc_fixed"]
    assert [failure["reason"] for failure in report["failures"]] == ["The curvature is zero."]
    assert "The curvature is zero." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_cells_of_other_settings_are_not_mixed(out: Path) -> None:
    result = CliRunner().invoke(app, [*ARGUMENTS, "--epochs", "3", "--out", str(out)])
    assert isinstance(result.exception, ConfigError)
    assert "other values of `training`" in str(result.exception)


def test_an_unknown_method_is_named() -> None:
    result = CliRunner().invoke(app, [*ARGUMENTS[:3], "--methods", "magic"])
    assert isinstance(result.exception, ConfigError)
    assert "'magic'" in str(result.exception)


def test_the_table_holds_what_the_report_does(out: Path, report: dict[str, Any]) -> None:
    table = (out / "table.md").read_text(encoding="utf-8")
    for method in report["methods"]:
        assert f"| {method['title']} | {method['metrics']['recall_at_1']['mean']:.3f} |" in table
        known = method["metrics"]
        assert known["recall_at_1"]["mean"] <= known["recall_at_2"]["mean"] <= 1
        assert 0 < known["map_at_r"]["mean"] <= known["map_at_1000"]["mean"] <= 1
        # A found and surer than an outlier; and no more can be wrong than all at once.
        assert 0 < known["oscr"]["mean"] <= known["recall_at_1"]["mean"]
        assert 0 <= known["augrc"]["mean"] <= known["aurc"]["mean"]
    assert "AUGRC" in table
    assert "OSCR" in table
    assert "The decision layer uses data that the other methods do not use" in table


def test_the_authors_figures_of_a_table_are_of_one_state_of_theirs() -> None:
    """What 89588b3 has no row of is not filled up from the table before its correction."""
    assert {"lam_online_full", "lam_posthoc_fixed_arccos"} <= published.FASHION_MNIST.keys()
    earlier = {"lam_online_positives", "lam_online_positives_arccos", "lam_online_full_arccos"}
    assert not earlier & published.FASHION_MNIST.keys()
    assert set(published.CUB200) == {"pfe"}
    # Each figure has a column that it stands in.
    assert set(published.METRICS) <= {column.metric for column in COLUMNS}


class Page(HTMLParser):
    """What a page asks its reader's browser to fetch, and whether its tags are closed."""

    VOID = frozenset({"meta", "link", "img", "input", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.images: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.addresses += [value for name in ("src", "href") if (value := values.get(name))]
        if tag == "img":
            self.images.append(values)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element of an SVG that holds nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(out: Path, report: dict[str, Any]) -> None:
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "http" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert page.images
    assert all(image["alt"] for image in page.images)
    paths = re.findall(r'<g class="line line-(\d)"><title>[^<]+</title>\s*<path d="M', text)
    assert len(paths) == 2 * (2 + len(report["protocol"]["outliers"]))


@pytest.fixture(scope="module")
def among_themselves(out: Path) -> tuple[ProtocolConfig, Run, ProtocolData]:
    """What was built, and a test whose queries are the items of its gallery, as most papers ask."""
    config = ExperimentPlan(protocol_config("digits", epochs=2), [], [0], out).config(
        "lam_posthoc_fixed", 0
    )
    data = load_protocol(config)
    asked = replace(
        data,
        test=all_against_all(data.test.queries),
        development=held_out_task(data.development.queries, np.random.default_rng(0)),
    )
    return config, Run(out / "runs" / "lam_posthoc_fixed" / "seed-0"), asked


def test_images_among_themselves_do_not_find_themselves(
    among_themselves: tuple[ProtocolConfig, Run, ProtocolData], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run, data = among_themselves
    shared = replace(PROTOCOLS["digits"], shared_samples=True)
    monkeypatch.setitem(PROTOCOLS, "digits", shared)  # sample last layers, as the authors do
    encoder = OnnxEncoder(run.staging / ENCODER_FILE)
    results = search(encoder, data.test)
    assert not (results.found == np.arange(len(results.found))[:, None]).any()
    directions = unit_direction(results.queries.mean)
    similarities = directions @ directions.T
    np.fill_diagonal(similarities, -1)
    labels = np.array(data.test.queries.labels)
    right = labels[similarities.argmax(axis=1)] == labels
    metrics = evaluate_method(config, run, data)["metrics"]
    assert metrics["recall_at_1"] == pytest.approx(right.mean(), abs=2 / len(right))  # ties
    assert 0 <= metrics["ece"] < 0.2


def test_the_decision_layer_hides_an_item_from_itself(
    among_themselves: tuple[ProtocolConfig, Run, ProtocolData], tmp_path: Path
) -> None:
    config, run, data = among_themselves
    metrics = evaluate_decision(config, run, data, tmp_path)["metrics"]
    # An image that found itself in list or detector would be a sure match, and unlike any other.
    assert metrics["recall_at_1"] - 0.05 < metrics["recall_of_likeliest"] < 1
    assert 0 <= metrics["ece_of_likeliest"] < 0.2
    assert metrics["error_auroc_of_likeliest"] > 0.5
    assert metrics["ood_auroc: 3 and 8"] < 0.99
    assert metrics["ood_auroc"] > 0.95
    assert metrics["ece"] < 0.15
