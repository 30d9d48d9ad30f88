"""The steps train, fit and export where nothing is trained; they need no torch.

The trunk is the graph of an existing encoder, the last layer is a whitening, and the posterior is a
Kronecker-factored Laplace posterior. Layer and posterior have a closed form, see
`index_builder.whitening` and `index_builder.posteriors.laplace`. The files of these steps are those
of `index_builder.pipeline.steps`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from index_builder.configuration.defaults import WHITENED_DIM
from index_builder.configuration.encoder import EncoderConfig
from index_builder.datasets import LabelledImages, Splits
from index_builder.methods import Trained, method_of
from index_builder.methods.method import Report
from index_builder.pipeline.graphs import (
    OPSET,
    PARITY_BATCHES,
    Outputs,
    joined,
    kronecker_head,
    operator_version,
    staged_trunk,
    write_encoder,
    write_head,
)
from index_builder.pipeline.run import POSTERIOR_REPORT, TRAINING_REPORT, Run, forget
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.progress import console
from index_builder.vectors.encoder import OnnxTrunk, trunk_metadata
from index_builder.vectors.encoder_file import opened_once
from index_builder.vectors.frozen_graph import FrozenGraph
from index_builder.vectors.images import ImageVectors, VectorFile
from index_builder.whitening import learned_whitening
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.contract import EncoderInput, EncoderMetadata, Inputs, VectorInput
from model_store.errors import ConfigError, DatasetError
from model_store.machine import one_blas_thread

N_PARITY_IMAGES = max(PARITY_BATCHES)

MIN_POSITIVES = 2
"""Minimum number of images of a label, because a positive pair consists of two images."""

Floats = NDArray[np.float32]


def train_step(config: EncoderConfig, run: Run, splits: Splits) -> None:
    """Fit the last layer; write checkpoint.safetensors, objective.safetensors and training.json."""
    started = time.perf_counter()
    images = splits.training
    require_enough(images)
    graph = _frozen(config)
    require_input(graph.preprocessing, images)
    stored = _stored_features(graph, run)
    dim = config.network.embedding_dim or min(WHITENED_DIM, graph.n_features)
    blocks = (found for _, found in stored.of(images, "features"))
    weight = whitening_of(blocks, images, dim, graph.n_features)
    run.directory.mkdir(parents=True, exist_ok=True)
    forget(run.directory / TRAINING_REPORT, run.directory / POSTERIOR_REPORT, run.posterior)
    save_file(
        {
            "pixel_mean": np.zeros((3, 1, 1), dtype=np.float32),
            "pixel_std": np.ones((3, 1, 1), dtype=np.float32),
            "last_layer.weight": weight,
            "last_layer.bias": np.zeros(dim, dtype=np.float32),
        },
        run.checkpoint,
    )
    save_file({}, run.objective)
    write_training(config, run, splits, started, epochs=[])


def fit_step(config: EncoderConfig, run: Run, splits: Splits) -> None:
    """Fit the posterior; write posterior.safetensors and posterior.json."""
    started = time.perf_counter()
    state = load_file(run.require_trained(config))
    stored = _stored_features(_frozen(config), run)
    encoder = _Encoder(state["last_layer.weight"], state["last_layer.bias"], stored)
    with one_blas_thread():
        posterior, report = method_of(config).fit(config, [Trained(None, {}, encoder)], splits)
    forget(run.directory / POSTERIOR_REPORT)
    posterior.save(run.posterior)
    write_posterior(config, run, splits, report, started)


def export_step(config: EncoderConfig, run: Run, splits: Splits) -> None:
    """Write encoder.onnx: the graph of the existing encoder, followed by layer and posterior."""
    run.require_trained(config)
    run.require(run.directory / POSTERIOR_REPORT, "fit")
    posterior = KroneckerPosterior.load(run.require(run.posterior, "fit"))
    graph = _frozen(config)
    trunk = _trunk(graph, run)
    run.staging.mkdir(parents=True, exist_ok=True)
    prepared = splits.training.at(range(N_PARITY_IMAGES)).prepared(graph.preprocessing)

    def computed(images: Inputs) -> Outputs:
        features = trunk.features(images)
        return *posterior.predict(features), features

    body = graph.graph()
    whole = joined(body, kronecker_head(posterior, min(OPSET, operator_version(body))))
    metadata = metadata_of(graph.preprocessing, run)
    with one_blas_thread():
        difference = write_encoder(whole, run.staging / ENCODER_FILE, metadata, computed, prepared)
    write_head(run.staging / ENCODER_FILE, run.trunk, run.head, prepared)
    console.print(
        f"encoder.onnx agrees with the posterior to {difference:.1e} of the largest value"
    )


@dataclass(frozen=True, slots=True)
class _Encoder:
    """See `index_builder.vectors.encoder.LinearEncoder`."""

    weight: Floats
    bias: Floats
    stored: ImageVectors

    def blocks(self, images: LabelledImages) -> Iterator[Floats]:
        return (found for _, found in self.stored.of(images, "features"))


def _frozen(config: EncoderConfig) -> FrozenGraph:
    assert config.network.encoder is not None  # noqa: S101 - `steps_for` has looked
    return opened_once(FrozenGraph, Path(config.network.encoder))


def _stored_features(graph: FrozenGraph, run: Run) -> ImageVectors:
    """Return the features of images, with the cache of the run."""
    return _trunk(graph, run).vectors(VectorFile(run.vectors))


def _trunk(graph: FrozenGraph, run: Run) -> OnnxTrunk:
    """Return the trunk; write trunk.onnx if the run has another one, or none."""
    metadata = trunk_metadata(graph.fingerprint, graph.preprocessing)
    if not run.trunk.exists() or opened_once(OnnxTrunk, run.trunk).metadata != metadata:
        run.directory.mkdir(parents=True, exist_ok=True)
        staged_trunk(graph.graph(), run.trunk, metadata).rename(run.trunk)
    return opened_once(OnnxTrunk, run.trunk)


def require_enough(images: LabelledImages) -> None:
    """Raise an error if there are too few training images, before any computation."""
    most = max(Counter(images.labels).values(), default=0)
    if len(images) < N_PARITY_IMAGES or most < MIN_POSITIVES:
        raise DatasetError(
            f"There are {len(images)} training images, at most {most} of one label. Training needs "
            f"{N_PARITY_IMAGES} images, and {MIN_POSITIVES} of one label. Add images. If every "
            'image is its own class, use --no-labels (dataset.labels = "none").'
        )


def require_input(expected: EncoderInput, images: LabelledImages) -> None:
    """Raise an error if the encoder does not accept the images or vectors of the data."""
    shape = images.pixels(0).shape
    wanted = "images"
    if isinstance(expected, VectorInput):
        wanted = f"vectors of {expected.made_by!r}, {expected.shape[0]:,} numbers each"
    if len(shape) != len(expected.shape) or (len(shape) == 1 and shape != expected.shape):
        found = "images" if len(shape) == 3 else f"vectors of {shape[0]:,} numbers"
        raise DatasetError(f"The encoder takes {wanted}, but the data are {found}.")
    if isinstance(expected, VectorInput) and expected.with_variance:
        raise DatasetError(
            f"The vectors of {expected.made_by!r} already have a variance, but a build fits one. "
            "Remove `variance` from the table, or keep it and use `vouch-build index`."
        )


def whitening_of(
    blocks: Iterable[Floats], images: LabelledImages, dim: int, n_features: int
) -> Floats:
    """Return the whitening (dim, F) that is fitted to the features of ``images``.

    Raises
    ------
    ConfigError : there are fewer features than dimensions.
    """
    if dim > n_features:
        raise ConfigError(
            f"network.embedding_dim = {dim}, but the trunk has only {n_features} features. Set "
            "fewer dimensions."
        )
    with one_blas_thread():
        return learned_whitening(blocks, images.label_codes(), dim).astype(np.float32)


def write_training(
    config: EncoderConfig, run: Run, splits: Splits, started: float, **more: object
) -> None:
    """Write the report of the step `train`, with the fields ``more``."""
    run.write_json(
        TRAINING_REPORT,
        {
            "config": config.model_dump(mode="json"),
            "n_images": len(splits.training),
            **more,
            "seconds": time.perf_counter() - started,
        },
    )


def write_posterior(
    config: EncoderConfig, run: Run, splits: Splits, report: Report, started: float
) -> None:
    """Write the report of the step `fit`."""
    run.write_json(
        POSTERIOR_REPORT,
        {
            "config": config.model_dump(mode="json"),
            "method": config.posterior.name,
            "n_images": len(splits.training),
            **report,
            "seconds": time.perf_counter() - started,
        },
    )


def metadata_of(preprocessing: EncoderInput, run: Run) -> EncoderMetadata:
    """Return the metadata of the encoder, from the report of the step `fit`."""
    report = run.read_json(POSTERIOR_REPORT)
    correlation = report.get("pair_correlation")
    of_pairs = None if correlation is None else tuple(correlation)
    return EncoderMetadata(preprocessing, report["method"], of_pairs)
