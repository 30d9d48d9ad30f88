"""Measure the encoder of one objective, with several posteriors and with the decision layer."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from index_builder.configuration.defaults import WHITENED_DIM
from index_builder.configuration.posterior import (
    DeterministicConfig,
    EmbeddingNormConfig,
    LaplaceConfig,
    PosteriorConfig,
)
from index_builder.datasets import Splits
from index_builder.methods import Trained, method_of
from index_builder.networks import MetricEncoder
from index_builder.networks.encoder import trunk_fingerprint
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import train_step, trained_members
from index_builder.posteriors.stored import Posterior, load_posterior
from index_builder.reproduction.cells import machine
from index_builder.reproduction.evaluate import measure_decision, measure_method
from index_builder.reproduction.protocols import ProtocolConfig, ProtocolData, load_protocol
from index_builder.reproduction.retrieval import (
    Floats,
    Result,
    RetrievalResults,
    consensus_of_queries,
)
from index_builder.vectors.encoder import Halves, OnnxTrunk, StoredEncoder, TrunkHalf
from index_builder.vectors.images import ImageVectors, Vector, VectorFile
from model_store.encoder.contract import Embeddings, EncoderMetadata
from model_store.machine import PROVIDERS

Cell = dict[str, Any]

NORM, LAPLACE, DECISION = "embedding_norm", "laplace", "vouch"

POSTERIORS: Mapping[str, PosteriorConfig] = {
    NORM: EmbeddingNormConfig(method="embedding_norm"),
    LAPLACE: LaplaceConfig(prior_chosen_by="curvature", prior_scale="features"),
}
"""Posteriors that are fitted to every encoder. The decision layer uses the Laplace posterior."""

PRIORS: Mapping[str, LaplaceConfig] = {
    "kronecker, prior by validation": LaplaceConfig(prior_chosen_by="validation"),
    "diagonal, prior 1, temperature by validation": LaplaceConfig(
        structure="diagonal", prior_precision=1.0
    ),
    "diagonal, prior by validation": LaplaceConfig(
        structure="diagonal", prior_chosen_by="validation"
    ),
}
"""Other ways to choose the prior, which are compared with the default. The default is a
Kronecker-factored posterior. Its prior is relative to the curvature, and validation chooses its
temperature."""


def measure_encoder(
    config: ProtocolConfig, run: Run, shared: Run, priors: Mapping[str, LaplaceConfig]
) -> Cell:
    """Train an encoder, fit every posterior to it, and measure each posterior on the test.

    Parameters
    ----------
    config : configuration of the encoder; the posterior in this configuration is ignored.
    run : a run in a temporary directory, which is removed before and after the measurement.
    shared : the run that stores the frozen trunk and the features that the trunk computed; all
        encoders of a data set use this run.
    priors : further Laplace posteriors for the same encoder.
    """
    config = config.model_copy(update={"posterior": DeterministicConfig(method="deterministic")})
    shutil.rmtree(run.directory, ignore_errors=True)
    data = load_protocol(config)
    splits = data.splits()
    if config.network.frozen:
        config = _on_shared_trunk(config, run, shared, splits)
    clock = _Clock()
    train_step(config, run, splits)
    costs = {"training": clock.since_last()}
    (trained,) = trained_members(config, run)
    trunk = OnnxTrunk(run.trunk) if config.network.frozen else TorchTrunk(trained.encoder)
    known = VectorFile(run.vectors if config.network.frozen else None)
    trained.encoder.stored_features = trunk.vectors(known)
    encoders, metrics = {}, {}
    for name, settings in {**POSTERIORS, **priors}.items():
        clock.since_last()
        posterior = _fitted(config, settings, trained, splits, run)
        costs[f"fit {name}"] = clock.since_last()
        encoder = encoders[name] = searchable(trained.encoder, trunk, posterior, name, known)
        metrics[name] = _measured(encoder, data, config.seed)
    clock.since_last()
    found = measure_decision(encoders[LAPLACE], config, data, run.directory / "galleries")
    metrics[DECISION] = found.metrics
    costs["decision"] = clock.since_last()
    cell = {
        "objective": config.training.objective.kind,
        "seed": config.seed,
        "metrics": {name: metrics[name] for name in (*POSTERIORS, DECISION)},
        "priors": {name: metrics[name] for name in priors},
        "costs": costs,
        "sizes": _sizes(config, data),
        "outliers": next(iter(data.test_outliers)),
        "partial": dict(data.partial),
        "machine": machine(),
    }
    known.close()
    shutil.rmtree(run.directory)
    return cell


def _on_shared_trunk(
    config: ProtocolConfig, run: Run, shared: Run, splits: Splits
) -> ProtocolConfig:
    """Link the shared trunk, and the features that the trunk computed, into the run.

    All seeds share the features.

    Returns
    -------
    The configuration of the run. In this configuration, the last layer starts as the whitening of
    the features. All objectives of a seed start from the same whitening. Each seed has its own
    whitening, because each seed has its own training images.
    """
    start = Run(shared.directory / f"seed-{config.seed}")
    if not start.checkpoint.exists():
        _link(start.vectors, shared.vectors)
        untrained = config.training.model_copy(update={"epochs": 0})
        train_step(config.model_copy(update={"training": untrained}), start, splits)
    _link(run.trunk, start.trunk)
    _link(run.vectors, shared.vectors)
    whitened = {"weights": str(start.checkpoint), "last_layer": "loaded"}
    network = config.network.model_copy(update=whitened)
    return config.model_copy(update={"network": network})


def _link(own: Path, shared: Path) -> None:
    own.parent.mkdir(parents=True, exist_ok=True)
    own.unlink(missing_ok=True)
    own.symlink_to(shared.resolve())


def _fitted(
    config: ProtocolConfig, settings: PosteriorConfig, trained: Trained, splits: Splits, run: Run
) -> Posterior:
    """Return a posterior of tensors, whose file is in ``run``."""
    config = config.model_copy(update={"posterior": settings})
    posterior, _ = method_of(config).fit(config, [trained], splits)
    posterior.save(run.posterior)
    return load_posterior(run.posterior)


def _measured(encoder: StoredEncoder, data: ProtocolData, seed: int) -> Result:
    def consensus(results: RetrievalResults) -> tuple[Floats, NDArray[np.bool_]]:
        return consensus_of_queries(results, encoder.fingerprint)

    return measure_method(encoder, data, seed, consensus).metrics


def _sizes(config: ProtocolConfig, data: ProtocolData) -> dict[str, int]:
    """Return the number of images of each part, the number of epochs, and D."""
    return {
        "training": len(data.training),
        "training labels": len(set(data.training.labels)),
        "epochs": config.training.epochs,
        "validation": len(data.validation),
        "development": len(data.development.queries),
        "queries": len(data.test.queries),
        "gallery": len(data.test.gallery),
        "outliers": len(next(iter(data.test_outliers.values())).images),
        "dimensions": config.network.embedding_dim or WHITENED_DIM,
    }


class _Clock:
    """A clock of CPU seconds; other work on the machine hardly changes CPU seconds."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def since_last(self) -> float:
        """Return the CPU seconds since the last call."""
        now = time.process_time()
        passed, self._last = now - self._last, now
        return passed


BATCH = 32
"""Batch size of the trunk; larger batches do not fit into the cache of a CPU."""


class FeaturesOf(TrunkHalf, Protocol):
    """A trunk that runs in torch or in ONNX Runtime."""

    def features(self, images: NDArray[np.uint8]) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""


@dataclass(frozen=True, slots=True)
class TorchTrunk:
    """The trunk of an encoder, which must be in evaluation mode.

    Search and calibration use the encoder through this adapter, without an export. The comparison
    measures hundreds of encoders once and deletes them, so exporting them would cost too much time.
    The tests of the export show that an exported encoder gives the same results.
    """

    encoder: MetricEncoder

    def features(self, images: NDArray[np.uint8]) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""
        with torch.no_grad():
            found: Vector = self.encoder.features(torch.from_numpy(images)).numpy()
        return found

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Return the features of images as `ImageVectors`, with the cache ``known``."""
        maker = f"torch {torch.__version__} {trunk_fingerprint(self.encoder)}"
        return ImageVectors(self.features, maker, self.encoder.preprocessing, BATCH, known)


@dataclass(frozen=True, slots=True)
class PosteriorHead:
    """A head that uses a posterior to compute embeddings from features."""

    posterior: Posterior

    def embeddings(self, features: Vector) -> Embeddings:
        """Return the embeddings of images from their ``features`` (B, F)."""
        with torch.no_grad():
            mean, variance = self.posterior.predict(torch.from_numpy(features))
        return Embeddings(mean.numpy(), np.ascontiguousarray(variance.numpy()), features)


class TorchEncoder:
    """A trunk and a posterior with the interface of `model_store.encoder.contract.Encoder`."""

    provider = PROVIDERS["cpu"]
    placement = None

    def __init__(
        self, encoder: MetricEncoder, trunk: FeaturesOf, head: PosteriorHead, posterior: str
    ) -> None:
        self._trunk, self._head = trunk, head
        self.metadata = EncoderMetadata(encoder.preprocessing, posterior)
        self.dim = encoder.last_layer.out_features
        self.n_features = encoder.trunk.n_features
        of_layer = encoder.last_layer.weight.detach().numpy().tobytes()
        made_of = f"{trunk_fingerprint(encoder)} {posterior} ".encode() + of_layer
        self.fingerprint = hashlib.sha256(made_of).hexdigest()

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:  # noqa: ARG002 - all at once
        """Embed ``images`` (B, H, W, 3) uint8."""
        return self._head.embeddings(self._trunk.features(images))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def searchable(
    encoder: MetricEncoder, trunk: FeaturesOf, posterior: Posterior, name: str, known: VectorFile
) -> StoredEncoder:
    """Return an encoder with a posterior; the encoder caches the features of images.

    Parameters
    ----------
    encoder : the encoder in evaluation mode.
    trunk : the trunk of the encoder.
    name : name of the posterior.
    known : the cache of features.
    """
    head = PosteriorHead(posterior)
    return StoredEncoder(TorchEncoder(encoder, trunk, head, name), known, Halves(trunk, head))
