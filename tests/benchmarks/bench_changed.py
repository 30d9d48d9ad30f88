"""Calibrated again after changes, by what the bundle keeps: no image is read.

``python -m tests.benchmarks.bench_changed`` embeds real photographs (once), indexes and calibrates
some, changes the gallery by live writes, compacts it, and asks queries that were used for nothing
else. ``half``: half of the items are replaced by others of the same labels. ``labels``: twenty
labels come that the gallery did not have. ``both``. Beside it stands the calibration as it was.
Omniglot is one of three evaluation characters through MobileNetV2, which knows photographs;
Omniglot-network is all of them through a network that was trained on the background characters (its
training takes half an hour of one core, once; see `bench_unknown`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.kept_queries import keep
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import from_arrays
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.recalibrate import calibration_of
from index_builder.metrics import calibration_error, reliability
from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.decision import Calibration, label_means
from model_store.decision.calibration import staleness
from model_store.errors import CalibrationError
from model_store.gallery import Delete, FaissGallery, NewItem, Thumbnail, Upsert, Vector
from model_store.machine import one_blas_thread
from tests.benchmarks.measured import record_table
from tests.benchmarks.omniglot_network import evaluation_characters

from .promises.answers import Answers, answer_all
from .promises.latents import TableEncoder, pictures
from .promises.real import REAL, Embedded
from .promises.worlds import write_gallery

SETS: dict[str, Callable[[int], Embedded]] = {
    **{name: REAL[name] for name in ("Caltech-101", "CUB", "Omniglot")},
    "Omniglot-network": lambda _: evaluation_characters(every=1),
}
SCENARIOS = ("half", "labels", "both")
N_NEW_LABELS = 20
SHARE = 0.2
"""Share of absent queries of the test stream."""

N_CHANCE = 1000
_PICTURE = Thumbnail(b"-", "image/png")

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """Rows of a set by purpose.

    Attributes
    ----------
    first : of the gallery at first.
    gone, put : that leave it and come.
    of_new : queries of labels that come.
    calibration, matched, absent : queries.
    """

    first: Rows
    gone: Rows
    put: Rows
    calibration: Rows
    matched: Rows
    absent: Rows
    of_new: Rows


def divide(embedded: Embedded, scenario: str, seed: int, most_labels: int) -> Division:
    """Divide a set at random: labels first, then the images of each."""
    generator = np.random.default_rng([seed, 7])
    names = generator.permutation(np.unique(embedded.labels))[:most_labels]
    n_known = round(0.7 * len(names))
    n_new = min(N_NEW_LABELS, n_known // 2) if scenario != "half" else 0
    parts: dict[str, list[Rows]] = {name: [] for name in Division.__dataclass_fields__}
    for number, label in enumerate(names):
        rows = generator.permutation(np.flatnonzero(embedded.labels == label))
        if number >= n_known:
            parts["absent"].append(rows)
            continue
        stays, goes, comes, asked, tests = np.split(
            rows, np.round(np.array([0.2, 0.4, 0.6, 0.75]) * len(rows)).astype(int)
        )
        parts["matched"].append(tests)
        if number < n_new:
            parts["of_new"].append(tests)
            parts["put"] += [stays, comes]
            continue
        parts["calibration"].append(asked)
        parts["first"] += [stays, goes]
        if scenario != "labels":
            parts["gone"].append(goes)
            parts["put"].append(comes)
    empty = np.empty(0, dtype=np.int64)
    return Division(
        **{name: generator.permutation(np.concatenate([empty, *p])) for name, p in parts.items()}
    )


def images_of(embedded: Embedded, prefix: str, rows: Rows) -> LabelledImages:
    """Pictures that carry the number of their row."""
    return from_arrays(prefix, pictures(rows), embedded.labels[rows].tolist())


def changed(
    embedded: Embedded, division: Division, seed: int, root: Path
) -> tuple[TableEncoder, FaissGallery, Calibration, Calibration, float]:
    """Build, change and compact; the gallery, both calibrations, and how long it took."""
    encoder = TableEncoder(embedded.clean, embedded.spoilt)
    first = images_of(embedded, "item", division.first)
    asked = images_of(embedded, "query", division.calibration)
    staging = root / "staging"
    staging.mkdir(parents=True)
    gallery = write_gallery(staging, encoder, first, seed)
    queries = QuerySet(asked, asked.at([]), None)
    config = CalibrationConfig()
    known = encoder, gallery, first, queries, seed
    inputs = GalleryQueries(*known, are_views=False, unseen=True)
    before = calibrate_gallery(inputs, config)
    before.save(staging)
    keep(staging, inputs)
    (staging / "encoder.onnx").write_bytes(b"a table")
    manifest = Manifest(
        gallery={"name": "g", "description": "", "n_items": gallery.n_items},
        encoder={"fingerprint": encoder.fingerprint},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    directory = publish(staging, manifest, root / "bundles")
    live = open_live(root / "bundles", directory)
    name_of = dict(zip(division.first.tolist(), first.ids, strict=True))
    put = images_of(embedded, "put", division.put)
    of_put = embedded.clean.at(division.put)
    writes: list[Upsert | Delete] = [
        Upsert(NewItem(name, label, {}, _PICTURE), Vector(*vector))
        for name, label, *vector in zip(
            put.ids, put.labels, of_put.mean, of_put.variance, of_put.features, strict=True
        )
    ]
    writes += [Delete(name_of[row]) for row in division.gone.tolist()]
    live.commit(writes)
    snapshot = live.snapshot()
    has_new_labels = len(snapshot.labels) > len(before.label_classes)
    assert has_new_labels or staleness(before, snapshot) is not None
    started = time.perf_counter()
    with Compaction(
        root / "bundles", read_manifest(directory), live, calibrate=calibration_of(before, {})
    ) as compaction:
        prepared = compaction.prepare()
        compaction.switch()
    seconds = time.perf_counter() - started
    after = Calibration.load(prepared)
    assert after is not None
    live.close()
    served = FaissGallery(prepared)
    class_of = dict(zip(gallery.labels, before.label_classes.tolist(), strict=True))
    classes = np.array([class_of.get(label, 0) for label in served.labels], dtype=np.int8)
    before = replace(before, means=label_means(served), label_classes=classes)  # other codes
    return encoder, served, before, after, seconds


def measured(calibration: Calibration, matched: Answers, absent: Answers) -> dict[str, float]:
    """What came true on a stream of which `SHARE` is absent."""
    n_absent = min(len(absent), round(len(matched) * SHARE / (1 - SHARE)))
    probabilities = np.concatenate(
        [
            matched.at_share(calibration, SHARE),
            absent.at_share(calibration, SHARE)[:n_absent],
        ]
    )
    correct = np.concatenate([matched.correct, absent.correct[:n_absent]])
    called = np.concatenate(
        [
            matched.is_match(calibration, SHARE, calibration.alpha),
            absent.is_match(calibration, SHARE, calibration.alpha)[:n_absent],
        ]
    )
    generator = np.random.default_rng(0)
    chance = [
        calibration_error(
            reliability(probabilities, generator.random(len(correct)) < probabilities)
        )
        for _ in range(N_CHANCE)
    ]
    return {
        "ece": calibration_error(reliability(probabilities, correct)),
        "ece_perfect_95": float(np.quantile(chance, 0.95)),
        "bias": float((probabilities - correct).mean()),
        "error_of_match": float((~correct[called]).mean()) if called.any() else 0.0,
        "match": float(called.mean()),
        "recall_at_1": float(matched.correct.mean()),
        "false_alarms": float((matched.p_values <= calibration.alpha).mean()),
    }


def measured_of_new(calibration: Calibration, answers: Answers | None) -> dict[str, float]:
    """What came true of queries of the labels that came; nothing where none did."""
    if answers is None:
        return {}
    called = answers.is_match(calibration, SHARE, calibration.alpha)
    return {
        "n_of_new": len(called),
        "match_of_new": float(called.mean()),
        "wrong_matches_of_new": int((called & ~answers.correct).sum()),
        "flagged_of_new": float((answers.p_values <= calibration.alpha).mean()),
    }


def run(
    names: tuple[str, ...], scenarios: tuple[str, ...], seeds: int, most_labels: int
) -> Iterator[dict[str, object]]:
    """A record for each set, scenario and seed; the record of a set that is too small says so."""
    for name in names:
        for scenario in scenarios:
            for seed in range(seeds):
                embedded = SETS[name](seed)
                division = divide(embedded, scenario, seed, most_labels)
                with TemporaryDirectory() as place, one_blas_thread():
                    try:
                        encoder, gallery, before, after, seconds = changed(
                            embedded, division, seed, Path(place)
                        )
                    except CalibrationError as error:
                        yield {"set": name, "scenario": scenario, "seed": seed, "not": str(error)}
                        continue
                    found: dict[str, Any] = {
                        "set": name,
                        "scenario": scenario,
                        "seed": seed,
                        "n_items": gallery.n_items,
                        "seconds": seconds,
                        "stale": staleness(after, gallery),
                    }
                    for said, calibration in (("before", before), ("after", after)):
                        answers = [
                            answer_all(
                                encoder, gallery, calibration, images_of(embedded, "t", rows)
                            )
                            for rows in (division.matched, division.absent)
                        ]
                        of_stream = measured(calibration, *answers)
                        new = images_of(embedded, "t", division.of_new)
                        of_new = answer_all(encoder, gallery, calibration, new) if new else None
                        found[said] = of_stream | measured_of_new(calibration, of_new)
                yield found


def record(records: Sequence[Mapping[str, Any]]) -> None:
    """Write the table: a row for each set and scenario, the divisions side by side."""
    rows = []
    for name, scenario in dict.fromkeys((one["set"], one["scenario"]) for one in records):
        some = [one for one in records if (one["set"], one["scenario"]) == (name, scenario)]
        some = [one for one in some if "not" not in one]
        if not some:
            continue
        cells = [", ".join(f"{one['n_items']:,}" for one in some[:1])]
        cells.append(", ".join(f"{one['before']['ece']:.3f}" for one in some))
        texts = "{ece:.3f} [{ece_perfect_95:.3f}]", "{error_of_match:.3f}", "{match:.2f}"
        cells += [", ".join(text.format(**one["after"]) for one in some) for text in texts]
        cells.append(", ".join(one["stale"] or "valid" for one in some))
        rows.append([f"{name}, {scenario}", *cells])
    record_table(
        "changed",
        ["", "items", "ECE before", "ECE", "error of `match` (allowed: 0.05)", "`match`", "status"],
        rows,
        globals(),
        command="python -m tests.benchmarks.bench_changed",
        about="On fresh queries, of which a fifth is absent. In brackets: the 95 % quantile of a "
        "perfect predictor's error. Sets that are too small to be calibrated again are left out.",
    )


def main() -> None:
    """Print a record a line, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labels", type=int, default=1000, help="of a set, at most")
    options = parser.parse_args()
    records = []
    for one in run(tuple(options.sets), tuple(options.scenarios), options.seeds, options.labels):
        print(json.dumps(one), flush=True)
        records.append(one)
    record(records)


if __name__ == "__main__":
    main()
