"""Bounds from reviewed queries: coverage before and after.

All of Omniglot's evaluation characters, through a network that was trained on the background ones
(`bench_unknown`), seven in ten of them in a gallery of eight drawings each. It is calibrated with a
few held-out drawings and its items. Then reviewers decide on drawings of the stream, a twentieth of
which is of characters that are not there, and the bundle is calibrated again with these
(`calibrate BUNDLES --decisions`). Of fresh drawings of the same stream, by the promised error:
share that gets `match`, and how many of these are wrong. The stream is of the camera of the build,
or of another one: embeddings halfway between those of the drawings and of corrupted drawings. A
share of the reviewers' words may be wrong: then another character is named, or what is there is
said to be absent.

    python -m tests.benchmarks.bench_decided

Reads VOUCH_DATA_DIR and prints a record a line. Minutes, and half an hour more where Omniglot's
network is not kept (build/unknown).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.fit_again import fit_again
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.kept_queries import keep
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets.splits import QuerySet
from model_store.decision import Calibration
from model_store.encoder.contract import Embeddings
from model_store.feedback import AnsweredQuery, Decided, DecisionKind, DrawnQuery
from model_store.gallery import FaissGallery
from model_store.machine import one_blas_thread
from model_store.table import HalfRows
from tests.benchmarks.bench_changed import images_of
from tests.benchmarks.measured import record_table
from tests.benchmarks.omniglot_network import evaluation_characters
from tests.benchmarks.promises.answers import Answers, answer_all
from tests.benchmarks.promises.latents import TableEncoder
from tests.benchmarks.promises.real import Embedded
from tests.benchmarks.promises.worlds import write_gallery

N_SEEDS = 3
N_HELD_OUT, N_DECIDED = 150, 1_000
ABSENT = 0.05
ERRORS = (0.02, 0.05)
CAMERAS = {"the same camera": 0.0, "another camera": 0.5}
REVIEWED = ((100, 0.0), (300, 0.0), (1_000, 0.0), (1_000, 0.05))
"""Reviewed queries, and the share of them that is decided wrongly."""

Rows = NDArray[np.int64]


def divided(embedded: Embedded, seed: int) -> list[Rows]:
    """Rows of the gallery, of held-out queries, and of what is decided on and measured with.

    The last two are of drawings with a match, and of others, each divided in two.
    """
    generator = np.random.default_rng([seed, 9])
    names = generator.permutation(np.unique(embedded.labels))
    known = names[: round(0.7 * len(names))]
    gallery, asked = [], []
    for label in known:
        rows = generator.permutation(np.flatnonzero(embedded.labels == label))
        gallery.append(rows[:8])
        asked.append(rows[8:])
    matched = generator.permutation(np.concatenate(asked))
    absent = generator.permutation(np.flatnonzero(~np.isin(embedded.labels, known)))
    n_absent = round(N_DECIDED * ABSENT)
    ends = np.cumsum([N_HELD_OUT, N_DECIDED - n_absent])
    held_out, decided, measured = np.split(matched, ends)
    of_absent = np.split(absent, [n_absent])
    return [generator.permutation(np.concatenate(gallery)), held_out, decided, measured, *of_absent]


def decided_on(
    embedded: Embedded, gallery: FaissGallery, rows: Rows, wrong: float, seed: int
) -> list[DrawnQuery]:
    """Decide on drawings; a share of the words is wrong."""
    generator = np.random.default_rng([seed, 10])
    of_rows = embedded.clean.at(rows)
    parts = [
        HalfRows.of(part).to_bytes() for part in (of_rows.mean, of_rows.variance, of_rows.features)
    ]
    names = sorted(gallery.labels)
    found = []
    for number, (row, *of_row) in enumerate(zip(rows.tolist(), *parts, strict=True)):
        truth = str(embedded.labels[row])
        label: str | None = truth if truth in set(names) else None
        if generator.random() < wrong:
            label = None if label is not None and generator.random() < 0.5 else names[number % 400]
        kind: DecisionKind = "none_of_these" if label is None else "that_item"
        item = None if label is None else "one of that label"
        name = f"{row:064x}"
        said = Decided("g", "b", name, kind, item, label, None, None, (), 0.0)
        found.append(DrawnQuery(AnsweredQuery(name, *of_row), said))
    return found


def said(calibration: Calibration, matched: Answers, absent: Answers) -> dict[str, float]:
    """Coverage and error of `match` at each promised error, where `ABSENT` is absent."""
    found = {}
    for error in ERRORS:
        promised = replace(calibration, max_error=error)
        called = [
            answers.is_match(promised, ABSENT, promised.alpha) for answers in (matched, absent)
        ]
        right = float((called[0] & matched.correct).mean()) * (1 - ABSENT)
        coverage = float(called[0].mean()) * (1 - ABSENT) + float(called[1].mean()) * ABSENT
        found[f"coverage_at_{error:g}"] = coverage
        found[f"error_at_{error:g}"] = 1 - right / coverage if coverage else 0.0
    return found


def seen_by(embedded: Embedded, camera: float) -> Embedded:
    """The drawings of the build, and after them those of the stream."""
    clean, spoilt = embedded.clean, embedded.spoilt
    mean, features = (
        (1 - camera) * one + camera * other
        for one, other in ((clean.mean, spoilt.mean), (clean.features, spoilt.features))
    )
    both = Embeddings.concatenate([clean, Embeddings(mean, clean.variance, features)])
    labels = np.tile(embedded.labels, 2)
    anything = np.ones(len(labels), dtype=bool)
    return Embedded(both, both, labels, anything, anything)


def run(seed: int, camera: str) -> Iterator[dict[str, Any]]:
    """A record for before, and for each number of reviewed queries."""
    drawings = evaluation_characters(every=1)
    gallery_rows, held_out, *stream = divided(drawings, seed)
    embedded = seen_by(drawings, CAMERAS[camera])
    decided, measured, absent, measured_absent = (rows + len(drawings.labels) for rows in stream)
    encoder = TableEncoder(embedded.clean, embedded.spoilt)
    with TemporaryDirectory() as scratch, one_blas_thread():
        place = Path(scratch)
        indexed = images_of(embedded, "item", gallery_rows)
        write_gallery(place, encoder, indexed, seed)
        gallery = FaissGallery(place)
        asked = images_of(embedded, "query", held_out)
        queries = QuerySet(asked, asked.at([]), None)
        config = CalibrationConfig(expected_absent=ABSENT)
        known = encoder, gallery, indexed, queries, seed
        inputs = GalleryQueries(*known, are_views=False, unseen=True)
        before = calibrate_gallery(inputs, config)
        keep(place, inputs)
        tests = images_of(embedded, "t", measured), images_of(embedded, "a", measured_absent)
        fits = {"before": before}
        for n, wrong in REVIEWED:
            n_absent = round(n * ABSENT)
            rows = np.r_[decided[: n - n_absent], absent[:n_absent]]
            drawn = decided_on(embedded, gallery, rows, wrong, seed)
            name = f"{n:,} reviewed" + (f", {wrong:.0%} wrongly" if wrong else "")
            fits[name] = fit_again(place, gallery, before, config, drawn).calibration
        for name, calibration in fits.items():
            answers = [answer_all(encoder, gallery, calibration, images) for images in tests]
            of_fit = said(calibration, answers[0], answers[1])
            yield {"seed": seed, "fit": f"{camera}, {name}", **of_fit}


def record(records: Sequence[Mapping[str, Any]]) -> None:
    """Write the table: a row for each fit, the divisions side by side."""
    rows = []
    for fit in dict.fromkeys(one["fit"] for one in records):
        of_fit = [one for one in records if one["fit"] == fit]
        keys = [f"{what}_at_{error:g}" for error in ERRORS for what in ("coverage", "error")]
        rows.append([fit, *(", ".join(f"{one[key]:.3f}" for one in of_fit) for key in keys)])
    record_table(
        "decided",
        ["", *(title for e in ERRORS for title in (f"`match` at max_error {e:g}", "… wrong"))],
        rows,
        globals(),
        command="python -m tests.benchmarks.bench_decided",
        about="Omniglot, 461 labels; calibrated with 150 held-out drawings and 850 items, and then "
        f"with reviewed queries. {N_SEEDS} divisions.",
    )


def main() -> None:
    """Print a record a line, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=N_SEEDS)
    records = []
    for seed in range(parser.parse_args().seeds):
        for camera in CAMERAS:
            for one in run(seed, camera):
                print(json.dumps(one), flush=True)
                records.append(one)
    record(records)


if __name__ == "__main__":
    main()
