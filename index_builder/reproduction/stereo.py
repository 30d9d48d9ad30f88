"""The command ``vouch-build reproduce --protocol stereo``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import Tensor

from index_builder.datasets.small_images import DATA_DIR_VARIABLE
from index_builder.metrics import error_auroc, retrieval_calibration_error
from index_builder.progress import console
from index_builder.reproduction.cells import machine
from index_builder.reproduction.stereo_matching import (
    BATCH,
    KITTI,
    PATCH,
    TOLERANCE,
    StereoPair,
    cost_volume,
    fitted_temperature,
    kitti,
    made_pairs,
    matched,
    patch_correlation,
    train_patches,
)
from index_builder.reproduction.summary import figure, markdown_table, publish, summarised
from model_store.errors import ConfigError

TRIPLETS_PER_EPOCH = 100 * BATCH
EPOCHS = 10

MADE, MOST_MADE = "made of photographs", 32
"""The name of the synthetic pairs, and their maximum disparity in pixels."""

N_MADE = {"training": 4, "validation": 1, "test": 4}

MOST = 228
"""Maximum disparity of KITTI in pixels (Žbontar & LeCun 2016)."""

KITTI_SHARE = {"training": 0.7, "validation": 0.1}
"""Shares of KITTI's pairs for training and validation; the remaining pairs are for the test."""

N_PIXELS = 20_000
"""Maximum number of pixels that are measured in an image, among pixels with a known disparity."""

Parts = Mapping[str, Sequence[StereoPair]]
Figures = Mapping[str, Mapping[str, float | None]]
"""The metrics of each embedding; the key is the embedding's name."""

Embed = Callable[[NDArray[np.uint8]], Tensor]


def measure_stereo(
    objective: str | None,
    n_seeds: int,
    directory: Path,
    *,
    epochs: int | None = None,
    data: Path | None = None,
    **options: object,
) -> str:
    """Train an embedding of patches, match whole images, and report accuracy and uncertainty.

    The data are KITTI 2012 and 2015, if available, and synthetic pairs. The synthetic pairs come
    from two photographs: one for training, the other for the test.

    Returns
    -------
    The table in Markdown. The files table.md and report.json are written to ``directory``.

    Raises
    ------
    BuildError : an option does not apply to stereo matching, or KITTI is damaged.
    """
    asked = {"objective": objective, **options}
    unused = [name for name, value in asked.items() if value not in {None, False, "auto"}]
    if unused:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ConfigError(f"--protocol stereo has its own network and training. Remove {named}.")
    root = data or (
        Path(os.environ[DATA_DIR_VARIABLE]) if DATA_DIR_VARIABLE in os.environ else None
    )
    measured: dict[str, Any] = {}
    for seed in range(n_seeds):
        for name, (parts, most) in _data_sets(root, seed).items():
            found = _measured(parts, most, epochs or EPOCHS, seed)
            measured.setdefault(name, []).append(found)
            console.print(f"{name}, seed {seed}: {found['learned']['within']:.3f} within")
    report = {
        "data_sets": {name: _over_seeds(seeds) for name, seeds in measured.items()},
        "seeds": n_seeds,
        "epochs": epochs or EPOCHS,
        "machine": machine(),
    }
    return publish(directory, report, _markdown(report))


def _over_seeds(seeds: Sequence[Figures]) -> dict[str, Any]:
    return {
        way: {metric: summarised([one[way][metric] for one in seeds]) for metric in seeds[0][way]}
        for way in seeds[0]
    }


def _data_sets(root: Path | None, seed: int) -> dict[str, tuple[Parts, int]]:
    """Return the parts and the maximum disparity of each available data set."""
    generator = np.random.default_rng(seed)
    learned, asked = load_sample_images().images
    made = {
        part: list(made_pairs(asked if part == "test" else learned, n, MOST_MADE, generator))
        for part, n in N_MADE.items()
    }
    found: dict[str, tuple[Parts, int]] = {MADE: (made, MOST_MADE)}
    for name in KITTI:
        pairs = None if root is None else kitti(name, root)
        if pairs is not None:
            found[name] = (_divided(pairs, generator), MOST)
    return found


def _divided(pairs: Sequence[StereoPair], generator: np.random.Generator) -> Parts:
    order = generator.permutation(len(pairs))
    ends = np.cumsum([max(1, int(share * len(pairs))) for share in KITTI_SHARE.values()])
    parts = [[pairs[row] for row in part] for part in np.split(order, ends)]
    return dict(zip((*KITTI_SHARE, "test"), parts, strict=True))


def _measured(parts: Parts, most: int, epochs: int, seed: int) -> Figures:
    network, _ = train_patches(parts["training"], epochs * TRIPLETS_PER_EPOCH, seed)
    ways: Mapping[str, Embed] = {
        "learned": network.embed,
        "correlation": lambda image: patch_correlation(image, PATCH),
    }
    return {name: evaluate_matching(embed, parts, most, seed) for name, embed in ways.items()}


def evaluate_matching(embed: Embed, parts: Parts, most: int, seed: int) -> dict[str, float | None]:
    """Choose the temperature on the part ``validation``, and measure the part ``test``.

    Parameters
    ----------
    embed : maps an image (H, W, 3) to unit vectors (F, H, W).
    parts : the image pairs of each part; the key is the part's name.
    most : maximum disparity in pixels.
    seed : random seed for choosing the measured pixels.

    Returns
    -------
    The metrics by name. ``within`` is the share of known pixels whose disparity error is at most
    `TOLERANCE`. ``error_auroc`` is the AUROC of the confidence for detecting wrong pixels;
    ``error_auroc_by_std`` is the AUROC of the standard deviation. ``ece`` is the calibration error.
    ``temperature`` is the chosen temperature.
    """
    generator = np.random.default_rng(seed)
    similarities, truths = [], []
    for pair in parts["validation"]:
        mask = _some(pair.known, generator)
        volume = cost_volume(embed(pair.left), embed(pair.right), most)
        similarities.append(volume[:, torch.from_numpy(mask)])
        truths.append(pair.disparity[mask])
    temperature = fitted_temperature(torch.cat(similarities, 1), np.concatenate(truths))
    right, confidence, std = [], [], []
    for pair in parts["test"]:
        found = matched(cost_volume(embed(pair.left), embed(pair.right), most), temperature)
        mask = _some(pair.known, generator)
        right.append(np.abs(found.winner - pair.disparity)[mask] <= TOLERANCE)
        confidence.append(found.confidence[mask])
        std.append(found.std[mask])
    is_right, sure = np.concatenate(right), np.concatenate(confidence)
    return {
        "within": float(is_right.mean()),
        "error_auroc": error_auroc(1 - sure, is_right),
        "error_auroc_by_std": error_auroc(np.concatenate(std), is_right),
        "ece": retrieval_calibration_error(sure, is_right),
        "temperature": temperature,
    }


def _some(known: NDArray[np.bool_], generator: np.random.Generator) -> NDArray[np.bool_]:
    """Choose at most `N_PIXELS` of the known pixels at random, and return their mask."""
    rows = np.flatnonzero(known)
    mask = np.zeros(known.size, dtype=bool)
    mask[generator.permutation(rows)[:N_PIXELS]] = True
    return mask.reshape(known.shape)


def _markdown(report: Mapping[str, Any]) -> str:
    """Return the table as Markdown."""
    keys = ("within", "error_auroc", "error_auroc_by_std", "ece")
    rows = [
        [name, way, *(figure(metrics[key]) for key in keys)]
        for name, ways in report["data_sets"].items()
        for way, metrics in ways.items()
    ]
    head = ["pairs", "by", f"within {TOLERANCE} px", "error AUROC", "by std", "ECE"]
    return markdown_table(head, rows, n_names=2) + "\n"
