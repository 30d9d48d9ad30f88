"""Zero-shot retrieval of photographs and characters: labels that trained nothing.

The first half of the labels trains (of Omniglot its background set); each image of the others is a
query against the rest of them. Compared are the raw features of the frozen trunk, and its learned
whitening with a Laplace posterior on top, from the configuration that `vouch-build all --images`
makes with ``unseen_share`` added. Reads VOUCH_DATA_DIR.

    python tests/benchmarks/bench_zero_shot.py [caltech101_half] [cub_first10] [omniglot]
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.configuration import BuildConfig, photographs_config
from index_builder.datasets import load_splits
from index_builder.datasets.images import joined
from index_builder.features import all_features
from index_builder.metrics import auroc
from index_builder.networks import load_encoder
from index_builder.posteriors import load_posterior
from index_builder.run import Run
from index_builder.steps import fit_step, train_step
from model_store.sphere import spherical_variance, unit_direction

WEIGHTS = Path("backbones") / "mobilenet_v2_imagenet_int8.npz"
UNSEEN = {"caltech101_half": 0.5, "cub_first10": 0.5, "omniglot": 659 / 1623}
INPUT_SIZE = {"omniglot": 96}
"""Drawings of 105 × 105 pixels: there are 32,460 of them, and nothing is gained by enlarging."""


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
    """What `vouch-build all --images` would do, on the first labels only."""
    fields = photographs_config(root, "mobilenet_v2", str(weights), name).model_dump()
    fields["dataset"]["unseen_share"] = UNSEEN[name]
    fields["network"]["input_size"] = INPUT_SIZE.get(name, 224)
    return BuildConfig.model_validate(fields)


def recall(
    rows: NDArray[np.floating[Any]], labels: NDArray[np.str_]
) -> tuple[float, NDArray[np.bool_]]:
    """Share of images whose nearest other image has their label, and which do not."""
    unit = unit_direction(rows)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -2)
    wrong = labels[similarities.argmax(1)] != labels
    return 1 - float(wrong.mean()), wrong


def measure(name: str, root: Path, weights: Path, directory: Path) -> dict[str, Any]:
    """Train, fit, and compare on the labels that were kept out."""
    config, run = config_of(name, root, weights), Run(directory)
    train_step(config, run)
    fit_step(config, run)
    encoder = load_encoder(config.network, run.checkpoint)
    splits = load_splits(config)
    unseen = joined(splits.gallery, splits.calibration.matched, splits.evaluation.matched)
    features = all_features(encoder, unseen)
    mean, variance = (value.numpy() for value in load_posterior(run.posterior).predict(features))
    labels = np.array(unseen.labels)
    raw, _ = recall(features.numpy(), labels)
    whitened, wrong = recall(mean, labels)
    uncertainty = spherical_variance(mean, variance)
    return {
        "labels": len(set(unseen.labels)),
        "images": len(unseen),
        "recall at 1, raw": raw,
        "recall at 1, whitened": whitened,
        "error AUROC": auroc(uncertainty[wrong], uncertainty[~wrong]),
    }


def main() -> None:
    """Print a row for each set."""
    data = Path(os.environ["VOUCH_DATA_DIR"])
    print("| set | unseen labels | images | R@1 raw | R@1 whitened | error AUROC |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in sys.argv[1:] or UNSEEN:
        with tempfile.TemporaryDirectory() as scratch:
            images = Path(scratch) / "images"
            images.mkdir()
            root = unpacked(name, data, images)
            row = measure(name, root, data / WEIGHTS, Path(scratch) / "run")
        numbers = " | ".join(
            f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in row.values()
        )
        print(f"| {name} | {numbers} |", flush=True)
        if row["recall at 1, whitened"] < row["recall at 1, raw"]:
            raise SystemExit(f"{name}: whitening costs recall")


if __name__ == "__main__":
    main()
