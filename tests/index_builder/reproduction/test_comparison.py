"""``vouch-build reproduce --protocol objectives``, on scikit-learn's digits."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.objectives.registry import OBJECTIVES
from index_builder.pipeline.run import Run
from index_builder.reproduction import compared_encoder, comparison
from index_builder.reproduction.compared_encoder import (
    DECISION,
    LAPLACE,
    NORM,
    POSTERIORS,
    PRIORS,
)
from index_builder.reproduction.comparison import (
    DEFAULT_PRIOR,
    GROUPS,
    Grid,
    markdown,
    objectives_named,
    summary_of,
    write_page,
)
from index_builder.reproduction.data_sets import Origin
from index_builder.reproduction.photographs import caltech101
from index_builder.reproduction.protocols import (
    PROTOCOLS,
    Loading,
    Outliers,
    ProtocolConfig,
    ProtocolData,
    Task,
    load_protocol,
    protocol_config,
)
from model_store.errors import ConfigError, DatasetError

pytestmark = pytest.mark.bundle

FEW = "few-digits"

ARGUMENTS = ["reproduce", "--protocol", "objectives", "--objective", "cross_entropy"]
ARGUMENTS += ["--data", ".", "--seeds", "1", "--epochs", "2"]


def few_digits(loading: Loading) -> ProtocolData:
    """A third of the digits, and a tenth of the photographs."""
    data = PROTOCOLS["digits"].load(loading)
    gallery = data.test.gallery.at(range(300))
    return replace(
        data,
        training=gallery.at(range(250)),
        validation=gallery.at(range(250, 300)),
        development=Task(data.development.queries.at(range(120)), gallery),
        development_outliers=data.development_outliers.at(range(100)),
        test=Task(data.test.queries.at(range(120)), gallery),
        test_outliers={
            "photographs": Outliers(data.test_outliers["photographs"].images.at(range(100)), "far")
        },
    )


@pytest.fixture(scope="module")
def few_data() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROTOCOLS, FEW, replace(PROTOCOLS["digits"], load=few_digits))
        patch.setattr(comparison, "DATA_SETS", (FEW,))
        patch.setattr(comparison, "PRIORS", dict(list(PRIORS.items())[1:2]))
        yield


@pytest.fixture(scope="module")
def out(few_data: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished comparison: one encoder, with one more way to choose a prior."""
    directory = tmp_path_factory.mktemp("objectives")
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(directory)])
    assert result.exit_code == 0, result.output
    return directory


@pytest.fixture
def cell(out: Path) -> dict[str, Any]:
    path = out / "cells" / FEW / "cross_entropy" / "seed-0.json"
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_every_view_of_the_same_encoder_is_measured(cell: dict[str, Any]) -> None:
    assert set(cell["metrics"]) == {*POSTERIORS, DECISION}
    recalls = {found["recall_at_1"] for found in cell["metrics"].values()}
    assert len(recalls) == 1  # no posterior changes what is found
    for name in (NORM, LAPLACE, DECISION):
        known = cell["metrics"][name]
        assert all(0 <= known[metric] <= 1 for metric in ("error_auroc", "ood_auroc", "ece"))
    plain = cell["metrics"][LAPLACE]
    assert plain["similarity_error_auroc"] == cell["metrics"][NORM]["similarity_error_auroc"]
    assert 0 < plain["similarity_ece"] < 1
    assert cell["metrics"][DECISION]["ood_auroc"] > 0.9
    assert all(seconds > 0 for seconds in cell["costs"].values())
    (other,) = cell["priors"].values()
    assert other["ood_auroc"] != plain["ood_auroc"]


def test_what_is_measured_is_not_measured_again(
    out: Path, cell: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(comparison, "measure_encoder", refuse)
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert not (out / "run").exists()
    recall = f"{cell['metrics'][LAPLACE]['recall_at_1']:.3f}"
    assert f"| `cross_entropy` | 1 | {recall} |" in (out / "table.md").read_text()
    other = CliRunner().invoke(app, [*ARGUMENTS[:-1], "3", "--out", str(out)])
    assert isinstance(other.exception, ConfigError)
    assert "other settings" in str(other.exception)


def test_views_are_not_wanted_of_a_frozen_trunk(tmp_path: Path) -> None:
    two = Grid(["contrastive", "simclr"], [0], tmp_path, {}, ("caltech-101", "omniglot-small"))
    assert list(two.cells()) == [
        ("caltech-101", "contrastive", 0),
        ("omniglot-small", "contrastive", 0),
        ("omniglot-small", "simclr", 0),
    ]


def test_each_seed_has_its_own_whitening_and_all_share_the_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def train(config: ProtocolConfig, run: Run, _: object) -> None:
        trained.append(config.seed)
        run.checkpoint.write_text(f"whitening of seed {config.seed}")
        run.trunk.write_text("trunk")
        with run.vectors.open("a") as vectors:
            vectors.write(f"features of seed {config.seed}, ")

    monkeypatch.setattr(compared_encoder, "train_step", train)
    splits = load_protocol(protocol_config("digits")).splits()
    run, started = Run(tmp_path / "run"), []
    for objective in ("contrastive", "triplet"):
        for seed in (0, 1):
            config = protocol_config("caltech-101", seed=seed, objective=objective)
            shared = Run(tmp_path / "trunks")
            started.append(compared_encoder._on_shared_trunk(config, run, shared, splits))
    assert trained == [0, 1]
    weights = [Path(str(config.network.weights)).read_text() for config in started]
    assert weights == ["whitening of seed 0", "whitening of seed 1"] * 2
    assert run.trunk.read_text() == "trunk"
    assert run.vectors.read_text() == "features of seed 0, features of seed 1, "


def test_objectives_are_named_as_they_are_registered() -> None:
    assert objectives_named(None) == list(OBJECTIVES)
    assert objectives_named("supcon, contrastive") == ["contrastive", "supcon"]
    with pytest.raises(ConfigError, match="No objective 'magic'"):
        objectives_named("magic")


def test_the_table_has_means_over_seeds_and_says_which_is_best(
    cell: dict[str, Any], tmp_path: Path
) -> None:
    def changed(objective: str, seed: int, recall: float) -> dict[str, Any]:
        other = copy.deepcopy(cell) | {"objective": objective, "seed": seed, "priors": {}}
        for found in other["metrics"].values():
            found["recall_at_1"] = recall
        other["costs"]["training"] = 2.0 if objective == "contrastive" else 3.0
        return other

    cells = [
        changed("contrastive", 0, 0.5),
        changed("contrastive", 1, 0.7),
        changed("supcon", 0, 1.0),
        cell,
    ]
    summary = summary_of(cells, ["omniglot, spce, seed 0: no"])
    text = markdown(summary)
    assert "| `contrastive` | 2 | 0.600 ± 0.141 |" in text
    assert "| `supcon` | 1 | 1.000 |" in text
    assert next(line for line in text.splitlines() if "supcon" in line).endswith("| 1.5 |")
    assert f"| {DEFAULT_PRIOR} |" in text
    write_page(summary, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert '<td class="best">1.000</td>' in page
    assert "omniglot, spce, seed 0: no" in page
    rows = re.findall(r"<tr><th scope=\"row\">(?:contrastive|supcon).*?</tr>", page, re.DOTALL)
    n_columns = sum(map(len, GROUPS.values())) + 1  # and the number of seeds
    assert [row.count("<td") for row in rows] == [n_columns] * 2
    assert "http" not in page


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", comparison.DATA_SETS)
def test_no_test_image_of_a_small_protocol_is_learned_from(data_dir: Path, name: str) -> None:
    first, second = (
        load_protocol(protocol_config(name, data=data_dir, allow_partial=True, seed=seed))
        for seed in (0, 1)
    )
    learned = {*first.training.ids, *first.validation.ids, *first.development.queries.ids}
    assert not learned & {*first.test.queries.ids}
    assert not {*first.training.ids} & {*first.validation.ids}
    assert not {*first.training.ids} & {*first.development.queries.ids}
    assert first.test.queries.ids == second.test.queries.ids
    assert first.training.ids != second.training.ids
    if name != "fashion-mnist-tiny":
        assert not {*first.test.queries.labels} & {*first.training.labels}


def test_caltech_is_read_in_its_official_layout(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 3), dtype=np.uint8)
    for row, category in enumerate(("ant", "ant", "wrench", "BACKGROUND_Google")):
        folder = tmp_path / "caltech-101" / "101_ObjectCategories" / category
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row]).save(folder / f"image_{row:04}.jpg")
    found = caltech101(Origin(tmp_path, allow_partial=True))
    assert found.parts["all"].labels == ("ant", "ant", "wrench")
    assert found.parts["all"].pixels(2).shape == (20, 30, 3)
    assert found.partial == {"Caltech-101, all": "3 of 8,677 images, 2 of 101 labels"}
    with pytest.raises(DatasetError, match=r"Caltech-101: .* is missing"):
        caltech101(Origin(tmp_path / "nowhere"))
