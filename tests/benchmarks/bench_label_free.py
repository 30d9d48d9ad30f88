"""Galleries without labels: what comes true where a gallery was calibrated by views of its items.

A gallery holds one picture an item and is built as a user would, by `vouch-build all --no-labels
--images FOLDER`: of Caltech-101 eight photographs of each kind, of Omniglot one drawing of each
character. Queries with a match are the items photographed again,
simulated by strong views (`strong_views`) of other kinds than those that calibration made up.
Queries without one are near misses: strong views of *other* pictures of the same kinds, other
drawings of the same characters. Streams have 5, 20 and 50 % of them, and the request states that
share. Measured in each: the share of wrong ones among `match` verdicts, beside what `max_error` and
the binomial's 99 % allow of so many, and the ECE of the first result; on average over three draws
of the pictures and of the views, and in the worst draw.

    python -m tests.benchmarks.bench_label_free [caltech101_half] [omniglot]

Reads VOUCH_DATA_DIR; writes build/bench-label-free.json. Five minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from index_builder.configuration.build import encoder_config
from index_builder.datasets.images import LabelledImages, from_files
from index_builder.encoders import resolve_encoder
from index_builder.indexing.engines import open_encoder
from index_builder.metrics import calibration_error, reliability
from index_builder.pipeline.build import build_all
from index_builder.pipeline.run import Run
from index_builder.vectors.encoder import embedded
from model_store.bundles.bundle import open_bundle
from model_store.bundles.manifest import ENCODER_FILE
from model_store.predictive import Predictive
from model_store.retriever import Retriever
from tests.benchmarks.measured import record_table
from tests.benchmarks.photographs import unpacked
from tests.benchmarks.preconditions import data_dir
from tests.benchmarks.strong_views import strong_views

SETS = ("caltech101_half", "omniglot")
SHARES = (0.05, 0.2, 0.5)
N_OF_KIND = {"caltech101_half": 8, "omniglot": 1}
"""Pictures of a kind in the gallery; as many others, at most, are near misses."""

N_KINDS = 660
N_SEEDS = 3
CONFIDENCE = 0.99
RESULTS = Path("build") / "bench-label-free.json"

COLUMNS = {"caltech101_half": "Caltech-101", "omniglot": "Omniglot"}
ROWS = {
    "`match`, of queries with a match": "matches_of_present",
    "`match`, of near misses": "matches_of_absent",
    "wrong ones among `match` (`max_error` 0.05)": "wrong_match_share",
    "ECE of the first result": "ece",
    "… of a perfect predictor, on average": "ece_by_chance",
}
"""The rows of the table, and what they show."""
ABOUT = (
    "Calibrated with augmented views; queries are strong views of other kinds, and near misses. "
    "Mean of three draws, worst draw in brackets."
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Names of files below ``root``: of the items, and of other pictures of the same kinds."""

    root: Path
    items: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def drawn(cls, root: Path, n_of_kind: int, seed: int) -> Pictures:
        """Draw them from a folder with one sub-folder for each kind."""
        generator = np.random.default_rng(seed)
        items: list[str] = []
        others: list[str] = []
        kinds = sorted(path for path in root.iterdir() if path.is_dir())
        for kind in kinds[-N_KINDS:]:
            names = [path.relative_to(root).as_posix() for path in sorted(kind.iterdir())]
            chosen = [names[place] for place in generator.permutation(len(names))]
            items += chosen[:n_of_kind]
            others += chosen[n_of_kind : 2 * n_of_kind]
        return cls(root, tuple(sorted(items)), tuple(sorted(others)))

    def images(self, names: Sequence[str]) -> LabelledImages:
        """Files as images; each is its own label."""
        return from_files(self.root, names, names)


def measure(name: str, data: Path, seed: int) -> dict[str, float]:
    """Build the gallery of one set, ask it, and name what came true."""
    with tempfile.TemporaryDirectory() as scratch:
        unpack = Path(scratch) / "unpacked"
        unpack.mkdir()
        pictures = Pictures.drawn(unpacked(name, data, unpack), N_OF_KIND[name], seed)
        folder = Path(scratch) / "items"
        for item in pictures.items:
            target = folder / item
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((pictures.root / item).read_bytes())
        box = resolve_encoder(None, Path(scratch) / "encoders")
        config = encoder_config(folder, box, "items", labelled=False)
        bundle, _ = build_all(config, Run(Path(scratch) / "run"), Path(scratch) / "bundles")
        retriever = open_bundle(bundle, "cpu", threads=1).retriever
        encoder = open_encoder(bundle / ENCODER_FILE, "cpu")
        again = strong_views(pictures.images(pictures.items), seed)
        missing = strong_views(pictures.images(pictures.others), seed + 1)
        asked = [
            [
                one
                for _, found in embedded(encoder, some, what)
                for one in retriever.predictives(found)
            ]
            for some, what in ((again, "items again"), (missing, "near misses"))
        ]
        return {
            f"label_free_{key}": value
            for share in SHARES
            for key, value in _stream(name, retriever, pictures.items, asked, share, seed).items()
        }


def _stream(
    name: str,
    retriever: Retriever,
    ids: Sequence[str],
    asked: Sequence[Sequence[Predictive]],
    share: float,
    seed: int,
) -> dict[str, float]:
    """What comes true on a stream with that share of near misses, which the requests state."""
    again, missing = asked
    n_absent = min(len(missing), round(share / (1 - share) * len(again)))
    n_present = round((1 - share) / share * n_absent) if share >= 0.5 else len(again)
    draw = np.random.default_rng([seed, 1])
    present = np.sort(draw.permutation(len(again))[:n_present]).tolist()
    absent = np.sort(draw.permutation(len(missing))[:n_absent]).tolist()
    queries = [(again[row], ids[row]) for row in present] + [(missing[row], "") for row in absent]
    probabilities = np.empty(len(queries))
    right, matched = np.zeros((2, len(queries)), dtype=bool)
    for row, (predictive, wanted) in enumerate(queries):
        answer = retriever.find(predictive, 10, expected_absent=share)
        first = answer.matches[0]
        assert first.match_probability is not None
        probabilities[row] = first.match_probability
        right[row] = first.id == wanted
        matched[row] = answer.decision.verdict == "match"
    calibration = retriever.calibration
    assert calibration is not None
    n_matches, wrong = int(matched.sum()), int((matched & ~right).sum())
    allowed = float(binom.ppf(CONFIDENCE, n_matches, calibration.max_error)) if n_matches else 0.0
    key = f"{name}_{round(100 * share)}_absent"
    return {
        f"n_queries_{key}": float(len(queries)),
        f"matches_{key}": float(n_matches),
        f"wrong_match_share_{key}": wrong / n_matches if n_matches else 0.0,
        f"allowed_match_share_{key}": allowed / n_matches if n_matches else 0.0,
        f"right_first_{key}": float(right.mean()),
        f"mean_probability_{key}": float(probabilities.mean()),
        f"matches_of_absent_{key}": float(matched[len(present) :].mean()),
        f"matches_of_present_{key}": float(matched[: len(present)].mean()),
        f"ece_{key}": calibration_error(reliability(probabilities, right)),
        f"ece_by_chance_{key}": _by_chance(probabilities, draw),
    }


def _by_chance(probabilities: NDArray[np.float64], draw: np.random.Generator) -> float:
    """The ECE that a perfect predictor with these probabilities has on average."""
    draws = draw.random((200, len(probabilities))) < probabilities
    return float(np.mean([calibration_error(reliability(probabilities, one)) for one in draws]))


def main(names: Sequence[str]) -> None:
    """Measure, print, write."""
    results: dict[str, float] = {}
    for name in names or SETS:
        data = data_dir()
        of_seeds = [measure(name, data, seed) for seed in range(N_SEEDS)]
        results |= {key: float(np.mean([one[key] for one in of_seeds])) for key in of_seeds[0]}
        results |= {
            f"{key}_worst_seed": max(one[key] for one in of_seeds)
            for key in of_seeds[0]
            if key.startswith(("label_free_ece_" + name, "label_free_wrong_"))
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))
    record(results)


def record(results: Mapping[str, float]) -> None:
    """Write the table of the documentation."""
    columns = {
        f"{name}_{round(100 * share)}_absent": f"{shown}, {round(100 * share)} % near misses"
        for name, shown in COLUMNS.items()
        if any(f"_{name}_" in key for key in results)
        for share in SHARES
    }

    def cell(figure: str, column: str) -> str:
        if "match_share" in figure and not results[f"label_free_matches_{column}"]:
            return "–"
        worst = results.get(f"label_free_{figure}_{column}_worst_seed")
        mean = f"{results[f'label_free_{figure}_{column}']:.3f}"
        return mean if worst is None else f"{mean} ({worst:.3f})"

    rows = [[row, *(cell(figure, one) for one in columns)] for row, figure in ROWS.items()]
    record_table("label-free", ["", *columns.values()], rows, globals(), about=ABOUT)


if __name__ == "__main__":
    main(sys.argv[1:])
