"""Decisions on neighbours of another store, beside what else makes probabilities of similarities.

A FAISS index stands for the store: Vouch sees its neighbours alone, by `search_and_decide`.
Galleries are of labels that no network was trained on; calibration has at most 500 labelled
queries. The stream has 5 % of queries whose label is in no gallery and in no calibration. Measured
of the first neighbour: the ECE of its probability, beside the 95 % quantile of a perfect
predictor's with the same probabilities, and the AUROC by which the probability tells wrong first
neighbours. The others are fitted to the same calibration queries, and to the same with their own
label hidden, which count for 5 %:

- isotonic regression of "the first neighbour is right" on its cosine;
- logistic regression of "same label" on the cosine of pairs, as WildFusion calibrates its scores;
- a likelihood ratio of kernel densities of the cosines of pairs, with their base rate, as the
  vector transform of bayesian-bm25.

    python -m tests.benchmarks.bench_decide [--seeds N]

Reads VOUCH_DATA_DIR; writes build/bench-decide.json. Some minutes, once `make bench
NAME=promises` has
embedded the sets, which takes ten more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from index_builder.datasets import LabelledImages
from index_builder.metrics import auroc, calibration_error, reliability
from model_store.decision import Terms
from model_store.encoder.contract import Embeddings
from model_store.queries import VectorQuery
from model_store.retriever import Retriever
from model_store.search import N_CANDIDATES
from model_store.stores import FaissStore, search_and_decide
from tests.benchmarks.measured import mean_rows, record_table
from tests.benchmarks.promises.measures import calibrate
from tests.benchmarks.promises.real import real_world
from tests.benchmarks.promises.worlds import World

SETS = ("Caltech-101", "CUB", "Omniglot")
MOST_QUERIES = 500
ABSENT = 0.05
N_PERFECT = 400
RESULTS = Path("build") / "bench-decide.json"

TITLES = {
    "n_queries": "labelled calibration queries",
    "n_stream": "queries of the stream",
    "auroc_vouch": "AUROC, first neighbour wrong: **`decide`**",
    "auroc_isotonic": "… isotonic regression on the cosine",
    "auroc_logistic_pairs": "… logistic regression of pairs, as WildFusion",
    "auroc_density_ratio": "… ratio of distance densities, as bayesian-bm25",
    "ece_vouch": "ECE of the first neighbour: **`decide`**",
    "ece_perfect_95": "… a perfect predictor's, 95 % of the time below",
    "ece_isotonic": "… isotonic regression",
    "ece_logistic_pairs": "… logistic regression of pairs",
    "ece_density_ratio": "… ratio of distance densities",
}

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Lists:
    """Cosines and truth of n queries' neighbours, (n, k), nearest first."""

    cosines: Floats
    same: Bools


Predictor = Callable[[Floats], Floats]
"""Cosines of first neighbours → probabilities that they are right."""


def isotonic(lists: Lists, hidden: Lists) -> Predictor:
    """Fit the probability of a first neighbour to its cosine, without a shape."""
    cosines = np.r_[lists.cosines[:, 0], hidden.cosines[:, 0]]
    right = np.r_[lists.same[:, 0], hidden.same[:, 0]]
    weights = np.repeat(
        [(1 - ABSENT) / len(lists.same), ABSENT / len(hidden.same)],
        [len(lists.same), len(hidden.same)],
    )
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    fitted = model.fit(cosines, right, sample_weight=weights)
    return lambda first: np.asarray(fitted.predict(first))


def logistic_pairs(lists: Lists, hidden: Lists) -> Predictor:
    """Fit the probability of a pair to its cosine, by logistic regression."""
    model = LogisticRegression(C=1e6).fit(lists.cosines.reshape(-1, 1), lists.same.ravel())
    return lambda first: np.asarray(model.predict_proba(first[:, None])[:, 1])


def density_ratio(lists: Lists, hidden: Lists) -> Predictor:
    """Fit the densities of both kinds of pairs, and weigh them by their base rate."""
    cosines, same = lists.cosines.ravel(), lists.same.ravel()
    of_same, of_others = gaussian_kde(cosines[same]), gaussian_kde(cosines[~same])
    rate = same.mean()

    def predict(first: Floats) -> Floats:
        for_it, against = rate * of_same(first), (1 - rate) * of_others(first)
        ratio: Floats = for_it / np.maximum(for_it + against, np.finfo(float).tiny)
        return ratio

    return predict


OTHERS: dict[str, Callable[[Lists, Lists], Predictor]] = {
    "isotonic": isotonic,
    "logistic_pairs": logistic_pairs,
    "density_ratio": density_ratio,
}


def embedded(world: World, images: LabelledImages) -> Embeddings:
    """What the encoder says of images."""
    parts = [
        world.encoder.encode(batch)
        for _, batch in images.batches(world.encoder.metadata.preprocessing, 256)
    ]
    return Embeddings.concatenate(parts)


def store_of(world: World) -> FaissStore:
    """The gallery's vectors in somebody else's index."""
    rows = np.arange(world.gallery.n_items)
    items = world.gallery.items(rows)
    index = faiss.IndexFlatIP(world.gallery.dim)
    index.add(world.gallery.directions(rows))
    return FaissStore(index, [item.id for item in items], [item.label for item in items])


def lists_of(
    store: FaissStore, directions: NDArray[np.float32], labels: Sequence[str], *, hide: bool
) -> Lists:
    """Neighbours of queries; those of their own label left out, to ``hide`` it."""
    cosines, same = [], []
    for direction, label in zip(directions, labels, strict=True):
        found = store.nearest(direction, store.index.ntotal)
        own = np.array([one == label for one in found.labels])
        kept = np.flatnonzero(~own if hide else own | ~own)[:N_CANDIDATES]
        cosines.append(np.asarray(found.similarities)[kept])
        same.append(own[kept])
    shortest = min(map(len, cosines))
    return Lists(
        np.array([one[:shortest] for one in cosines]), np.array([one[:shortest] for one in same])
    )


def measure(name: str, seed: int) -> dict[str, Any]:
    """Calibrate one division of a set, and decide on its stream."""
    with tempfile.TemporaryDirectory() as directory:
        world = real_world(name, seed, Path(directory))
        queries = world.calibration.matched
        world = replace(
            world,
            calibration=replace(
                world.calibration, matched=queries.at(range(min(MOST_QUERIES, len(queries))))
            ),
        )
        retriever = Retriever(world.encoder, world.gallery, calibrate(world, seed))
        store, generator = store_of(world), np.random.default_rng([seed, 9])
        n_absent = round(len(world.matched) * ABSENT / (1 - ABSENT))
        absent = world.absent.at(generator.permutation(len(world.absent))[:n_absent])
        first, cosines, right, seconds = [], [], [], []
        terms = Terms(retriever.alpha, expected_absent=ABSENT)
        for images in (world.matched, absent):
            found = embedded(world, images)
            for row, label in enumerate(images.labels):
                query = VectorQuery(found.mean[row], found.variance[row], found.features[row])
                started = time.perf_counter()
                answer = search_and_decide(retriever, store, query, terms)
                seconds.append(time.perf_counter() - started)
                probabilities = answer.decided.decision.match_probabilities
                assert probabilities is not None
                first.append(probabilities[0])
                cosines.append(answer.decided.similarities[0])
                right.append(answer.neighbours.labels[0] == label)
        calibrating = world.calibration.matched
        directions = embedded(world, calibrating).directions
        shown, hidden = (
            lists_of(store, directions, calibrating.labels, hide=hide) for hide in (False, True)
        )
    truth, by_cosine = np.array(right), np.array(cosines)
    found_by = {"vouch": np.array(first)}
    found_by |= {one: fit(shown, hidden)(by_cosine) for one, fit in OTHERS.items()}
    record: dict[str, Any] = {"n_queries": len(calibrating), "n_stream": len(truth)}
    record["p50_ms"] = 1000 * float(np.median(seconds))
    for one, probabilities in found_by.items():
        record[f"auroc_{one}"] = auroc(-probabilities[~truth], -probabilities[truth])
        record[f"ece_{one}"] = calibration_error(reliability(probabilities, truth))
    perfect = [
        calibration_error(reliability(found_by["vouch"], generator.random(len(truth)) < first))
        for _ in range(N_PERFECT)
    ]
    record["ece_perfect_95"] = float(np.quantile(perfect, 0.95))
    return record


def main() -> None:
    """Measure every set over seeds, print the means, and write all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    n_seeds = parser.parse_args().seeds
    results = {name: [measure(name, seed) for seed in range(n_seeds)] for name in SETS}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    record_table(
        "decide",
        ["", *results],
        mean_rows(TITLES, results),
        globals(),
        about="FAISS finds the neighbours, Vouch sees only these. 5 % of the queries are absent. "
        "The other methods are fitted to the same queries. Mean ± standard deviation.",
    )
    for name, records in results.items():
        print(name)
        for key in records[0]:
            values = [record[key] for record in records]
            print(f"  {key:24} {np.mean(values):8.4f} ± {np.std(values, ddof=1):.4f}")


if __name__ == "__main__":
    main()
