"""Groups of unknown queries: labels that are absent, on real images.

Half of the labels are in the gallery, half of their images; the others are absent, truly, and
nothing was fitted to them or to their pictures. One of three of Omniglot's 659 evaluation
characters (220, as many as in the other benchmarks) and all of them, through a network that was
trained on the background characters, and 220 through MobileNetV2, which knows photographs; CUB's
ten birds and Caltech's 25 kinds through MobileNetV2. On average over draws of labels and images:

- ``given``: all absent queries, and no others, are grouped: pairwise precision and recall, the
  precision that was expected, and the ECE of P(same) over the pairs within groups; beside it what
  the encoder allows: the AUROC of same pairs over others by their cosines, and ``best_recall``, of
  an oracle that knows where to cut the average linkage of these cosines for that precision;
- ``served``: all test queries are asked, of which those are grouped that the gallery says it does
  not have; recall is of all pairs of absent queries;
- ``enrolled``: half of the members of each served group are put into the gallery under the label of
  most of them, and it is calibrated again. Share of them that match, and of the other halves.

    python -m tests.benchmarks.bench_unknown [WORLD …] [--precision 0.9]

Reads VOUCH_DATA_DIR; writes build/bench-unknown.json. Minutes, once images are embedded; half an
hour more where Omniglot's network is not kept (build/unknown).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import from_arrays
from index_builder.datasets.splits import QuerySet
from index_builder.metrics import auroc, calibration_error, reliability
from model_store.identities import UNKNOWN, Group, Grouping
from model_store.identity_pairs import Points
from model_store.retriever import Retriever
from tests.benchmarks.measured import record_table
from tests.benchmarks.omniglot_network import evaluation_characters
from tests.benchmarks.promises.latents import TableEncoder, pictures
from tests.benchmarks.promises.real import REAL, Embedded
from tests.benchmarks.promises.worlds import write_gallery

RESULTS = Path("build") / "bench-unknown.json"
N_SEEDS = 3
IN_GALLERY = 0.5
GALLERY_SHARE, CALIBRATION_SHARE = 0.5, 0.25
PRECISION = 0.9

WORLDS: dict[str, Callable[[int], Embedded]] = {
    "Omniglot": lambda _: evaluation_characters(every=3),
    "Omniglot_all": lambda _: evaluation_characters(every=1),
    "Omniglot_mobilenet": REAL["Omniglot"],
    "CUB": REAL["CUB"],
    "Caltech": REAL["Caltech-101"],
}
TITLES = {
    "Omniglot": "Omniglot, 110 of 220 characters absent",
    "Omniglot_all": "Omniglot, 330 of 659",
    "Omniglot_mobilenet": "Omniglot, 110 of 220, through MobileNetV2",
    "CUB": "CUB, 5 of 10 birds",
    "Caltech": "Caltech-101, 13 of 25 kinds",
}
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """One draw: places of the images of each part."""

    embedded: Embedded
    gallery: Rows
    calibration: Rows
    matched: Rows
    absent: Rows

    @classmethod
    def drawn(cls, embedded: Embedded, seed: int) -> World:
        """Divide labels, and then the images of each, at random."""
        generator = np.random.default_rng([seed, 21])
        names = generator.permutation(np.unique(embedded.labels))
        parts: tuple[list[Rows], ...] = ([], [], [])
        known = names[: round(IN_GALLERY * len(names))]
        for label in known:
            rows = generator.permutation(np.flatnonzero(embedded.labels == label))
            ends = np.round(np.cumsum([GALLERY_SHARE, CALIBRATION_SHARE]) * len(rows)).astype(int)
            for part, of_label in zip(parts, np.split(rows, ends), strict=True):
                part.append(of_label)
        absent = np.flatnonzero(~np.isin(embedded.labels, known))
        gallery, calibration, matched = (generator.permutation(np.concatenate(p)) for p in parts)
        return cls(embedded, gallery, calibration, matched, absent)

    @property
    def points(self) -> Points:
        """All images."""
        return Points.of(self.embedded.clean.mean, self.embedded.clean.variance)


def served(
    world: World, gallery: Rows, labels: NDArray[np.str_], seed: int, directory: Path
) -> Retriever:
    """Index images under ``labels`` (of all images), and calibrate, as `index --calibrate` does."""
    encoder = TableEncoder(world.embedded.clean, world.embedded.spoilt)
    pool = pictures(np.arange(len(labels)))

    def images(name: str, rows: Rows) -> LabelledImages:
        return from_arrays(name, pool[rows], labels[rows].tolist())

    directory.mkdir()
    indexed = images("item", gallery)
    opened = write_gallery(directory, encoder, indexed, seed)
    queries = QuerySet(images("query", world.calibration), images("none", gallery[:0]), None)
    inputs = GalleryQueries(encoder, opened, indexed, queries, seed, are_views=False, unseen=True)
    calibration = calibrate_gallery(inputs, CalibrationConfig())
    return Retriever(encoder, opened, calibration)


def asked(
    retriever: Retriever, world: World, rows: Rows, absent: float
) -> list[tuple[str, str | None]]:
    """Verdict and first label of each query."""
    embeddings = world.embedded.clean.at(rows)
    found: list[tuple[str, str | None]] = []
    for start in range(0, len(rows), 256):
        for predictive in retriever.predictives(embeddings.at(slice(start, start + 256))):
            answer = retriever.find(predictive, 1, expected_absent=absent)
            found.append((answer.decision.verdict, answer.matches[0].label))
    return found


def judged(groups: Sequence[Group], rows: Rows, world: World) -> dict[str, float | None]:
    """Precision and recall of the pairs within groups of ``rows``, and what was expected.

    Of no groups there is no precision.
    """
    labels = world.embedded.labels
    same, n, expected = 0.0, 0.0, 0.0
    said, true = [], []
    for group in groups:
        of_group = labels[rows[group.rows]]
        pairs = len(of_group) * (len(of_group) - 1) / 2
        right = sum(m * (m - 1) / 2 for m in Counter(of_group.tolist()).values())
        same, n, expected = same + right, n + pairs, expected + pairs * group.probability
        said += [group.probability] * round(pairs)
        true += [True] * round(right) + [False] * round(pairs - right)
    absent = Counter(labels[world.absent].tolist()).values()
    n_same = sum(m * (m - 1) / 2 for m in absent)
    bins = reliability(np.array(said), np.array(true, dtype=bool)) if said else []
    return {
        "precision": same / n if n else None,
        "recall": same / n_same,
        "expected_precision": expected / n if n else None,
        "p_same_ece": calibration_error(bins) if bins else None,
        "n_groups": len(groups),
    }


def allowed(world: World, precision: float) -> dict[str, float | None]:
    """What cosines tell of the pairs of absent queries, whatever is calibrated."""
    directions = world.embedded.clean.at(world.absent).directions.astype(np.float64)
    codes = np.unique(world.embedded.labels[world.absent], return_inverse=True)[1]
    left, right = np.triu_indices(len(codes), 1)
    same = codes[left] == codes[right]
    cosines = (directions @ directions.T)[left, right]
    members = [*np.eye(codes.max() + 1)[codes]]
    n_same, n_pairs, best = 0.0, 0.0, 0.0
    for one, other, *_ in linkage(np.maximum(1 - cosines, 0), "average"):
        parts = members[int(one)], members[int(other)]
        n_same += float(parts[0] @ parts[1])
        n_pairs += float(parts[0].sum() * parts[1].sum())
        members.append(parts[0] + parts[1])
        if n_same >= precision * n_pairs:
            best = n_same
    return {
        "pair_auroc": auroc(cosines[same], cosines[~same]),
        "best_recall": best / float(same.sum()),
    }


def measure(name: str, seed: int, precision: float) -> dict[str, float | None]:
    """One draw of a world, grouped as surely as ``precision`` says."""
    world = World.drawn(WORLDS[name](seed), seed)
    labels, points = world.embedded.labels, world.points
    with tempfile.TemporaryDirectory() as scratch:
        retriever = served(world, world.gallery, labels, seed, Path(scratch) / "before")
        grouping = Grouping.of_gallery(retriever.gallery, seed)
        given = judged(grouping.groups(points.at(world.absent), precision), world.absent, world)
        given |= allowed(world, precision)
        queries = np.r_[world.matched, world.absent]
        absent = len(world.absent) / len(queries)
        answers = asked(retriever, world, queries, absent)
        unknown = queries[[verdict in UNKNOWN for verdict, _ in answers]]
        groups = grouping.groups(points.at(unknown), precision)
        of_served = judged(groups, unknown, world)
        of_served["absent_found"] = float(np.isin(world.absent, unknown).mean())
        of_served["present_among_unknown"] = float(np.isin(unknown, world.matched).mean())
        enrolled = _enrolled(world, groups, unknown, seed, Path(scratch) / "after")
    parts: dict[str, Mapping[str, float | None]] = {
        "given": given,
        "served": of_served,
        "enrolled": enrolled,
    }
    return {f"{name}_{part}_{key}": v for part, of in parts.items() for key, v in of.items()}


def _enrolled(
    world: World, groups: Sequence[Group], unknown: Rows, seed: int, directory: Path
) -> dict[str, float]:
    """Enrol half of each group, calibrate again, and ask about both halves."""
    labels, taken, others = world.embedded.labels.copy(), [], []
    truth = world.embedded.labels
    for group in groups:
        rows = unknown[group.rows]
        ((label, _),) = Counter(truth[rows].tolist()).most_common(1)
        labels[rows] = label
        taken += rows[::2].tolist()
        others += rows[1::2].tolist()
    if not taken:
        return {}
    gallery = np.r_[world.gallery, np.array(taken)]
    retriever = served(world, gallery, labels, seed, directory)
    assert retriever.calibration is not None
    found = {}
    for part, rows in (("members", np.array(taken)), ("others", np.array(others))):
        answers = asked(retriever, world, rows, retriever.calibration.default_share)
        matched = np.array([verdict == "match" for verdict, _ in answers])
        right = np.array([label for _, label in answers]) == truth[rows]
        found[f"{part}_match"] = float(matched.mean())
        found[f"{part}_match_right"] = float((matched & right).mean())
    return found


def main(names: Sequence[str], precision: float) -> None:
    """Measure, print, write."""
    results: dict[str, float] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name in names or WORLDS:
        draws = [measure(name, seed, precision) for seed in range(N_SEEDS)]
        for part in ("given", "served", "enrolled"):
            results = {k: v for k, v in results.items() if not k.startswith(f"{name}_{part}")}
        for key in sorted({key for one in draws for key in one}):
            values = [value for one in draws if (value := one.get(key)) is not None]
            if values:
                results[key] = float(np.mean(values))
            if values and key.endswith(("given_precision", "served_precision", "_recall")):
                results[f"{key}_worst"] = float(np.min(values))
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(
            json.dumps(
                {
                    k: v
                    for k, v in results.items()
                    if k.startswith((f"{name}_g", f"{name}_s", f"{name}_e"))
                },
                indent=1,
            )
        )
    record(results)


def record(results: Mapping[str, float]) -> None:
    """Write the table: a row for each world."""

    def cell(name: str, key: str) -> str:
        mean, worst = (results.get(f"{name}_{key}{of}") for of in ("", "_worst"))
        if mean is None:
            return "–"
        return f"{mean:.2f}" if worst is None else f"{mean:.2f} ({worst:.2f})"

    parts = {
        "given_precision": "given: precision",
        "given_recall": "recall",
        "given_expected_precision": "expected precision",
        "served_precision": "served: precision",
        "served_recall": "recall",
        "enrolled_others_match": "enrolled: `match`",
        "enrolled_others_match_right": "correct",
    }
    rows = [[TITLES[name], *(cell(name, key) for key in parts)] for name in WORLDS]
    record_table(
        "unknown",
        ["", *parts.values()],
        rows,
        globals(),
        about=f"{N_SEEDS} draws; half of the labels absent. Mean, worst draw in brackets. Given: "
        "all absent queries and no others. Served: what verdicts leave.",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*")
    parser.add_argument("--precision", type=float, default=PRECISION)
    options = parser.parse_args()
    main(options.worlds, options.precision)
