"""The steps through their real door: files in a run directory, and the command line."""

from __future__ import annotations

import errno
import gc
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from index_builder.commands.steps import step_of
from index_builder.configuration.build import BuildConfig, encoder_config
from index_builder.configuration.posterior import EnsembleConfig, MonteCarloDropoutConfig
from index_builder.datasets import load_splits
from index_builder.networks import load_encoder
from index_builder.networks.encoder import all_features
from index_builder.pipeline.build import (
    build_all,
    calibrate_step,
    evaluate_step,
    index_step,
    publish_step,
    splits_of,
)
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from index_builder.posteriors.laplace import minibatches
from index_builder.posteriors.laplace.curvature import TargetScaling
from index_builder.posteriors.laplace.fit import fit_laplace
from index_builder.posteriors.laplace.minibatches import MinibatchPlan
from index_builder.posteriors.stored import load_posterior
from index_builder.reproduction.methods import configured
from model_store import open_bundle
from model_store.bundles.manifest import read_manifest
from model_store.errors import ConfigError, DatasetError, StepNotReady
from tests.support.build_command import vouch_build

pytestmark = pytest.mark.bundle

CONFIG = """
name = "folder"
description = "digits in folders"
[dataset]
kind = "folder"
path = "{path}"
withheld_labels = ["3", "8"]
[network]
trunk = "colour_cnn"
[outliers]
calibration = "none"
evaluation = "none"
[training]
epochs = 4
labels_per_batch = 6
images_per_label = 8
"""


@pytest.fixture(scope="module")
def folder_of_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("digits")
    data = load_digits()
    for row, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        (root / str(label)).mkdir(exist_ok=True)
        pixels = np.round(image * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(root / str(label) / f"{row:04d}.png")
    (root / "0" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return root


@pytest.fixture(scope="module")
def few_digits(folder_of_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third of them, and all of the labels withheld: a calibration needs fifty absent queries."""
    root = tmp_path_factory.mktemp("few")
    for path in folder_of_digits.glob("*/*.png"):
        label, name = path.parent.name, path.stem
        if label in {"3", "8"} or not name.isdigit() or int(name) % 3 == 0:
            (root / label).mkdir(exist_ok=True)
            (root / label / path.name).hardlink_to(path)
    return root


@pytest.fixture
def small_config(digits_config: BuildConfig, few_digits: Path) -> BuildConfig:
    """The same with fewer images to learn from and to ask with: queries cost more than training."""
    fields = digits_config.model_dump()
    fields["dataset"] |= {"kind": "folder", "path": few_digits}
    fields["outliers"]["n_images"] = 100
    fields["training"]["objective"] = "contrastive"  # goes with every posterior
    return BuildConfig.model_validate(fields)


def test_a_folder_becomes_a_bundle_step_by_step(
    few_digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "folder.toml"
    config.write_text(CONFIG.format(path=few_digits))
    said = ""
    for step in ("train", "fit", "export", "index", "calibrate", "evaluate", "publish"):
        done = vouch_build(step, "--config", str(config), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said += done.stdout + done.stderr
    assert "0/broken.png" in caplog.text
    assert said.count("The first result is right for ") == 2  # calibrate, evaluate
    assert "All numbers: runs/folder/calibration.md" in said
    assert "All numbers: runs/folder/evaluation.md" in said
    assert done.stderr.splitlines()[-1] == "Next: vouch-serve --bundle bundles/folder"
    bundle = open_bundle(tmp_path / "bundles" / "folder")
    assert bundle.directory.name in said
    assert list(bundle.retriever.gallery.labels) == list("01245679")
    evaluation = json.loads((tmp_path / "runs" / "folder" / "evaluation.json").read_text())
    assert evaluation == bundle.manifest.metrics
    assert evaluation["recall_at_1"] > 0.8
    query = few_digits / "0" / "0000.png"
    answer = bundle.retriever.search(query.read_bytes())
    assert answer.matches[0].label == "0"


@pytest.mark.parametrize(
    "command",
    ["train", "fit", "export", "index", "calibrate", "evaluate", "publish", "all", "images"],
)
def test_one_command_at_a_time_has_a_run(few_digits: Path, tmp_path: Path, command: str) -> None:
    config = tmp_path / "folder.toml"
    config.write_text(CONFIG.format(path=few_digits))
    arguments: list[str] = [command, "--config", str(config)]
    if command == "images":
        (tmp_path / "folder.csv").write_text("path\nnone.png\n")
        arguments = ["all", "--images", "folder.csv"]
    with Run(tmp_path / "runs" / "folder").occupied():
        done = vouch_build(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert "Another process works in runs/folder" in done.stderr
    assert [path.name for path in (tmp_path / "runs" / "folder").iterdir()] == ["lock"]


def test_feedback_that_is_not_there_is_refused(folder_of_digits: Path, tmp_path: Path) -> None:
    config = tmp_path / "folder.toml"
    config.write_text(CONFIG.format(path=folder_of_digits))
    done = vouch_build("calibrate", "--config", str(config), "--feedback", "none.db", cwd=tmp_path)
    assert done.returncode == 1
    assert "The feedback file none.db does not exist" in " ".join(done.stderr.split())


def test_images_without_labels_become_a_gallery_of_things(
    folder_of_digits: Path, tmp_path: Path
) -> None:
    """Every image is a thing of its own; queries are views of it, and the bundle says so."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for path in sorted(folder_of_digits.glob("[0-9]/*[05].png")):
        Image.open(path).resize((32, 32)).save(pictures / path.name)
    config = BuildConfig.model_validate(
        {
            "name": "things",
            "dataset": {"kind": "folder", "path": pictures, "labels": "none"},
            "outliers": {"n_images": 100},
            "network": {"trunk": "colour_cnn"},
            "training": {"epochs": 6, "labels_per_batch": 40, "images_per_label": 2},
        }
    )
    published, report = build_all(config, Run(tmp_path / "run"), tmp_path / "bundles")
    assert report["recall_at_10"] > 0.3  # of 300 drawings, many of which look alike
    assert "no_match_auroc" not in report
    bundle = open_bundle(published)
    assert list(bundle.retriever.gallery.labels) == []
    calibration = bundle.retriever.calibration
    assert calibration is not None
    assert calibration.report["queries"] == "views_of_items"
    assert bundle.manifest.samples[0].caption.startswith("a view of ")
    itself = min(pictures.iterdir())
    answer = bundle.retriever.search(itself.read_bytes())
    assert (answer.matches[0].id, answer.matches[0].label) == (itself.name, None)
    assert answer.matches[0].match_probability is not None
    assert len(answer.result_set) >= 1


@pytest.mark.parametrize("labels", ["folders", "none"])
def test_too_few_queries_are_told_before_anything_is_computed(
    folder_of_digits: Path, tmp_path: Path, labels: str
) -> None:
    for label in "01":
        (tmp_path / "few" / label).mkdir(parents=True)
        for path in sorted((folder_of_digits / label).glob("0*.png"))[:30]:
            shutil.copy(path, tmp_path / "few" / label)
    config = BuildConfig.model_validate(
        {
            "name": "few",
            "dataset": {"kind": "folder", "path": tmp_path / "few", "labels": labels},
            "network": {"trunk": "small_cnn"},
        }
    )
    with pytest.raises(DatasetError, match="queries to calibrate with") as refused:
        build_all(config, Run(tmp_path / "run"), tmp_path / "bundles")
    assert ("--no-labels" in str(refused.value)) == (labels == "folders")
    assert not (tmp_path / "run").exists()


def test_a_name_that_is_no_id_is_told_before_anything_is_computed(
    folder_of_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder_of_digits, tmp_path / "digits")
    (tmp_path / "digits" / "1").rename(tmp_path / "digits" / "l\t1")
    done = vouch_build("all", "--images", "digits", "--dry-run", cwd=tmp_path)
    assert done.returncode == 1
    assert r"'l\t1/" in done.stderr
    assert "must not have control characters" in done.stderr
    assert "Rename the file or folder" in done.stderr
    assert "--max-bad" not in done.stderr


def test_a_label_that_breaks_the_rule_is_told_before_anything_is_computed(
    folder_of_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder_of_digits, tmp_path / "digits")
    paths = sorted((tmp_path / "digits").rglob("*.png"))
    rows = [f"{path.relative_to(tmp_path)},\u202e{path.parent.name}" for path in paths]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]), "utf-8")
    done = vouch_build("all", "--images", "list.csv", "--dry-run", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot be a label: it must not have control characters" in done.stderr


def test_paths_of_a_table_are_relative_to_the_root(folder_of_digits: Path, tmp_path: Path) -> None:
    """The table is elsewhere than its images."""
    paths = sorted(folder_of_digits.glob("[01]/*.png"))[:120]
    rows = [f"{path.relative_to(folder_of_digits)},{path.stem[-1]}" for path in paths]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]), "utf-8")
    command = ("all", "--images", "list.csv", "--dry-run", "--json")
    done = vouch_build(*command, cwd=tmp_path)
    assert done.returncode == 1
    assert "120 of 120 images could not be copied" in done.stderr
    assert "name the folder of all images with --root" in done.stderr
    done = vouch_build(*command, "--root", str(folder_of_digits), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_images"] == 120


def test_source_with_one_label_is_refused_with_what_labels_are(
    folder_of_digits: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder_of_digits / "1", tmp_path / "digits" / "1")
    done = vouch_build("all", "--images", "digits", "--dry-run", cwd=tmp_path)
    assert done.returncode == 1
    assert "Labels of the gallery: '1'. A build needs two or more" in done.stderr


@pytest.mark.parametrize(
    ("step", "missing"),
    [
        ("fit", "vouch-build train"),
        ("export", "vouch-build train"),
        ("index", "vouch-build export"),
        ("calibrate", "vouch-build export"),
        ("evaluate", "vouch-build calibrate"),
        ("publish", "vouch-build evaluate"),
    ],
)
def test_a_step_too_early_says_what_comes_first(tmp_path: Path, step: str, missing: str) -> None:
    done = vouch_build(step, "-c", "digits", cwd=tmp_path)
    assert done.returncode == 1
    assert missing in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs").exists() == (step != "publish")  # which only reads


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "-c", "cats"], "neither a file nor a built-in name"),
        (["train"], "Missing option '--config'"),
        (["bake"], "No such command"),
    ],
)
def test_a_wrong_call_is_explained(tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    done = vouch_build(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_help_names_every_step(tmp_path: Path) -> None:
    said = vouch_build("--help", cwd=tmp_path).stdout
    for step in ("train", "fit", "export", "index", "calibrate", "evaluate", "publish", "all"):
        assert f" {step} " in said


@pytest.mark.parametrize(
    ("posterior", "method"),
    [
        (
            {"structure": "diagonal", "approximation": "full", "split": "arccos"},
            "laplace_full_arccos",
        ),
        ({"approximation": "positives"}, "laplace_kronecker_positives_euclidean"),
        ({"method": "online_laplace"}, "online_laplace_kronecker_fixed_euclidean"),
        (
            {"method": "online_laplace", "structure": "diagonal", "n_samples": 2},
            "online_laplace_fixed_euclidean",
        ),
        ({"method": "bayesian_triplet"}, "bayesian_triplet_diagonal_gaussian"),
        (
            {
                "method": "bayesian_triplet",
                "variance": "isotropic",
                "prior": "von_mises_fisher",
                "mining": "semihard",
            },
            "bayesian_triplet_isotropic_von_mises_fisher",
        ),
        ({"method": "pfe", "epochs": 2}, "pfe"),
        ({"method": "loss_prediction", "epochs": 2}, "loss_prediction_ranking"),
        ({"method": "hib"}, "hib"),
    ],
)
def test_every_posterior_becomes_a_bundle_that_answers(
    posterior: dict[str, object],
    method: str,
    small_config: BuildConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The way is the same with fewer minibatches than `full` is estimated from otherwise.
    monkeypatch.setattr(minibatches, "MinibatchPlan", partial(MinibatchPlan, n_minibatches=16))
    config = BuildConfig.model_validate({**small_config.model_dump(), "posterior": posterior})
    bundle, report = build_all(config, Run(tmp_path / "run"), tmp_path / "bundles")
    assert report["recall_at_1"] > 0.9
    assert report["outlier_auroc"]["far"]["outlier_score"] > 0.95
    _sure_of_some_more_than_of_others(bundle, method)
    written = json.loads((tmp_path / "run" / "posterior.json").read_text())
    assert written["method"] == method
    if "laplace" in method:
        assert 0 < written["curvature"]["mean"] < written["curvature"]["largest"]


def test_without_a_posterior_answers_are_certain(
    digits_config: BuildConfig, digits_bundle: Path, digits_run: Path, tmp_path: Path
) -> None:
    """The deterministic baseline: the same neighbours, and nothing but distances to judge by."""
    few = digits_config.outliers.model_copy(update={"n_images": 100})
    config = digits_config.model_copy(update={"outliers": few})
    config = configured(config, "deterministic", Run(digits_run).checkpoint)
    bundle, report = build_all(config, Run(tmp_path / "run"), tmp_path / "bundles")
    assert report["no_match_auroc"]["uncertainty"] == 0.5
    assert report["no_match_auroc"]["no_match_probability"] > 0.9
    opened, other = open_bundle(bundle).retriever, open_bundle(digits_bundle).retriever
    assert opened.encoder.metadata.posterior == "deterministic"
    query = (bundle / open_bundle(bundle).manifest.samples[0].file).read_bytes()
    answer, theirs = opened.search(query), other.search(query)
    assert answer.predictive.spherical_variance == 0
    assert answer.matches[0].id == theirs.matches[0].id
    assert answer.matches[0].similarity == pytest.approx(theirs.matches[0].similarity, abs=1e-4)


def test_dropout_and_its_passes_become_a_bundle_that_answers(
    small_config: BuildConfig, tmp_path: Path
) -> None:
    # The trunk with dropout inside.
    network = small_config.network.model_copy(update={"trunk": "small_cnn"})
    config = configured(small_config.model_copy(update={"network": network}), "mc_dropout")
    few = MonteCarloDropoutConfig(method="mc_dropout", n_passes=3)
    config = config.model_copy(update={"posterior": few})
    bundle, report = build_all(config, Run(tmp_path / "run"), tmp_path / "bundles")
    assert report["recall_at_1"] > 0.9
    _sure_of_some_more_than_of_others(bundle, "mc_dropout")


def test_an_ensemble_is_trained_member_by_member_and_goes_on_where_it_was_left(
    small_config: BuildConfig, tmp_path: Path
) -> None:
    pair = EnsembleConfig(method="ensemble", n_members=2)
    short = small_config.training.model_copy(update={"epochs": 1})
    config = small_config.model_copy(update={"posterior": pair, "training": short})
    run = Run(tmp_path / "run")
    train_step(config, run, splits_of(config))
    first, second = run.member(0), run.member(1)
    alone = configured(small_config.model_copy(update={"training": short}), "deterministic")
    assert first.read_json("training.json")["config"] == alone.model_dump(mode="json")
    assert first.checkpoint.read_bytes() != second.checkpoint.read_bytes()
    # Pixels are standardised by the training images: both members had those of the build.
    theirs, ours = load_file(first.checkpoint), load_file(second.checkpoint)
    assert torch.equal(theirs["pixel_mean"], ours["pixel_mean"])
    written, lost = first.checkpoint.stat().st_mtime_ns, second.checkpoint.read_bytes()
    (run.directory / "training.json").unlink()  # as if interrupted in the second
    (second.directory / "training.json").unlink()
    second.checkpoint.unlink()
    with pytest.raises(StepNotReady, match="vouch-build train"):
        fit_step(config, run, splits_of(config))
    train_step(config, run, splits_of(config))
    assert first.checkpoint.stat().st_mtime_ns == written
    assert second.checkpoint.read_bytes() == lost
    train_step(config, run, splits_of(config))  # whole, so that data may have changed since
    assert first.checkpoint.stat().st_mtime_ns > written
    fit_step(config, run, splits_of(config))
    export_step(config, run, splits_of(config))
    for step in (index_step, calibrate_step, evaluate_step):
        step(config, run)
    bundle = publish_step(config, run, tmp_path / "bundles")
    agreement = run.read_json("posterior.json")["agreement_with_first"]
    assert agreement["turned"][0] == pytest.approx(1)
    assert agreement["turned"][1] > agreement["as_trained"][1] + 0.5
    assert run.read_json("evaluation.json")["recall_at_1"] > 0.9
    _sure_of_some_more_than_of_others(bundle, "ensemble_of_2")


def _sure_of_some_more_than_of_others(bundle: Path, method: str) -> None:
    """Uncertainty is a property of the query, not a constant."""
    opened = open_bundle(bundle)
    assert opened.retriever.encoder.metadata.posterior == method
    variances = [
        opened.retriever.search((bundle / sample.file).read_bytes()).predictive.spherical_variance
        for sample in opened.manifest.samples
    ]
    assert all(0 < variance < 1 for variance in variances)
    assert len(set(variances)) == len(variances) > 1


@pytest.mark.usefixtures("digits_bundle")
def test_a_posterior_is_fitted_to_an_encoder_that_is_there(
    digits_config: BuildConfig, digits_run: Path, tmp_path: Path
) -> None:
    checkpoint = Run(digits_run).checkpoint
    fields = digits_config.model_dump()
    fields["network"] |= {"weights": str(checkpoint), "last_layer": "loaded"}
    fields["training"]["epochs"] = 0
    config, run = BuildConfig.model_validate(fields), Run(tmp_path)
    train_step(config, run, splits_of(config))
    fit_step(config, run, splits_of(config))
    theirs, ours = (load_file(path) for path in (Run(digits_run).posterior, run.posterior))
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def test_whitening_adds_no_dimensions(digits_config: BuildConfig, tmp_path: Path) -> None:
    """The configuration knows the features of trunks; those of an encoder are counted here."""
    too_many = {"last_layer": "whitening", "embedding_dim": 10_000}
    network = digits_config.network.model_copy(update=too_many)
    config = digits_config.model_copy(update={"network": network})
    with pytest.raises(ConfigError, match="embedding_dim = 10000, but the trunk has only 1024"):
        train_step(config, Run(tmp_path), splits_of(config))


def test_a_run_and_its_configuration_belong_together(
    digits_config: BuildConfig, digits_bundle: Path, digits_run: Path
) -> None:
    for change in (
        {"seed": 7},
        {"posterior": {"method": "ensemble"}},
        {"training": {**digits_config.training.model_dump(), "margin": 0.5}},
    ):
        config = BuildConfig.model_validate({**digits_config.model_dump(), **change})
        with pytest.raises(
            ConfigError, match=rf"trained with other values of `{next(iter(change))}`"
        ):
            fit_step(config, Run(digits_run), splits_of(config))


def test_too_few_images_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in (1, 2):  # pictures of their own: copies are never divided
            shade = (80 * number, ord(label), 0)
            Image.new("RGB", (9, 9), shade).save(tmp_path / label / f"{number}.png")
    config = encoder_config(tmp_path, name="few")
    with pytest.raises(DatasetError, match="There are 4 training images, at most 2 of one"):
        train_step(config, Run(tmp_path / "run"), splits_of(config))


def test_brackets_in_an_error_are_not_taken_for_markup(tmp_path: Path) -> None:
    done = vouch_build("train", "-c", "[bold]/data[/x]", cwd=tmp_path)
    assert done.returncode == 1
    assert "'[bold]/data[/x]'" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "error: No space left on device. Free disk",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "a[b]"), "error: a[b]: Permission"),
        (
            SafetensorError("Error while serializing: I/O error: No space left on device"),
            "error: No space left on device. Free disk",
        ),
    ],
)
def test_what_a_disk_says_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def full(_: Path) -> None:
        raise error

    monkeypatch.setattr("index_builder.commands.bundles.current_id", full)
    done = vouch_build("bundles", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_an_error_of_the_system_that_is_not_of_the_disk_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(_: Path) -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr("index_builder.commands.bundles.current_id", reset)
    with pytest.raises(ConnectionResetError):
        vouch_build("bundles", str(tmp_path), cwd=tmp_path)


def test_the_same_build_gives_the_same_bundle(
    digits_config: BuildConfig, digits_bundle: Path, tmp_path: Path
) -> None:
    again, _ = build_all(digits_config, Run(tmp_path / "run"), tmp_path / "bundles")
    first, second = read_manifest(digits_bundle), read_manifest(again)
    assert first.files == second.files
    assert again.name == digits_bundle.name


def test_the_run_says_what_it_did(
    digits_bundle: Path, digits_run: Path, digits_config: BuildConfig
) -> None:
    training = json.loads((digits_run / "training.json").read_text())
    assert training["config"] == digits_config.model_dump(mode="json")
    assert len(training["epochs"]) == digits_config.training.epochs
    posterior = json.loads((digits_run / "posterior.json").read_text())
    assert posterior["prior_chosen_by"] == "validation"
    fraction = posterior["validation"]["fraction"]
    assert posterior["prior_share"] == pytest.approx(fraction / (1 + fraction))
    assert posterior["norm_correlation"] < 0.9
    assert posterior["prior_precision"] in posterior["prior_search"]["candidates"]
    evaluated = json.loads((digits_bundle / "evaluation.json").read_text())["posterior"]
    for name in ("method", "prior_share", "norm_correlation", "temperature"):
        assert evaluated[name] == posterior[name]
    assert posterior["data_scale"] == training["n_images"]


@pytest.fixture(scope="module")
def quick(
    digits_config: BuildConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BuildConfig, Path]:
    """A configuration and its run, trained for an epoch on a ninth of the features."""
    fields = digits_config.model_dump()
    fields["network"]["trunk"] = "colour_cnn"
    fields["training"]["epochs"] = 1
    config = BuildConfig.model_validate(fields)
    run = tmp_path_factory.mktemp("quick") / "run"
    train_step(config, Run(run), splits_of(config))
    return config, run


def refitted(
    config: BuildConfig, run: Path, into: Path, posterior: dict[str, object]
) -> dict[str, Any]:
    """The posterior's report of a run that is fitted again."""
    shutil.copytree(run, into, dirs_exist_ok=True)
    changed = BuildConfig.model_validate({**config.model_dump(), "posterior": posterior})
    fit_step(changed, Run(into), splits_of(changed))
    report: dict[str, Any] = json.loads((into / "posterior.json").read_text())
    return report


def test_validation_chooses_the_temperature(
    digits_bundle: Path, digits_run: Path, digits_config: BuildConfig, tmp_path: Path
) -> None:
    asked = {"structure": "diagonal", "prior_precision": 1.0}
    posterior = refitted(digits_config, digits_run, tmp_path, asked)
    assert (posterior["prior_precision"], posterior["prior_chosen_by"]) == (1.0, "caller")
    search = posterior["temperature_search"]
    # Of equally good ones the widest: all images are found right below some temperature.
    best = max(zip(search["values"], search["candidates"], strict=True))
    assert posterior["temperature"] == best[1]
    assert search["values"].count(best[0]) > 1
    assert posterior["temperature"] < 1  # images say more than as many observations would
    variances = load_file(tmp_path / "posterior.safetensors")["weight_variance"]
    assert variances.max() <= posterior["temperature"] * (1 + 1e-6)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_a_posterior_that_is_all_prior_is_warned_of(
    quick: tuple[BuildConfig, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    structure: str,
) -> None:
    config, run = quick
    quiet = {"structure": structure, "prior_chosen_by": "curvature", "temperature": 1.0}
    report = refitted(config, run, tmp_path, quiet)
    assert report["norm_correlation"] < 0.95
    assert "nothing beyond" not in capsys.readouterr().err
    report = refitted(config, run, tmp_path, {**quiet, "prior_precision": 1e6})
    assert report["prior_share"] > 0.99
    assert report["norm_correlation"] > 0.99
    assert "adds no information to the norm of the features" in " ".join(
        capsys.readouterr().err.split()
    )


def test_pairs_are_weighted_as_the_configuration_says(
    quick: tuple[BuildConfig, Path], tmp_path: Path
) -> None:
    """Labels of the digits have 106 to 112 training images: nearly alike, and not quite."""
    config, run = quick
    for scaling in get_args(TargetScaling):
        # Nothing is searched for: the curvature is the same.
        posterior = {"scaling": scaling, "prior_precision": 1.0, "temperature": 1.0}
        report = refitted(config, run, tmp_path / scaling, posterior)
        encoder = load_encoder(config.network, Run(run).checkpoint)
        images = load_splits(config).training
        by_hand = fit_laplace(
            partial(iter, [all_features(encoder, images)]),
            torch.from_numpy(images.label_codes()),
            encoder.last_layer.weight,
            encoder.last_layer.bias,
            margin=config.training.margin,
            scaling=scaling,
            prior_scale="isotropic",
        )
        assert report["curvature"]["mean"] == pytest.approx(by_hand.curvature.mean, rel=1e-5)
    means = [
        json.loads((tmp_path / scaling / "posterior.json").read_text())["curvature"]["mean"]
        for scaling in get_args(TargetScaling)
    ]
    assert means[0] != pytest.approx(means[1], rel=1e-4)


def test_where_every_negative_is_inside_the_margin_positives_alone_are_taken(
    quick: tuple[BuildConfig, Path], tmp_path: Path
) -> None:
    given, run = quick
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    fields = given.model_dump()
    fields["training"]["margin"] = 1.9999
    # Neither is searched for: each search fits the curvature of several folds again.
    fields["posterior"] |= {"temperature": 1.0, "prior_chosen_by": "curvature"}
    training = json.loads((tmp_path / "training.json").read_text())
    training["config"]["training"]["margin"] = 1.9999
    (tmp_path / "training.json").write_text(json.dumps(training))
    config = BuildConfig.model_validate(fields)
    fit_step(config, Run(tmp_path), splits_of(config))
    posterior = json.loads((tmp_path / "posterior.json").read_text())
    assert posterior["approximation"] == "positives"
    assert posterior["curvature"]["mean"] > 0


def test_the_demo_learns_and_knows_what_it_does_not_know(digits_bundle: Path) -> None:
    metrics = read_manifest(digits_bundle).metrics
    assert metrics is not None
    assert metrics["recall_at_1"] > 0.95
    assert metrics["top1_ece"] < 0.08
    assert metrics["outlier_auroc"]["far"]["outlier_score"] > 0.99
    assert metrics["no_match_auroc"]["no_match_probability"] > 0.9
    assert metrics["false_alarm_rate"]["0.05"] < 0.11
    assert metrics["verdicts"]["matched"]["match"] > 0.6
    assert metrics["verdicts"]["far"]["out_of_distribution"] > 0.95


def test_a_damaged_posterior_file_is_refused(digits_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "posterior.safetensors"
    shutil.copy(digits_run / "posterior.safetensors", copy)
    copy.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(Exception, match=r"SafetensorError|incomplete|Header"):
        load_posterior(copy)


def test_loaded_libraries_are_excluded_from_garbage_collection() -> None:
    gc.unfreeze()
    step_of("plan_of")
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()
