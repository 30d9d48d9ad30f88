"""The population of queries that a certificate describes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision import SIZE_CLASSES, Absence, Calibration

ABSENCE: dict[Absence, str] = {
    "absent_labels": "Absent calibration queries are images of labels that are not in the gallery "
    "and were not used in any fit.",
    "hidden_labels": "Absent calibration queries are queries whose own label is hidden from the "
    "results and from the outlier detector. Hidden labels simulate truly absent labels.",
    "hidden_trained_labels": "Absent calibration queries are queries whose own label is hidden "
    "from the results and from the outlier detector. But the encoder was trained on this label, so "
    "such queries do not represent queries of truly absent labels well.",
    "near_misses_of_views": "Absent calibration queries are gallery items. An item and its copies "
    "are hidden from the results of the item. Such queries simulate photographs of absent "
    "objects, but real photographs may be harder to reject.",
}
"""Explanation of each kind of absent calibration query."""

QUERIES = {
    "held_out_images": "Queries are images that were held out of the gallery.",
    "left_out_items": "Queries are items of the gallery, each compared with the other items.",
    "views_of_items": "Queries are augmented views of gallery items, because there are no labels. "
    "Photographs by users may be harder to recognise.",
}
"""Explanation of each kind of calibration query with a match."""


def population(calibration: Calibration) -> dict[str, Any]:
    """Describe the calibration queries and count them by kind."""
    evidence, stream = calibration.evidence, calibration.promises().stream
    kind = calibration.report.get("queries")
    return {
        "queries": kind,
        "queries_in_words": QUERIES.get(str(kind), "The kind of the queries is not known."),
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
    """Return two counts: the queries in ``rows`` (n,), and the independent objects or labels."""
    return {"n": int(rows.sum()), "n_independent": n_independent}


def _by_size(classes: NDArray[np.int64], n_classes: int) -> dict[str, int]:
    counts = np.bincount(classes, minlength=n_classes).tolist()
    return dict(zip(SIZE_CLASSES, counts, strict=True))
