from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from index_builder.calibration.plan import Plan
from index_builder.commands.app import app
from index_builder.configuration.build import CalibrationConfig, build_config
from index_builder.datasets import load_splits
from index_builder.datasets.images import from_arrays
from index_builder.encoders.mobilenet_v2 import encoder_file, read_weights
from model_store.errors import DatasetError
from tests.support.build_command import vouch_build
from tests.support.collection_files import write_drawings

OF_ITEMS = Plan(
    n_images=570,
    n_labels=38,
    n_gallery=330,
    n_gallery_labels=22,
    is_labelled=True,
    items_are_queries=True,
    n_matched=(330, 0),
    n_withheld=(128, 112),
    n_withheld_labels=16,
    promises=CalibrationConfig(),
)


def test_plan_of_items_counts_every_kind_of_query() -> None:
    assert OF_ITEMS.lines() == [
        "570 images of 38 labels; 330 in the gallery",
        "queries with a match: 330 items, each compared with the rest of the gallery",
        (
            "queries without a match: the same queries with their own label hidden; 128 to "
            "calibrate, 112 to evaluate, of 16 withheld labels"
        ),
        "guarantee: an error of `match` of at most 5 % needs 78 confident queries",
    ]
    OF_ITEMS.require_feasible()


def test_plan_counts_labels_with_one_image_as_the_bounds_do() -> None:
    plan = replace(OF_ITEMS, n_gallery=430, n_gallery_labels=122, n_lone=100, n_withheld=(0, 0))
    lines = plan.lines()
    assert lines[2] == (
        "queries without a match: the same queries with their own label hidden, and photographs "
        "of the 100 labels with one image"
    )
    # Of 22 labels, FPIR is at most 10 %; a quarter of the queries have no other photograph.
    assert lines[3].endswith(
        ". With 100 labels of one image, this error cannot be guaranteed: add images of these "
        "labels"
    )
    for other in (
        replace(plan, n_gallery_labels=400),
        replace(plan, promises=CalibrationConfig(max_error=0.2)),
        replace(plan, n_lone=0),
        replace(plan, promises=CalibrationConfig(expected_absent=0.5)),  # is the cause alone
    ):
        assert "cannot be guaranteed" not in other.lines()[3]


def test_plan_with_too_few_queries_for_the_error_names_the_error_they_allow() -> None:
    few = replace(OF_ITEMS, n_matched=(60, 0), promises=CalibrationConfig(max_error=0.01))
    said = few.lines()[-1]
    assert "at most 1 % needs 394 confident queries. With 60, the verdict is never `match`" in said
    assert "accept an error of 6.4 %" in said
    assert "accept an error" not in replace(few, n_matched=(49, 0)).lines()[-1], "it is refused"
    assert "`vouch-build calibrate BUNDLES --max-error 0.064`" in said
    for_matched = replace(few, promises=CalibrationConfig()).lines()[-1]  # 1 − 0.1^(1/60) < 0.05
    assert "needs 78 confident queries. With 60, no `match` has a guarantee" in for_matched


@pytest.mark.parametrize("max_error", [0.01, 0.05, 0.2])
def test_needed_queries_are_the_first_whose_bound_keeps_the_error(max_error: float) -> None:
    plan = replace(OF_ITEMS, promises=CalibrationConfig(max_error=max_error))
    needed = plan.needed_queries
    assert needed is not None
    assert replace(plan, n_matched=(needed, 0)).least_error <= max_error
    assert replace(plan, n_matched=(needed - 1, 0)).least_error > max_error
    for n, is_kept in ((needed, True), (needed - 1, False)):
        rows = np.arange(n + 38)
        present = rows < n
        queries = replace(
            plan._best,
            probabilities=present.astype(np.float64),
            no_match=(~present).astype(np.float64),
            wrong=(~present).astype(np.float64),
            counted=present,
            labels=np.where(present, -1, rows - n),
            chosen=rows >= 0,
        )
        assert queries.keeps_error(present, max_error) == is_kept


def test_plan_with_too_few_labels_names_the_labels_that_it_needs() -> None:
    plan = replace(OF_ITEMS, promises=CalibrationConfig(expected_absent=0.5))
    said = plan.lines()[-1]
    assert "needs 76 labels of queries without a match. With 38, no `match` has a guarantee" in said
    assert "add images of other labels, or accept an error of 9.4 %" in said
    assert plan.report()["n_needed_queries"] is None
    enough = replace(plan, n_gallery_labels=60, n_matched=(10**6, 0))
    assert enough.needed_queries is not None
    assert replace(enough, n_gallery_labels=59).needed_queries is None
    withheld = replace(plan, items_are_queries=False)
    assert "With 16, " in withheld.lines()[-1], "only withheld labels are without a match"
    views = replace(plan, is_labelled=False, n_gallery_labels=0)
    assert views.needed_queries is not None, "each view is another label"


def test_plan_of_held_out_images_and_views_names_them() -> None:
    held_out = replace(OF_ITEMS, items_are_queries=False, n_matched=(60, 61), n_withheld=(0, 0))
    assert held_out.lines()[1:3] == [
        "queries with a match: 60 to calibrate, 61 to evaluate (held-out images)",
        "queries without a match: the same queries with their own label hidden",
    ]
    estimate = replace(OF_ITEMS, is_estimate=True)
    assert estimate.lines()[:2] == [
        "570 images of 38 labels; 330 in the gallery",
        "queries with a match: about 330 items, each compared with the rest of the gallery",
    ]
    views = replace(held_out, is_labelled=False, n_matched=(60, 0))
    assert views.lines()[1] == "queries with a match: 60 to calibrate (augmented views of items)"


def test_dry_run_prints_the_plan_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawn").mkdir()
    write_drawings(tmp_path / "drawn", 120)
    command = ["-q", "all", "--images", "drawn", "--dry-run"]
    shown = CliRunner().invoke(app, command)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("120 images of 10 labels; ")
    plan = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (plan["n_images"], plan["n_labels"], plan["n_needed_queries"]) == (120, 10, 78)
    assert f"{plan['n_items']} in the gallery" in shown.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["drawn"], "a dry run writes nothing"


def test_plan_says_that_a_text_tower_is_not_used(tmp_path: Path) -> None:
    for name in ("drawn", "towers"):
        (tmp_path / name).mkdir()
    write_drawings(tmp_path / "drawn", 120)
    (tmp_path / "towers" / "encoder.onnx").write_bytes(encoder_file(read_weights()))
    command = ["all", "--images", "drawn", "--encoder", "towers", "--dry-run"]
    assert "text tower" not in vouch_build(*command, cwd=tmp_path).stderr
    (tmp_path / "towers" / "text_encoder.onnx").touch()
    shown = vouch_build(*command, cwd=tmp_path).stderr
    assert "towers is not used, because the build makes another encoder" in shown


@pytest.mark.parametrize(
    ("plan", "cause"),
    [
        (replace(OF_ITEMS, n_gallery_labels=1), "has 1 label; at least two"),
        (replace(OF_ITEMS, n_matched=(49, 0)), "49 queries to calibrate with, not counting copies"),
        (replace(OF_ITEMS, n_matched=(0, 0), is_labelled=False), "0 queries to calibrate with"),
    ],
)
def test_plan_without_a_possible_calibration_is_refused(plan: Plan, cause: str) -> None:
    with pytest.raises(DatasetError, match=cause) as refused:
        plan.require_feasible()
    assert ("--no-labels" in str(refused.value)) == plan.is_labelled
    with pytest.raises(DatasetError, match=cause) as of_vectors:
        replace(plan, of_vectors=True).require_feasible()
    assert "--no-labels" not in str(of_vectors.value), "it is refused for vectors"


def test_plan_of_splits_counts_copies_as_one_image() -> None:
    config = build_config({"name": "d", "dataset": {"kind": "digits"}}, {})
    splits = load_splits(config)
    assert not splits.items_are_queries
    counted = Plan.of_splits(splits, config.calibration)
    assert counted.n_images == 1797
    assert counted.n_matched == (len(splits.calibration.matched), len(splits.evaluation.matched))
    pixels = [[[number]] for number in range(60)] + [[[60]]] * 4
    labels = [str(number % 6) for number in range(60)] + ["copies"] * 4
    gallery = from_arrays("x", _bytes(pixels), labels)
    items = replace(
        splits,
        gallery=gallery,
        items_are_queries=True,
        calibration=replace(splits.calibration, matched=gallery.at([])),
        evaluation=replace(splits.evaluation, matched=gallery.at([])),
    )
    assert Plan.of_splits(items, config.calibration).n_matched == (60, 0)


@pytest.mark.parametrize(("n_large", "n_hidden"), [(120, 160), (124, 40), (360, 40)])
def test_queries_of_a_label_with_most_images_are_no_absent_queries(
    n_large: int, n_hidden: int
) -> None:
    config = build_config({"name": "d", "dataset": {"kind": "digits"}}, {})
    splits = load_splits(config)
    labels = ["bird"] * n_large + [f"{number % 10}" for number in range(40)]
    gallery = from_arrays(
        "x", np.arange(len(labels), dtype=np.uint16).view(np.uint8).reshape(-1, 1, 2), labels
    )
    nothing = gallery.at([])
    items = replace(
        splits,
        gallery=gallery,
        items_are_queries=True,
        calibration=replace(splits.calibration, matched=nothing, withheld=nothing),
        evaluation=replace(splits.evaluation, matched=nothing, withheld=nothing),
    )
    plan = Plan.of_splits(items, config.calibration)
    assert plan.n_matched == (len(labels), 0)
    assert plan.n_hidden == n_hidden
    if n_hidden == len(labels):
        assert plan.lines()[2].endswith("the same queries with their own label hidden")
        plan.require_feasible()
        return
    assert plan.lines()[2].endswith("40 of the same queries, with their own label hidden")
    with pytest.raises(DatasetError, match="40 calibration queries without a match") as refused:
        plan.require_feasible()
    assert f"the label 'bird', which has {n_large} of the {len(labels)} items" in str(refused.value)
    assert "Add images of other labels, or leave out some of 'bird'." in str(refused.value)


def _bytes(pixels: list[list[list[int]]]) -> np.ndarray:
    return np.array(pixels, dtype=np.uint8)
