"""Rolling up: what becomes of ambiguous queries where labels have parents, on real images.

CUB's first ten birds, whose family is the last word of their name, and characters of Omniglot,
whose parent is their alphabet, through encoders that have learned nothing from them. Six tenths of
the labels are in the gallery, the others are absent, truly; calibrated as `vouch-build index
--calibrate --parents` does. Measured on test queries, of which a twentieth is absent, on average
over draws of labels and images, for two promised errors: how many get which verdict, how many of
the ambiguous ones get an answer of the upper level, how often that is wrong, beside what the
binomial's 99 % allow of so many, and the ECE of its probability. An absent query whose parent is
named rightly is no error. The oracle knows what is right: how many of these ambiguous queries the
best threshold on the same probability would answer with that error.

    python -m tests.benchmarks.bench_roll_up [CUB] [Omniglot] [--first 0]

Reads VOUCH_DATA_DIR; writes build/bench-roll-up.json. Ten minutes once the images are embedded,
which `bench_promises` does as well (build/promises).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.retrieval import TruthRule
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.metrics import calibration_error, reliability
from model_store.decision import Calibration, Hierarchy, Retrieved, Terms, decide, likeliest_parents
from model_store.predictive import predict
from model_store.search import N_CANDIDATES
from tests.benchmarks.measured import record_table
from tests.benchmarks.promises.real import real_world
from tests.benchmarks.promises.worlds import World

RESULTS = Path("build") / "bench-roll-up.json"
ERRORS = (0.05, 0.1)
COLUMNS = {
    "`match`": "match_share",
    "`ambiguous`": "ambiguous_share",
    "of these rolled up": "rolled_up_of_ambiguous",
    "wrong": "roll_up_error",
    "wrong, worst draw": "roll_up_error_worst",
    "of these by the oracle": "oracle_of_ambiguous",
}
"""The columns of the table, and what they show."""
ABOUT = (
    "CUB: ten birds and their families. Omniglot: characters and their alphabets. A twentieth of "
    "the queries is absent. Mean of three draws. The oracle uses the best threshold on these "
    "queries."
)
N_SEEDS = 3
CONFIDENCE = 0.99
AT_ONCE = 512

PARENT: dict[str, Callable[[str], str]] = {
    "CUB": lambda species: species.rsplit("_", 1)[-1],
    "Omniglot": lambda character: character.rsplit("-", 1)[0],
}
"""Name of a label's parent, by the name of the set."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of N test queries, at the share of absent ones that is promised for.

    Attributes
    ----------
    verdicts : (N,).
    matches_right : (N,) whether the first item has the query's label.
    rolled_up, right : (N,) whether a parent was named, and whether it is the query's.
    probabilities : (N,) of the likeliest parent, named or not.
    own : (N,) whether that is the query's own.
    likely : (N,) the same, and the query has a match in the gallery.
    weights : (N,) of the stream.
    """

    verdicts: NDArray[np.str_]
    matches_right: NDArray[np.bool_]
    rolled_up: NDArray[np.bool_]
    right: NDArray[np.bool_]
    probabilities: NDArray[np.float64]
    own: NDArray[np.bool_]
    likely: NDArray[np.bool_]
    weights: NDArray[np.float64]


def hierarchy_of(labels: Sequence[str], parent: Callable[[str], str]) -> Hierarchy:
    """One level above labels."""
    return Hierarchy.of(["parent"], {label: [parent(label)] for label in sorted(set(labels))})


def answered(world: World, calibration: Calibration, parent: Callable[[str], str]) -> Outcomes:
    """Ask about all test queries."""
    share = calibration.default_share
    rows: list[tuple[object, ...]] = []
    for images, of_kind in ((world.matched, 1 - share), (world.absent, share)):
        rows += [
            (*row, of_kind / len(images)) for row in _asked(world, calibration, images, parent)
        ]
    return Outcomes(*(np.array(column) for column in zip(*rows, strict=True)))


def _asked(
    world: World, calibration: Calibration, images: LabelledImages, parent: Callable[[str], str]
) -> list[tuple[object, ...]]:
    names, hierarchy = world.gallery.labels, calibration.hierarchy
    assert hierarchy is not None
    held = set(names)
    rows: list[tuple[object, ...]] = []
    for positions, batch in images.batches(world.encoder.metadata.preprocessing, AT_ONCE):
        embeddings = world.encoder.encode(batch)
        found = world.gallery.candidates(embeddings.directions, N_CANDIDATES)
        codes = world.gallery.label_codes(found.rows)
        scores = calibration.outlier_score(embeddings)
        for row, predictive in enumerate(predict(embeddings, scores)):
            label = images.labels[positions[row]]
            parents = hierarchy.of_labels([names[code] for code in codes[row]])
            retrieved = Retrieved(
                found.similarities[row],
                codes[row],
                min(codes.shape[1], calibration.n_candidates),
                np.arange(codes.shape[1]),
                parents=parents,
            )
            decided = decide(calibration, predictive, retrieved, Terms(calibration.alpha))
            assert decided.match_probabilities is not None
            _, first = np.unique(codes[row], return_index=True)
            place, total = likeliest_parents(parents[first], decided.match_probabilities[first])
            own = hierarchy.parents[0][place[0]] == parent(label)
            rolled = decided.roll_up
            rows.append(
                (
                    decided.verdict,
                    names[codes[row, 0]] == label,
                    rolled is not None,
                    rolled is not None and rolled.label == parent(label),
                    min(total[0], 1.0),
                    own,
                    own and label in held,
                )
            )
    return rows


def measured(outcomes: Outcomes, max_error: float) -> dict[str, float]:
    """Name what came true of a promise."""
    weights, ambiguous = outcomes.weights, outcomes.verdicts == "ambiguous"
    match = outcomes.verdicts == "match"
    of_rolled = weights[outcomes.rolled_up]
    return {
        "match_share": float(weights[match].sum()),
        "match_error": _share(~outcomes.matches_right[match], weights[match]),
        "ambiguous_share": float(weights[ambiguous].sum()),
        "rolled_up_of_ambiguous": _share(outcomes.rolled_up[ambiguous], weights[ambiguous]),
        "roll_up_error": _share(~outcomes.right[outcomes.rolled_up], of_rolled),
        "oracle_of_ambiguous": best_share(
            outcomes.probabilities[ambiguous],
            outcomes.own[ambiguous],
            weights[ambiguous],
            max_error,
        ),
        "n_rolled_up": float(outcomes.rolled_up.sum()),
        "parent_ece": calibration_error(
            reliability(outcomes.probabilities, outcomes.likely, weights=weights)
        ),
    }


def best_share(
    probabilities: NDArray[np.float64],
    right: NDArray[np.bool_],
    weights: NDArray[np.float64],
    max_error: float,
) -> float:
    """Return the largest share, likeliest first, of which at most ``max_error`` is wrong."""
    order = np.argsort(-probabilities, kind="stable")
    accepted = np.cumsum(weights[order])
    wrong = np.cumsum((weights * ~right)[order])
    return float(accepted[wrong <= max_error * accepted].max(initial=0.0) / accepted[-1])


def _share(flags: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
    return float(weights @ flags / weights.sum()) if len(flags) else 0.0


def measure(name: str, seed: int) -> dict[str, float]:
    """Calibrate one draw of a set, and ask it."""
    parent = PARENT[name]
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        world = real_world(name, seed, Path(scratch))
        inputs = GalleryQueries(
            *(world.encoder, world.gallery, world.gallery_images, world.calibration, seed),
            are_views=False,
            unseen=world.unseen,
            rule=TruthRule(hierarchy_of([*world.gallery.labels, *world.absent.labels], parent)),
        )
        calibration = calibrate_gallery(inputs, CalibrationConfig())
        for max_error in ERRORS:
            promising = replace(calibration, max_error=max_error)
            for key, value in measured(answered(world, promising, parent), max_error).items():
                found[f"{name}_{round(100 * max_error)}_{key}"] = value
    return found


def main(names: Sequence[str], first: int) -> None:
    """Measure draws from a ``first`` on, print, write."""
    results: dict[str, float] = {}
    for name in names or PARENT:
        draws = [measure(name, seed) for seed in range(first, first + N_SEEDS)]
        results |= {key: float(np.mean([one[key] for one in draws])) for key in draws[0]}
        for max_error in ERRORS:
            key = f"{name}_{round(100 * max_error)}"
            n = int(sum(one[f"{key}_n_rolled_up"] for one in draws))
            allowed = float(binom.ppf(CONFIDENCE, n, max_error)) / max(n, 1)
            results[f"{key}_roll_up_error_allowed"] = allowed
            worst = max(one[f"{key}_roll_up_error"] for one in draws)
            results[f"{key}_roll_up_error_worst"] = worst
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))
    record(results)


def record(results: Mapping[str, float]) -> None:
    """Write the table of the documentation."""
    rows = []
    for name in PARENT:
        for max_error in ERRORS:
            key = f"{name}_{round(100 * max_error)}"
            if f"{key}_match_share" in results:
                shown = [f"{100 * results[f'{key}_{one}']:.1f} %" for one in COLUMNS.values()]
                rows.append([name, f"{100 * max_error:.0f} %", *shown])
    columns = ["labels", "promised error", *COLUMNS]
    record_table("roll-up", columns, rows, globals(), about=ABOUT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", type=int, default=0, help="the first of three draws")
    options = parser.parse_args()
    main(options.names, options.first)
