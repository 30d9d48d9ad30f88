"""Measure one method, or the decision layer, on the test of a protocol.

The fit learns two functions. The first function maps the signals of a result list to match
probabilities. The second function maps the signals of an image to an outlier score. As in the
service, label means and features come from the searched gallery.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from index_builder.calibration import fit_calibration
from index_builder.calibration.calibrate import N_DETECTOR_IMAGES, calibration_queries
from index_builder.calibration.item_queries import DetectorFolds, group_numbers, rows_of_groups
from index_builder.calibration.probabilities import list_probabilities
from index_builder.calibration.retrieval import CalibratedGallery, RetrievedQueries
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.metrics import error_auroc, retrieval_calibration_error
from index_builder.networks import load_encoder
from index_builder.networks.encoder import all_features
from index_builder.pipeline.build import build_gallery
from index_builder.pipeline.run import Run
from index_builder.posteriors.laplace.fit import LaplacePosterior
from index_builder.posteriors.stored import load_posterior
from index_builder.reproduction.retrieval import (
    Result,
    RetrievalResults,
    Signals,
    consensus_of_queries,
    consensus_of_samples,
    curves,
    independent_draws,
    nearest,
    of_ranking,
    of_signals,
    search,
)
from index_builder.training import trunk_device
from index_builder.vectors.encoder import embed_all, embed_with_features
from model_store.bundles.manifest import ENCODER_FILE
from model_store.decision import Calibration
from model_store.encoder.contract import Encoder
from model_store.encoder.onnx import OnnxEncoder
from model_store.gallery import FaissGallery
from model_store.predictive import N_SAMPLES
from model_store.sphere import spherical_variance, unit_direction

from .protocols import PROTOCOLS, ProtocolConfig, ProtocolData, Task

N_FOLDS = 5
"""Number of folds into which a gallery is divided if its items are also the queries. The outlier
score of an item comes from a detector that was fitted without the fold of the item."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DecisionResults:
    """The results of the decision layer for B queries.

    Attributes
    ----------
    match_probabilities : (B,) match probability of the first result.
    correct : (B,) whether the first result is a true match.
    likeliest_probabilities : (B,) match probability of the most probable result.
    likeliest_correct : (B,) whether the most probable result is a true match.
    outlier_scores : (B,).
    """

    match_probabilities: Floats
    correct: NDArray[np.bool_]
    likeliest_probabilities: Floats
    likeliest_correct: NDArray[np.bool_]
    outlier_scores: Floats


@dataclass(frozen=True, slots=True)
class World:
    """The gallery of a task, opened for search, and the encoder of its queries."""

    task: Task
    searched: CalibratedGallery
    encoder: Encoder


def world_of(
    encoder: Encoder, task: Task, directory: Path, seed: int, *, hide_labels: bool = False
) -> World:
    """Index a task's gallery in ``directory``; fit the gallery's outlier detector and label means.

    With ``hide_labels``, absent queries are simulated: queries with a match whose label is hidden
    in the gallery.
    """
    directory.mkdir(parents=True, exist_ok=True)
    build_gallery(directory / "index", directory, encoder, task.gallery)
    gallery = FaissGallery(directory)
    order = np.random.default_rng(seed).permutation(len(task.gallery))[:N_DETECTOR_IMAGES]
    some = task.gallery.at(order)
    embeddings = embed_with_features(encoder, some, "features")
    known = encoder, gallery, some, embeddings, seed
    return World(task, CalibratedGallery.of(*known, hide_labels=hide_labels), encoder)


def fit_decision(
    world: World, data: ProtocolData, config: CalibrationConfig, seed: int
) -> Calibration:
    """Fit the decision layer to the development task in its gallery ``world``.

    Raises
    ------
    CalibrationError : there are too few queries.
    """
    queries = calibration_queries(world.encoder, world.searched, data.splits().calibration)
    return fit_calibration(world.searched, queries, config, seed, {})


def decide_test(
    world: World, calibration: Calibration, data: ProtocolData, seed: int
) -> tuple[DecisionResults, Mapping[str, DecisionResults]]:
    """Apply the decision layer to all queries and outliers of the test in the gallery ``world``."""
    task = data.test
    if task.leave_one_out:
        observed = _left_out(world, seed)
    else:
        observed = world.searched.observe(world.encoder, task.queries)
    outliers = {
        name: decided(calibration, world.searched.observe(world.encoder, kind.images))
        for name, kind in data.test_outliers.items()
    }
    return decided(calibration, observed), outliers


def decided(calibration: Calibration, observed: RetrievedQueries) -> DecisionResults:
    """Return probabilities and outlier scores of the observations."""
    first, highest = np.empty(len(observed)), np.empty(len(observed))
    likeliest = np.empty(len(observed), dtype=bool)
    lists = list_probabilities(calibration, observed, calibration.default_share)
    for row, (places, probabilities) in enumerate(lists):
        first[row] = probabilities[0]
        best = int(np.argmax(probabilities))
        highest[row] = probabilities[best]
        likeliest[row] = observed.matches[row, places[best]]
    correct = observed.matches[:, 0]
    return DecisionResults(first, correct, highest, likeliest, observed.outlier_scores)


def _left_out(world: World, seed: int) -> RetrievedQueries:
    """Use gallery items as queries; result lists, label means and detectors exclude the query.

    Items are processed in random blocks, because the features of all items do not fit into memory.
    """
    queries, searched = world.task.queries, world.searched
    order = np.random.default_rng(seed).permutation(len(queries))
    blocks = np.array_split(order, max(1, -(-len(order) // N_DETECTOR_IMAGES)))
    parts = []
    for block in blocks:
        items = queries.at(block)
        embeddings = embed_with_features(world.encoder, items, "features")
        groups = group_numbers(items)
        folds = DetectorFolds.of(embeddings, items.label_codes(), groups, N_FOLDS)
        scores = folds.scores(embeddings, groups)
        hidden = rows_of_groups(searched.gallery, items)
        n = min(searched.n_candidates, searched.gallery.n_items - hidden.shape[1])
        of_block = replace(searched, n_candidates=n)
        parts.append(of_block.look_up(items.labels, embeddings, scores, hidden=hidden))
    n = min(part.matches.shape[1] for part in parts)
    return RetrievedQueries.concatenate([part.first(n) for part in parts]).at(np.argsort(order))


Evaluation = dict[str, Any]

Consensus = Callable[[RetrievalResults], tuple[Floats, NDArray[np.bool_]]]
"""Function that returns two arrays (B,): the confidence of each query's consensus, and whether this
consensus is correct."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of a test, and the signals and result lists that give these metrics."""

    metrics: Result
    signals: Signals
    results: RetrievalResults


def evaluate_method(config: ProtocolConfig, run: Run, data: ProtocolData) -> Evaluation:
    """Return metrics, curves and pictures of a method, without the decision layer."""
    encoder = OnnxEncoder(run.staging / ENCODER_FILE, threads=torch.get_num_threads())
    found = measure_method(
        encoder,
        data,
        config.seed,
        lambda results: _consensus(config, run, results, encoder.fingerprint),
    )
    signals, results = found.signals, found.results
    own = signals.uncertainties
    shown = 1 - results.similarities[:, 0] if own is None else own
    sure = 1 - shown if signals.confidences is None else signals.confidences
    return {
        "metrics": found.metrics,
        "curves": curves(signals, results.correct),
        "pictures": pictures(results, shown, sure),
    }


def measure_method(
    encoder: Encoder, data: ProtocolData, seed: int, consensus: Consensus
) -> Measured:
    """Measure an encoder on the test; use the encoder's uncertainty, not the decision layer.

    Parameters
    ----------
    consensus : see `Consensus`.
    """
    results = search(encoder, data.test)
    outliers = {
        name: embed_all(encoder, kind.images, name) for name, kind in data.test_outliers.items()
    }
    gallery = unit_direction(results.gallery.mean)
    similarities = {
        name: nearest(unit_direction(one.mean), gallery, 1, None)[1][:, 0]
        for name, one in outliers.items()
    }
    has_say = bool(results.queries.variance.any())
    uncertainties = {
        name: spherical_variance(one.mean, one.variance) for name, one in outliers.items()
    }
    confidences, agreed = None, None
    if has_say and data.test.positions is None:  # samples vote for labels; places have no labels
        confidences, agreed = consensus(results)
    own = results.uncertainties
    first = next(iter(outliers))
    signals = Signals(
        own if has_say else None,
        own if has_say else None,
        uncertainties,
        confidences,
        agreed,
        -own if has_say else results.similarities[:, 0],
        -uncertainties[first] if has_say else similarities[first],
    )
    metrics = of_ranking(results, seed) | of_signals(signals, results.correct)
    metrics |= _of_similarity(results, similarities)
    if has_say:  # the authors' code sorts by the variance of query and neighbour
        summed = own + results.neighbour_uncertainties
        both = Signals(summed, None, {}, None, None, -summed, np.empty(0))
        metrics["ausc_with_neighbour"] = of_signals(both, results.correct)["ausc"]
    return Measured(metrics, signals, results)


def evaluate_decision(
    config: ProtocolConfig, run: Run, data: ProtocolData, directory: Path
) -> Evaluation:
    """Return metrics, curves and pictures of the decision layer, which uses the encoder of the run.

    Parameters
    ----------
    directory : the folder for the galleries of the development task and the test.
    """
    encoder = OnnxEncoder(run.staging / ENCODER_FILE, threads=torch.get_num_threads())
    found = measure_decision(encoder, config, data, directory)
    confidences = found.signals.confidences
    assert confidences is not None  # noqa: S101 - the decision layer always has confidences
    correct = found.signals.outcomes
    assert correct is not None  # noqa: S101 - and outcomes
    return {
        "metrics": found.metrics,
        "curves": curves(found.signals, correct),
        "pictures": pictures(found.results, 1 - confidences, confidences),
    }


def measure_decision(
    encoder: Encoder, config: ProtocolConfig, data: ProtocolData, directory: Path
) -> Measured:
    """Fit the decision layer to the development task, and measure it on the test.

    Parameters
    ----------
    directory : the folder for the galleries of the development task and the test.
    """
    same = data.development.gallery is data.test.gallery
    development = world_of(
        encoder,
        data.development,
        directory / "development",
        config.seed,
        hide_labels=len(data.splits().calibration.withheld) == 0,
    )
    calibration = fit_decision(development, data, config.calibration, config.seed)
    test = development if same else world_of(encoder, data.test, directory / "test", config.seed)
    world = replace(test, task=data.test)
    ordinary, outliers = decide_test(world, calibration, data, config.seed)
    results = search(encoder, data.test)
    by_place = data.test.positions is not None  # for places, labels are squares
    correct = results.correct if by_place else ordinary.correct
    first = next(iter(outliers.values()))
    signals = Signals(
        1 - ordinary.match_probabilities,
        ordinary.outlier_scores,
        {name: one.outlier_scores for name, one in outliers.items()},
        ordinary.match_probabilities,
        correct,
        -ordinary.outlier_scores,  # queries with a low outlier score are accepted
        -first.outlier_scores,
    )
    metrics = of_ranking(results, config.seed) | of_signals(signals, correct)
    if not by_place:
        by_probability = ordinary.likeliest_probabilities, ordinary.likeliest_correct
        metrics["recall_of_likeliest"] = float(ordinary.likeliest_correct.mean())
        metrics["ece_of_likeliest"] = retrieval_calibration_error(*by_probability)
        metrics["error_auroc_of_likeliest"] = error_auroc(
            1 - ordinary.likeliest_probabilities, ordinary.likeliest_correct
        )
    return Measured(metrics, signals, results)


def _of_similarity(results: RetrievalResults, outliers: dict[str, Floats]) -> Result:
    """Measure a baseline: the similarity of the first result is the only signal.

    The similarity, clipped at 0, is also used as an uncalibrated confidence.
    """
    doubt = 1 - results.similarities[:, 0]
    doubts = {name: 1 - values for name, values in outliers.items()}
    nobody, sure = np.empty(0), (1 - doubt).clip(0, 1)
    measured = of_signals(
        Signals(doubt, doubt, doubts, sure, results.correct, -doubt, nobody), results.correct
    )
    wanted = ("error_auroc", "ausc", "aurc", "ood_auroc", "ood_auprc", "ece")
    return {f"similarity_{name}": measured[name] for name in wanted}


def _consensus(
    config: ProtocolConfig, run: Run, results: RetrievalResults, fingerprint: str
) -> tuple[Floats, NDArray[np.bool_]]:
    if not PROTOCOLS[config.dataset.protocol].shared_samples:
        return consensus_of_queries(results, fingerprint)
    posterior = load_posterior(run.posterior)
    if isinstance(posterior, LaplacePosterior):
        return consensus_of_samples(results.task, _drawn_layers(config, run, results, posterior))
    draws = independent_draws(results, np.random.default_rng(config.seed))
    return consensus_of_samples(results.task, draws)


def _drawn_layers(
    config: ProtocolConfig,
    run: Run,
    results: RetrievalResults,
    posterior: LaplacePosterior,
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Draw last layers; for each of them, yield the embeddings of all images."""
    network = load_encoder(config.network, run.checkpoint)
    network.place_trunk(trunk_device(config.training))
    features = all_features(network, results.task.gallery)
    own = results.task.own_rows()
    of_queries = None if own is not None else all_features(network, results.task.queries)
    generator = torch.Generator().manual_seed(config.seed)
    weights, biases = posterior.sample(N_SAMPLES, generator)

    def by_all(some: Tensor) -> Tensor:
        """Return embeddings (N, S, D) from all S layers; the features are read only once."""
        of_all = (some @ weights.flatten(0, 1).T).reshape(len(some), *biases.shape)
        embeddings: Tensor = of_all + biases
        return embeddings

    galleries = by_all(features)
    queries = galleries[own] if of_queries is None else by_all(of_queries)
    for sample in range(N_SAMPLES):
        yield queries[:, sample].numpy(), galleries[:, sample].numpy()


N_SHOWN = 12
SIDE = 56
"""Maximum side of a thumbnail in pixels."""


def pictures(
    results: RetrievalResults, uncertainties: Floats, confidences: Floats
) -> dict[str, Any]:
    """Choose the queries to show for a method.

    Parameters
    ----------
    uncertainties, confidences : (B,) for each query.

    Returns
    -------
    Lists of queries by name: ``surest``, ``least_sure``, and ``wrong`` with the most certain query
    first. Each query has a thumbnail, a label, the thumbnail and label of the first result, an
    uncertainty and a confidence.
    """
    order = np.argsort(uncertainties, kind="stable")
    wrong = order[~results.correct[order]]
    return {
        "surest": [_shown(results, row, uncertainties, confidences) for row in order[:N_SHOWN]],
        "least_sure": [
            _shown(results, row, uncertainties, confidences) for row in order[::-1][:N_SHOWN]
        ],
        "wrong": [_shown(results, row, uncertainties, confidences) for row in wrong[:N_SHOWN]],
    }


def _shown(
    results: RetrievalResults, row: np.int64, uncertainties: Floats, confidences: Floats
) -> dict[str, Any]:
    item = int(results.found[row, 0])
    return {
        "picture": data_uri(results.task.queries, int(row)),
        "label": results.task.queries.labels[row],
        "found": data_uri(results.task.gallery, item),
        "found_label": results.task.gallery.labels[item],
        "correct": bool(results.correct[row]),
        "uncertainty": float(uncertainties[row]),
        "confidence": float(confidences[row]),
    }


def data_uri(images: LabelledImages, position: int) -> str:
    """Return an image as a data URI: a small image as PNG, a large one as a WebP thumbnail."""
    image = Image.fromarray(images.pixels(position))
    buffer = io.BytesIO()
    if max(image.size) <= SIDE:
        image.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        image.save(buffer, "WEBP", quality=80)
        kind = "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
