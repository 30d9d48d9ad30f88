"""Zero-shot retrieval of photographs and characters: labels that trained nothing.

The first half of the labels trains (of Omniglot its background set); each image of the others is a
query against the rest of them. Compared are the raw features of the frozen trunk, and its learned
whitening with a Laplace posterior on top, from the configuration that `vouch-build all --images`
makes with ``unseen_share`` added. What the posterior's variance alone says of images from other
worlds and of spoilt ones goes to build/bench-zero-shot.json as well, for each of two forms of it:
relative to the embedding's squared length, as it is served, and undivided. Reads VOUCH_DATA_DIR.

The trunk is frozen, so that the features of all images are kept in build/zero-shot: they take ten
minutes of one core, a posterior on them seconds. Remove that folder after a change of the trunk,
the images or the splits.

    python -m tests.benchmarks.bench_zero_shot [caltech101_half] [cub_first10] [omniglot]
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from index_builder.configuration.build import BuildConfig
from index_builder.datasets import LabelledImages, load_splits
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.images import joined
from index_builder.datasets.small_images import idx_dataset, outliers
from index_builder.methods.laplace import MIN_CORRELATED
from index_builder.metrics import auroc
from index_builder.networks import load_encoder
from index_builder.networks.encoder import all_features
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import train_step
from index_builder.posteriors.laplace.held_out import norm_correlation
from index_builder.reproduction.data_sets import Origin, chars74k, cifar10
from model_store.sphere import spherical_variance, unit_direction
from tests.benchmarks.kept_features import fitted
from tests.benchmarks.measured import record_figures
from tests.benchmarks.preconditions import data_dir

WEIGHTS = Path("backbones") / "mobilenet_v2_imagenet_int8.npz"
UNSEEN = {"caltech101_half": 0.5, "cub_first10": 0.5, "omniglot": 659 / 1623}
INPUT_SIZE = {"omniglot": 96}
"""Drawings of 105 × 105 pixels: there are 32,460 of them, and nothing is gained by enlarging."""


N_OUTLIERS = 500
"""Of each kind: as many tell an AUROC to a hundredth."""

RESULTS = Path("build") / "bench-zero-shot.json"
KEPT = Path("build") / "zero-shot"


@dataclass(frozen=True)
class Features:
    """What a frozen trunk makes of a set, and the whitening that is learned on it.

    Attributes
    ----------
    weight, bias : (D, F), (D,) of the last layer.
    training, validation, unseen : (N, F) of the images of each part.
    training_codes : labels of the training images.
    labels : of the unseen images.
    alien : (M, F) of each kind of outliers.
    """

    weight: Tensor
    bias: Tensor
    training: Tensor
    validation: Tensor
    unseen: Tensor
    training_codes: Tensor
    labels: list[str]
    alien: dict[str, Tensor]


def far_outliers(data: Path) -> dict[str, LabelledImages]:
    """Images from four other worlds."""
    generator = np.random.default_rng(0)
    photographs = outliers("photographs", 1, generator)
    assert photographs is not None
    kinds = {
        "MNIST": idx_dataset("MNIST", "t10k"),
        "photographs": photographs,
        "CIFAR-10": cifar10(Origin(data)).parts["test"],
        "Chars74K": chars74k(Origin(data)),
    }
    return {name: some(images, N_OUTLIERS) for name, images in kinds.items()}


def some(images: LabelledImages, most: int) -> LabelledImages:
    """At most so many of the images, drawn at random."""
    return images.at(np.sort(np.random.default_rng(0).permutation(len(images))[:most]))


def unpacked(name: str, data: Path, into: Path) -> Path:
    """The folder with one sub-folder for each label."""
    if name == "omniglot":
        return _omniglot(data / name, into)
    (archive,) = (data / name).glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        file.extractall(into)
    (root,) = into.iterdir()
    return root


def _omniglot(source: Path, into: Path) -> Path:
    """Characters as labels; a background one sorts before every evaluation one."""
    for place, part in enumerate(("background", "evaluation")):
        with tarfile.open(source / f"images_{part}.tar.xz") as archive:
            for member in archive:
                path = Path(member.name)
                if not member.isfile():
                    continue
                folder = into / f"{place}-{path.parts[-3]}-{path.parts[-2]}"
                folder.mkdir(exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                (folder / path.name).write_bytes(content.read())
    return into


def config_of(name: str, root: Path, weights: Path) -> BuildConfig:
    """What `vouch-build all --images` does, with a trunk of torch and on the first labels only."""
    return BuildConfig.model_validate(
        {
            "name": name,
            "dataset": {"path": root, "unseen_share": UNSEEN[name]},
            "network": {
                "trunk": "mobilenet_v2",
                "weights": str(weights),
                "frozen": True,
                "input_size": INPUT_SIZE.get(name, 224),
            },
        }
    )


def recall(
    rows: NDArray[np.floating[Any]], labels: NDArray[np.str_]
) -> tuple[float, NDArray[np.bool_]]:
    """Share of images whose nearest other image has their label, and which do not."""
    unit = unit_direction(rows)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -2)
    wrong = labels[similarities.argmax(1)] != labels
    return 1 - float(wrong.mean()), wrong


def features_of(name: str, data: Path) -> Features:
    """The features of a set, computed where they are not kept."""
    kept = KEPT / f"{name}.pt"
    if kept.exists():
        return Features(**torch.load(kept))
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(scratch) / "images"
        images.mkdir()
        config = config_of(name, unpacked(name, data, images), data / WEIGHTS)
        run = Run(Path(scratch) / "run")
        splits = load_splits(config)
        train_step(config, run, splits)
        encoder = load_encoder(config.network, run.checkpoint)
        unseen = joined(splits.gallery, splits.calibration.matched, splits.evaluation.matched)
        alien = {"corrupted": corrupted(some(unseen, N_OUTLIERS), 0), **far_outliers(data)}
        features = Features(
            encoder.last_layer.weight.detach(),
            encoder.last_layer.bias.detach(),
            all_features(encoder, splits.training),
            all_features(encoder, splits.validation),
            all_features(encoder, unseen),
            torch.from_numpy(splits.training.label_codes()),
            list(unseen.labels),
            {kind: all_features(encoder, images) for kind, images in alien.items()},
        )
    KEPT.mkdir(parents=True, exist_ok=True)
    torch.save({name: getattr(features, name) for name in Features.__dataclass_fields__}, kept)
    return features


def measure(name: str, data: Path) -> dict[str, float]:
    """Fit, and compare on the labels that were kept out."""
    features = features_of(name, data)
    config = config_of(name, data, data / WEIGHTS)
    layer = features.weight, features.bias
    posterior = fitted(config, features.training, features.training_codes, *layer).posterior

    def embedded(
        some: Tensor,
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
        mean, variance = (value.numpy() for value in posterior.predict(some))
        return mean, spherical_variance(mean, variance), variance.sum(axis=1, dtype=np.float64)

    labels = np.array(features.labels)
    mean, uncertainty, undivided = embedded(features.unseen)
    raw, _ = recall(features.unseen.numpy(), labels)
    whitened, wrong = recall(mean, labels)
    alien = {kind: embedded(rows) for kind, rows in features.alien.items()}
    held_out = features.validation
    if len(held_out) < MIN_CORRELATED:
        held_out = features.training
    return {
        "labels": len(set(features.labels)),
        "images": len(labels),
        "recall at 1, raw": raw,
        "recall at 1, whitened": whitened,
        "error AUROC": number(auroc(uncertainty[wrong], uncertainty[~wrong])),
        **{kind: number(auroc(told[1], uncertainty)) for kind, told in alien.items()},
        "norm correlation": number(norm_correlation(posterior, held_out)),
        "error AUROC, undivided": number(auroc(undivided[wrong], undivided[~wrong])),
        "worst outliers, undivided": min(
            number(auroc(told[2], undivided)) for told in alien.values()
        ),
    }


def number(value: float | None) -> float:
    """NaN for what cannot be told."""
    return float("nan") if value is None else value


def summary(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """What is compared from version to version."""
    kinds = ("MNIST", "photographs", "CIFAR-10", "Chars74K")
    far = [row[kind] for row in rows.values() for kind in kinds]
    return {
        "zero_shot_ood_mean": float(np.mean(far)),
        "zero_shot_ood_worst": min(far),
        "zero_shot_corrupted_worst": min(row["corrupted"] for row in rows.values()),
    }


def main() -> None:
    """Print a row for each set, and write all of it."""
    data = data_dir()
    rows: dict[str, dict[str, float]] = {}
    for name in sys.argv[1:] or UNSEEN:
        rows[name] = measure(name, data)
        if len(rows) == 1:
            print("| set | " + " | ".join(rows[name]) + " |")
            print("|---|" + "---:|" * len(rows[name]))
        numbers = " | ".join(
            f"{value:.3f}" if isinstance(value, float) else f"{value:,}"
            for value in rows[name].values()
        )
        print(f"| {name} | {numbers} |", flush=True)
        if rows[name]["recall at 1, whitened"] < rows[name]["recall at 1, raw"]:
            raise SystemExit(f"{name}: whitening costs recall")
    results: dict[str, Any] = {**summary(rows), "sets": rows}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))
    record_figures("zero-shot", results, globals())


if __name__ == "__main__":
    main()
