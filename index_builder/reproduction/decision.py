"""Fit Vouch's decision layer to the development task of a protocol; apply the layer to the test.

The fit learns two functions. The first function maps the signals of a result list to match
probabilities. The second function maps the signals of an image to an outlier score. As in the
service, label means and features come from the searched gallery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration import CalibratedGallery, fit_calibration
from index_builder.calibration.calibrate import (
    N_DETECTOR_IMAGES,
    calibration_queries,
)
from index_builder.calibration.item_queries import DetectorFolds, group_numbers, rows_of_groups
from index_builder.calibration.retrieval import RetrievedQueries, look_up
from index_builder.calibration.setup import RetrievalSetup
from index_builder.configuration.build import CalibrationConfig
from index_builder.indexing.from_images import build_gallery
from index_builder.reproduction.protocols import ProtocolData, Task
from index_builder.vectors.encoder import embed_with_features
from model_store.decision import Calibration, choice_probabilities
from model_store.decision.absent_share import prior_shift
from model_store.encoder.contract import Encoder
from model_store.gallery import FaissGallery

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
    """The gallery of a task, opened for search, with its outlier detector and label means."""

    task: Task
    setup: RetrievalSetup


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
    setup = RetrievalSetup.of(encoder, gallery, some, embeddings, seed, hide_labels=hide_labels)
    return World(task, setup)


def fit_decision(
    encoder: Encoder,
    world: World,
    data: ProtocolData,
    config: CalibrationConfig,
    seed: int,
) -> Calibration:
    """Fit the decision layer to the development task in its gallery ``world``.

    Raises
    ------
    CalibrationError : there are too few queries.
    """
    setup = world.setup
    return fit_calibration(
        CalibratedGallery.of(
            encoder, setup.gallery, setup.detector, setup.means, setup.n_candidates
        ),
        calibration_queries(setup, data.splits().calibration),
        config,
        seed,
        {},
    )


def decide_test(
    encoder: Encoder, world: World, calibration: Calibration, data: ProtocolData, seed: int
) -> tuple[DecisionResults, Mapping[str, DecisionResults]]:
    """Apply the decision layer to all queries and outliers of the test in the gallery ``world``."""
    task = data.test
    if task.leave_one_out:
        observed = _left_out(encoder, world, seed)
    else:
        observed = world.setup.observe(task.queries)
    outliers = {
        name: decided(
            calibration,
            world.setup.observe(kind.images),
        )
        for name, kind in data.test_outliers.items()
    }
    return decided(calibration, observed), outliers


def decided(calibration: Calibration, observed: RetrievedQueries) -> DecisionResults:
    """Return probabilities and outlier scores of the observations."""
    scores = observed.outlier_scores
    shift = prior_shift(calibration.assumed_absent, calibration.default_share)
    first, highest = np.empty(len(observed)), np.empty(len(observed))
    likeliest = np.empty(len(observed), dtype=bool)
    for row in range(len(observed)):
        places, values = observed.signals(row)
        probabilities = choice_probabilities(calibration.match.log_odds(values) + shift)
        first[row] = probabilities[0]
        best = int(np.argmax(probabilities))
        highest[row] = probabilities[best]
        likeliest[row] = observed.matches[row, places[best]]
    return DecisionResults(first, observed.matches[:, 0], highest, likeliest, scores)


def _left_out(encoder: Encoder, world: World, seed: int) -> RetrievedQueries:
    """Use gallery items as queries; result lists, label means and detectors exclude the query.

    Items are processed in random blocks, because the features of all items do not fit into memory.
    """
    queries, setup = world.task.queries, world.setup
    order = np.random.default_rng(seed).permutation(len(queries))
    blocks = np.array_split(order, max(1, -(-len(order) // N_DETECTOR_IMAGES)))
    parts = []
    for block in blocks:
        items = queries.at(block)
        embeddings = embed_with_features(encoder, items, "features")
        groups = group_numbers(items)
        folds = DetectorFolds.of(embeddings, items.label_codes(), groups, N_FOLDS)
        scores = folds.scores(embeddings, groups)
        hidden = rows_of_groups(setup.gallery, items)
        n = min(setup.n_candidates, setup.gallery.n_items - hidden.shape[1])
        parts.append(
            look_up(setup.gallery, setup.means, items, embeddings, scores, n, hidden=hidden)
        )
    n = min(part.matches.shape[1] for part in parts)
    return RetrievedQueries.concatenate([part.first(n) for part in parts]).at(np.argsort(order))
