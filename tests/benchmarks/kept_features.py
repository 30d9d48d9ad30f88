"""Laplace posteriors of an encoder whose features are kept on the disk.

Features take minutes to compute and gigabytes to hold; a posterior on them takes seconds. What is
kept is not looked at again: remove it after a change of the encoder, the images or the splits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.posterior import LaplaceConfig
from index_builder.datasets import LabelledImages
from index_builder.networks import MetricEncoder
from index_builder.networks.encoder import feature_blocks
from index_builder.posteriors.laplace.fit import LaplaceFit, fit_laplace
from model_store.errors import CalibrationError

ROWS = 1024
"""Of a block that is read at a time."""


def kept_features(encoder: MetricEncoder, images: LabelledImages, place: Path) -> Tensor:
    """Features (N, F) in a file at ``place``, mapped into memory; computed where it is missing."""
    if not place.exists():
        shape = (len(images), encoder.trunk.n_features)
        begun = place.with_suffix(".begun")
        written = np.lib.format.open_memmap(begun, mode="w+", dtype=np.float32, shape=shape)
        start = 0
        for block in feature_blocks(encoder, images):
            written[start : start + len(block)] = block.numpy()
            start += len(block)
        written.flush()
        begun.rename(place)
    return torch.from_numpy(np.load(place, mmap_mode="c"))


def fitted(
    config: BuildConfig, features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor
) -> LaplaceFit:
    """The posterior that a configuration asks for, but for its temperature.

    A temperature multiplies all variances, so that no order and no AUROC depends on it.

    Parameters
    ----------
    features, labels : (N, F), (N,) of the training images.
    weight, bias : of the last layer.
    """
    asked = config.posterior
    assert isinstance(asked, LaplaceConfig)
    fit = partial(
        fit_laplace,
        lambda: [features[row : row + ROWS] for row in range(0, len(features), ROWS)],
        labels,
        weight,
        bias,
        structure=asked.structure,
        split=asked.split,
        margin=config.training.margin,
        scaling=asked.scaling,
        prior_precision=asked.prior_precision,
        prior_chosen_by="curvature"
        if asked.prior_chosen_by == "validation"
        else asked.prior_chosen_by,
        prior_scale=asked.prior_scale,
        seed=config.seed,
    )
    try:
        return fit(approximation=asked.approximation)
    except CalibrationError:  # all negatives are inside the margin: as `vouch-build fit` does
        return fit(approximation="positives")
