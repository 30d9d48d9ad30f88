"""The population of queries that a certificate describes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision import SIZE_CLASSES, Absence, Calibration

ABSENCE: dict[Absence, str] = {
    "absent_labels": "Absent calibration queries are images of labels that neither the gallery nor "
    "anything fitted has seen.",
    "hidden_labels": "Absent calibration queries are queries whose own label is hidden from the "
    "list and from the outlier detector. They stand in for queries of truly absent labels.",
    "hidden_trained_labels": "Absent calibration queries are queries whose own label is hidden "
    "from the list and from the outlier detector, but not from the encoder, which was trained on "
    "it. They say little of queries of truly absent labels.",
    "near_misses_of_views": "Absent calibration queries are gallery items, each hidden from "
    "its own list with its copies. They stand in for photographs of absent things, which may be "
    "harder to tell.",
}
"""Explanations of each kind of absent query, for readers who rely on it."""

QUERIES = {
    "held_out_images": "Queries are images that were held out of the gallery.",
    "left_out_items": "Queries are items of the gallery, each searched for in the rest of it.",
    "views_of_items": "Queries are made-up views of gallery items, since no labels say which "
    "images belong together. Photographs that users take may be harder.",
}
"""Explanations of each kind of query."""


def population(calibration: Calibration) -> dict[str, Any]:
    """Return how many calibration queries there are of each kind, and what they are."""
    evidence, stream = calibration.evidence, calibration.promises().stream
    kind = calibration.report.get("queries")
    return {
        "queries": kind,
        "queries_in_words": QUERIES.get(str(kind), "The calibration does not describe them."),
        "absence": evidence.absence,
        "absence_in_words": ABSENCE[evidence.absence],
        "n_queries": len(evidence),
        "n_left_out_of_the_gallery": int(calibration.report.get("n_leave_one_out", 0)),
        "present": _kind(~evidence.absent, stream.n_objects),
        "absent": _kind(evidence.absent, stream.n_labels),
        "present_by_label_size": _by_size(
            evidence.true_classes[~evidence.absent].astype(np.int64), len(SIZE_CLASSES)
        ),
        "sources": [
            {"name": name, "n": int((evidence.sources == place).sum())}
            for place, name in enumerate(evidence.source_names)
            if name
        ],
        "labels": {
            "n": int(calibration.n_labels.sum()),
            "by_size": dict(zip(SIZE_CLASSES, calibration.n_labels.tolist(), strict=True)),
        },
        "absent_share": {
            "assumed": calibration.assumed_absent,
            "expected": calibration.expected_absent,
            "promised_for": calibration.default_share,
        },
        "n_feedback_pairs": calibration.feedback.n_pairs,
    }


def _kind(rows: NDArray[np.bool_], n_independent: int) -> dict[str, Any]:
    """Return how many queries in ``rows`` (n,) there are, and of how many objects or labels."""
    return {"n": int(rows.sum()), "n_independent": n_independent}


def _by_size(classes: NDArray[np.int64], n_classes: int) -> dict[str, int]:
    counts = np.bincount(classes, minlength=n_classes).tolist()
    return dict(zip(SIZE_CLASSES, counts, strict=True))
