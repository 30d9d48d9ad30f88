"""Objectives through the doors of configuration, training loop, checkpoint and bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.encoder import EncoderConfig, TrainingConfig
from index_builder.configuration.objective import OF_VIEWS, ObjectiveConfig
from index_builder.networks import MetricEncoder, load_encoder
from index_builder.networks.trunk import Trunk, drawn_from
from index_builder.objectives import Objective, objective_of
from index_builder.objectives.registry import OBJECTIVES
from index_builder.pipeline.build import splits_of
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import fit_step, train_step
from index_builder.training import Augmentation, train
from model_store import open_bundle
from model_store.images import Preprocessing
from model_store.sphere import base_noise
from tests.support.build_command import vouch_build
from tests.support.narrowing import not_none

N, N_LABELS, N_FEATURES, DIM = 60, 4, 12, 8
LABELS = torch.arange(N) % N_LABELS


def kinds() -> set[str]:
    sections = get_args(get_args(ObjectiveConfig)[0])
    return {kind for each in sections for kind in get_args(each.model_fields["kind"].annotation)}


def test_every_kind_of_the_configuration_has_its_line_and_no_other() -> None:
    assert kinds() == set(OBJECTIVES)
    assert kinds() >= OF_VIEWS


class Nothing(Trunk):
    """Stands where features are given."""

    preprocessing = Preprocessing(height=1, width=1)
    n_features = N_FEATURES

    def forward(self, images: Tensor) -> Tensor:
        return images


def features() -> Tensor:
    """Of labels that overlap: (60, 12)."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(N_LABELS, N_FEATURES, generator=generator)
    return centres[LABELS] + 1.5 * torch.randn(N, N_FEATURES, generator=generator)


def trained(
    kind: str, epochs: int, **settings: Any
) -> tuple[MetricEncoder, Objective, list[float]]:
    """A last layer that an objective has trained on features; views of one differ by noise."""
    generator = torch.Generator().manual_seed(1)
    with drawn_from(generator):
        encoder = MetricEncoder(Nothing(), DIM)
    config = TrainingConfig.model_validate(
        {
            "objective": {"kind": kind, **settings},
            "epochs": epochs,
            "labels_per_batch": N_LABELS,
            "images_per_label": 5,
            "learning_rate": 0.02,
        }
    )
    objective = objective_of(config, DIM, N_LABELS, generator)
    given, noise = features(), 0.3 if kind in OF_VIEWS else 0.0

    def source(rows: Tensor) -> Tensor:
        return given[rows] + noise * torch.randn(len(rows), N_FEATURES, generator=generator)

    history = train(encoder, objective, source, LABELS, config, generator) if epochs else []
    return encoder, objective, [epoch.loss for epoch in history]


def neighbours(encoder: MetricEncoder) -> float:
    """Share of images whose five nearest others are of their label, on average."""
    unit = torch.nn.functional.normalize(encoder.last_layer(features()))
    nearest = (unit @ unit.T).fill_diagonal_(-2).topk(5).indices
    return (LABELS[nearest] == LABELS[:, None]).double().mean().item()


@pytest.mark.parametrize("kind", sorted(OBJECTIVES))
def test_every_objective_trains_and_repeats_to_the_bit(kind: str) -> None:
    encoder, objective, losses = trained(kind, 15)
    if kind not in {"triplet", "margin"}:  # averaged over what still pays, they need not fall
        assert losses[-1] < losses[0]
    if kind not in OF_VIEWS:
        assert neighbours(encoder) > neighbours(trained(kind, 0)[0]) + 0.05
    again, same, _ = trained(kind, 15)
    assert torch.equal(encoder.last_layer.weight, again.last_layer.weight)
    for name, value in objective.learned().items():
        assert torch.equal(value, same.learned()[name])


@pytest.mark.parametrize("kind", sorted(OBJECTIVES))
def test_whatever_an_objective_learns_beside_the_encoder_has_moved(kind: str) -> None:
    before, after = (trained(kind, epochs)[1].learned() for epochs in (0, 2))
    assert set(before) == set(after)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    learns = "proxy" in kind or "vmf" in kind or kind in {"margin", "cross_entropy", "center"}
    assert bool(before) == learns


def test_proxies_have_a_learning_rate_of_their_own() -> None:
    slow, fast = (
        trained("proxy_anchor", 1, learning_rate=rate)[1].learned()["proxies"]
        for rate in (1e-6, 0.1)
    )
    before = trained("proxy_anchor", 0)[1].learned()["proxies"]
    assert (slow - before).abs().max() < 1e-4
    assert (fast - before).abs().max() > 1e-2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_trains_with_nesterov_and_without(momentum: float) -> None:
    """Torch refuses Nesterov's momentum of nothing."""
    generator = torch.Generator().manual_seed(1)
    with drawn_from(generator):
        encoder = MetricEncoder(Nothing(), DIM)
    config = TrainingConfig.model_validate(
        {"objective": "cross_entropy", "optimizer": "sgd", "momentum": momentum, "epochs": 10}
    )
    given = features()
    objective = objective_of(config, DIM, N_LABELS, generator)
    history = train(encoder, objective, lambda rows: given[rows], LABELS, config, generator)
    assert history[-1].loss < history[0].loss


def config(**tables: Any) -> EncoderConfig:
    return EncoderConfig.model_validate({"name": "x", **tables})


def test_a_kind_alone_is_an_objective_with_the_papers_settings() -> None:
    short = config(training={"objective": "multi_similarity"}).training.objective
    assert short == config(training={"objective": {"kind": "multi_similarity"}}).training.objective
    assert short.model_dump() == {"kind": "multi_similarity", "alpha": 2, "beta": 50, "base": 0.5}


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"training": {"objective": "tripplet"}}, "'triplet'"),
        ({"training": {"objective": {"kind": "spce", "margin": 1}}}, "margin"),
        (
            {"training": {"objective": {"kind": "triplet", "form": "soft", "margin": 1}}},
            "Drop `margin`",
        ),
        (
            {"training": {"objective": "supcon"}, "posterior": {"method": "hib"}},
            "trains with its own loss",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**tables)


def test_crops_and_lights_keep_size_and_type() -> None:
    images = torch.randint(0, 256, (30, 9, 7, 3), dtype=torch.uint8)
    crop = TrainingConfig(crop=0.3)
    cropped = Augmentation.drawn(30, crop, torch.Generator().manual_seed(0))(images)
    lit = Augmentation.drawn(30, TrainingConfig(jitter=0.4), torch.Generator().manual_seed(0))(
        images
    )
    for changed in (cropped, lit):
        assert (changed.shape, changed.dtype) == (images.shape, torch.uint8)
        assert not (changed == images).flatten(1).all(1).any()
    ramp = torch.arange(0, 250, 10, dtype=torch.uint8).view(1, 1, 25, 1).repeat(1, 25, 1, 3)
    seen = Augmentation.drawn(1, crop, torch.Generator().manual_seed(3))(ramp)[0, 0, :, 0]
    assert (seen[1:].int() - seen[:-1].int() >= 0).all()  # a part of it, enlarged
    assert 0 < int(seen[-1]) - int(seen[0]) < 240
    part = Augmentation.drawn(30, crop, torch.Generator().manual_seed(0)).of(torch.tensor([4, 2]))
    assert torch.equal(part(images[[4, 2]]), cropped[[4, 2]])


@pytest.mark.bundle
def test_images_without_labels_are_learned_by_simclr(tmp_path: Path) -> None:
    """Each comes with a view of it, so that nothing has to be augmented."""
    (tmp_path / "pictures").mkdir()
    for row, image in enumerate(load_digits().images[:80]):
        pixels = np.round(image * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).resize((28, 28)).save(tmp_path / "pictures" / f"{row:03d}.png")
    unlabelled = BuildConfig.model_validate(
        {
            "name": "unlabelled",
            "dataset": {"kind": "folder", "path": tmp_path / "pictures", "labels": "none"},
            "network": {"trunk": "small_cnn"},
            "training": {"objective": "simclr", "epochs": 3, "images_per_label": 8},
            "posterior": {"method": "embedding_norm"},
        }
    )
    run = Run(tmp_path / "run")
    train_step(unlabelled, run, splits_of(unlabelled))
    losses = [epoch["loss"] for epoch in run.read_json("training.json")["epochs"]]
    assert losses[-1] < losses[0]
    fit_step(unlabelled, run, splits_of(unlabelled))
    assert run.read_json("posterior.json")["method"] == "embedding_norm"


DIAGONAL = '[posterior]\nstructure = "diagonal"'

EL_NIVMF = """
name = "probabilistic"
[dataset]
kind = "digits"
withheld_labels = ["3", "8"]
gallery_share = 0.6
[outliers]
calibration = "none"
evaluation = "none"
[network]
trunk = "colour_cnn"
[training]
epochs = 3
labels_per_batch = 8
images_per_label = 8
shift = 2
[training.objective]
kind = "el_nivmf"
n_samples = 3
[posterior]
method = "embedding_norm"
"""


@pytest.mark.bundle
def test_the_length_of_an_embedding_is_served_as_its_concentration(tmp_path: Path) -> None:
    """Through the whole command; and a Laplace posterior is then laid over the same encoder."""
    (tmp_path / "build.toml").write_text(EL_NIVMF)
    done = vouch_build("all", "--config", "build.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "runs" / "probabilistic")
    learned = load_file(run.objective)
    assert learned["directions"].shape == learned["log_concentrations"].shape == (8, 128)
    bundle = open_bundle(tmp_path / "bundles" / "probabilistic")
    splits_config = BuildConfig.model_validate(run.read_json("training.json")["config"])
    splits = splits_of(splits_config)
    query = splits.evaluation.matched.pixels(0)
    Image.fromarray(query).save(tmp_path / "query.png")
    answer = bundle.retriever.search((tmp_path / "query.png").read_bytes())
    encoder = load_encoder(splits_config.network, run.checkpoint)
    prepared = splits.evaluation.matched.at([0]).prepared(encoder.preprocessing)
    with torch.inference_mode():
        length = encoder(torch.from_numpy(prepared)).norm().item()
    temperature = run.read_json("posterior.json")["temperature"]
    assert answer.predictive.concentration == pytest.approx(length / temperature, rel=1e-3)
    assert answer.matches[0].match_probability is not None
    direction = answer.predictive.direction
    samples = answer.predictive.samples(base_noise("samples", 100, len(direction)))
    assert (samples @ direction).std() > 1e-4
    metrics = not_none(bundle.manifest.metrics)
    assert metrics["recall_at_1"] > 0.8

    laplace = EL_NIVMF.replace("embedding_norm", "laplace").replace("[posterior]", DIAGONAL)
    (tmp_path / "build.toml").write_text(laplace)
    done = vouch_build("fit", "--config", "build.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run.read_json("posterior.json")["method"].startswith("laplace_positives")
    (tmp_path / "build.toml").write_text(EL_NIVMF.replace("n_samples = 3", "n_samples = 4"))
    done = vouch_build("fit", "--config", "build.toml", cwd=tmp_path)
    assert "trained with other values of `training`" in " ".join(done.stderr.split())
