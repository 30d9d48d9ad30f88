"""The steps of a build: each reads what earlier steps left in the run directory, and adds to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from index_builder.calibration import fit_calibration, fit_detector
from index_builder.configuration import BuildConfig
from index_builder.datasets import LabelledImages, Splits, load_splits
from index_builder.evaluation import evaluate
from index_builder.export import ProbabilisticEncoder, export_encoder
from index_builder.indexing import BATCH, build_gallery
from index_builder.networks import MetricEncoder, build_encoder
from index_builder.observation import observe
from index_builder.posteriors import LaplaceFit, LastLayerPosterior, fit_laplace
from index_builder.posteriors.validation import select_by_validation
from index_builder.posteriors.votes import vote_log_likelihood
from index_builder.progress import console, track
from index_builder.run import Run, write_json
from index_builder.samples import write_samples
from index_builder.training import train
from model_store.bundle import (
    ENCODER_FILE,
    EVALUATION_FILE,
    Manifest,
    publish,
)
from model_store.decision import OutlierDetector
from model_store.encoder import EncoderMetadata, OnnxEncoder
from model_store.gallery import FaissGallery
from model_store.gallery.faiss_gallery import ITEMS_FILE
from model_store.retriever import Retriever, open_parts
from model_store.search import N_CANDIDATES

N_DETECTOR_IMAGES = 10_000
"""Gallery images whose features the outlier detector is fitted on; beyond it nothing is gained and
the features of a large gallery do not fit into memory."""

N_VALIDATION = 1_000
"""Validation images that vote on the prior precision: its optimum is flat, more hardly move it."""

_LIBRARIES = ("vouch", "torch", "torchvision", "onnx", "numpy", "scikit-learn", "faiss-cpu")


def train_step(config: BuildConfig, run: Run) -> None:
    """Images → checkpoint.safetensors and training.json."""
    images = load_splits(config).training
    generator = torch.Generator().manual_seed(config.seed)
    encoder = build_encoder(config.network, generator)
    prepared = torch.from_numpy(images.prepared(encoder.preprocessing))
    codes = _label_codes(images)
    history = train(encoder, prepared, torch.from_numpy(codes), config.training, generator)
    run.directory.mkdir(parents=True, exist_ok=True)
    save_file(encoder.state_dict(), run.checkpoint)
    run.write_json(
        "training.json",
        {
            "config": config.model_dump(mode="json"),
            "n_images": len(images),
            "epochs": [asdict(epoch) for epoch in history],
        },
    )


def fit_step(config: BuildConfig, run: Run) -> None:
    """Checkpoint and training images → posterior.safetensors and posterior.json."""
    encoder = _trained(config, run)
    splits = load_splits(config)
    images = splits.training
    prepared = torch.from_numpy(images.prepared(encoder.preprocessing))
    fitted = fit_laplace(
        lambda: _feature_blocks(encoder, prepared),
        torch.from_numpy(_label_codes(images)),
        encoder.last_layer.weight.detach(),
        encoder.last_layer.bias.detach(),
        approximation=config.posterior.approximation,
        split=config.posterior.split,
        margin=config.training.margin,
        prior_precision=config.posterior.prior_precision,
    )
    by_validation = config.posterior.prior_chosen_by == "validation" and len(splits.validation)
    if config.posterior.prior_precision is None and by_validation:
        fitted = _select_prior(encoder, fitted, splits, config.seed)
    fitted.posterior.save(run.posterior)
    run.write_json(
        "posterior.json",
        {
            "method": _posterior_name(config),
            "prior_precision": fitted.prior_precision,
            "prior_chosen_by": fitted.prior_chosen_by,
            "prior_search": asdict(fitted.prior_search) if fitted.prior_search else None,
            "data_scale": fitted.data_scale,
            "log_marginal_likelihood": fitted.log_marginal_likelihood,
            "n_images": len(images),
            "seconds": fitted.seconds,
        },
    )


def export_step(config: BuildConfig, run: Run) -> None:
    """Checkpoint and posterior → encoder.onnx."""
    encoder = _trained(config, run)
    posterior, _ = LastLayerPosterior.load(run.require(run.posterior, "fit"))
    run.staging.mkdir(parents=True, exist_ok=True)
    images = load_splits(config).training.subset(range(5)).prepared(encoder.preprocessing)
    difference = export_encoder(
        ProbabilisticEncoder(encoder, posterior),
        run.staging / ENCODER_FILE,
        EncoderMetadata(encoder.preprocessing, _posterior_name(config)),
        images,
    )
    console.print(f"encoder.onnx agrees with torch to {difference:.1e} of the largest value")


def index_step(config: BuildConfig, run: Run) -> None:
    """encoder.onnx and gallery images → the gallery's files."""
    build_gallery(run.staging, _exported(run), load_splits(config).gallery)


def calibrate_step(config: BuildConfig, run: Run) -> None:
    """Gallery and calibration queries → calibration.json and calibration.npz."""
    encoder = _exported(run)
    gallery = _indexed(run)
    splits = load_splits(config)
    queries = splits.calibration
    detector = _detector(encoder, splits.gallery, config.seed)
    matched = observe(encoder, gallery, detector, queries.matched)
    if len(queries.withheld):
        no_match = observe(encoder, gallery, detector, queries.withheld)
    else:
        no_match = observe(encoder, gallery, detector, queries.matched, leave_label_out=True)
    outliers = None
    if queries.outliers is not None:
        outliers = observe(encoder, gallery, detector, queries.outliers)
    calibration = fit_calibration(
        detector, matched, no_match, outliers, encoder.fingerprint, config.calibration, config.seed
    )
    calibration.save(run.staging)


def evaluate_step(config: BuildConfig, run: Run) -> dict[str, Any]:
    """The staged bundle and evaluation queries → evaluation.json, in run and bundle."""
    run.require(run.staging / "calibration.json", "calibrate")
    report = evaluate(open_parts(run.staging, "cpu"), load_splits(config).evaluation)
    run.write_json(EVALUATION_FILE, report)
    write_json(run.staging / EVALUATION_FILE, report)
    return report


def publish_step(config: BuildConfig, run: Run, bundles: Path) -> Path:
    """The staged parts → a bundle in ``bundles``, which becomes the current one there."""
    report = run.require(run.staging / EVALUATION_FILE, "evaluate")
    retriever = open_parts(run.staging, "cpu")
    samples = write_samples(run.staging, load_splits(config))
    manifest = Manifest(
        gallery={
            "name": config.name,
            "description": config.description,
            "n_items": retriever.gallery.n_items,
            "search": {"index": "IndexFlatIP", "n_candidates": N_CANDIDATES},
        },
        encoder={
            "fingerprint": retriever.encoder.fingerprint,
            "posterior": retriever.encoder.metadata.posterior,
            "preprocessing": asdict(retriever.encoder.metadata.preprocessing),
            "dim": retriever.encoder.dim,
            "n_features": retriever.encoder.n_features,
        },
        calibration=_calibration_summary(retriever),
        metrics=json.loads(report.read_text(encoding="utf-8")),
        samples=samples,
        library_versions={name: metadata.version(name) for name in _LIBRARIES},
    )
    return publish(run.staging, manifest, bundles)


def build_all(config: BuildConfig, run: Run, bundles: Path) -> tuple[Path, dict[str, Any]]:
    """Every step in turn, into a clean staging directory."""
    shutil.rmtree(run.staging, ignore_errors=True)
    for step in (train_step, fit_step, export_step, index_step, calibrate_step):
        console.print(f"[bold]{step.__name__.removesuffix('_step')}[/bold]")
        step(config, run)
    console.print("[bold]evaluate[/bold]")
    report = evaluate_step(config, run)
    return publish_step(config, run, bundles), report


def _feature_blocks(encoder: MetricEncoder, images: Tensor) -> Iterator[Tensor]:
    """Features (n, F) of ``images`` (N, H, W, 3), in order."""
    size = 1000
    starts = range(0, len(images), size)
    for start in track(starts, "features for the posterior", len(starts)):
        with torch.inference_mode():
            features = encoder.features(images[start : start + size])
        yield features


def _select_prior(
    encoder: MetricEncoder, fitted: LaplaceFit, splits: Splits, seed: int
) -> LaplaceFit:
    """Choose the prior precision by the votes of validation images on training images."""
    shuffle = np.random.default_rng(seed)
    names = sorted(set(splits.gallery.labels))

    def drawn(images: LabelledImages, most: int) -> tuple[Tensor, Tensor]:
        chosen = images.subset(shuffle.permutation(len(images))[:most])
        prepared = torch.from_numpy(chosen.prepared(encoder.preprocessing))
        features = torch.cat(list(_feature_blocks(encoder, prepared)))
        return features, torch.tensor([names.index(label) for label in chosen.labels])

    queries, query_labels = drawn(splits.validation, N_VALIDATION)
    found, found_labels = drawn(splits.training, N_DETECTOR_IMAGES)
    criterion = vote_log_likelihood(
        fitted.posterior,
        queries,
        query_labels,
        found,
        found_labels,
        torch.Generator().manual_seed(seed),
    )
    candidates = fitted.prior_precision * np.logspace(-2, 6, 33)
    return select_by_validation(fitted, candidates.tolist(), criterion)


def _posterior_name(config: BuildConfig) -> str:
    return f"laplace_{config.posterior.approximation}_{config.posterior.split}"


def _label_codes(images: LabelledImages) -> NDArray[np.int64]:
    """Codes (N,) of the labels, in the order of their names."""
    return np.unique(np.array(images.labels), return_inverse=True)[1].astype(np.int64)


def _trained(config: BuildConfig, run: Run) -> MetricEncoder:
    """The encoder that `train_step` left."""
    encoder = build_encoder(config.network, torch.Generator())
    encoder.load_state_dict(load_file(run.require(run.checkpoint, "train")))
    return encoder.eval()


def _exported(run: Run) -> OnnxEncoder:
    """The encoder that `export_step` left."""
    return OnnxEncoder(run.require(run.staging / ENCODER_FILE, "export"))


def _indexed(run: Run) -> FaissGallery:
    """The gallery that `index_step` left."""
    run.require(run.staging / ITEMS_FILE, "index")
    return FaissGallery(run.staging)


def _detector(encoder: OnnxEncoder, images: LabelledImages, seed: int) -> OutlierDetector:
    """Fit the outlier detector on features of at most `N_DETECTOR_IMAGES` gallery images."""
    chosen = np.random.default_rng(seed).permutation(len(images))[:N_DETECTOR_IMAGES]
    images = images.subset(chosen)
    features = np.empty((len(images), encoder.n_features), dtype=np.float32)
    batches = images.batches(encoder.metadata.preprocessing, BATCH)
    for positions, batch in track(batches, "features of the gallery", -(-len(images) // BATCH)):
        features[positions] = encoder.encode(batch).features
    return fit_detector(features, seed)


def _calibration_summary(retriever: Retriever) -> dict[str, Any] | None:
    calibration = retriever.calibration
    if calibration is None:
        return None
    return {
        "n_queries": calibration.n_queries,
        "alpha": calibration.alpha,
        "match_threshold": calibration.match_threshold,
        "report": dict(calibration.report),
    }
