"""Evidence whose truth is known, for tests of what is promised from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from model_store.decision import Evidence
from model_store.records import GalleryOutcome


def evidence(n_present: int = 300, n_absent: int = 300, seed: int = 0, **changes: Any) -> Evidence:
    """Return calibrated probabilities of present queries, and low ones of absent queries."""
    generator = np.random.default_rng(seed)
    n = n_present + n_absent
    absent = np.arange(n) >= n_present
    first = np.where(absent, generator.beta(1, 5, n), generator.beta(20, 1, n))
    correct = ~absent & (generator.uniform(size=n) < first)
    fields: dict[str, Any] = {
        "first_probabilities": first,
        "no_match_probabilities": (1 - first) * np.where(absent, 0.8, 0.3),
        "correct": correct,
        "absent": absent,
        "first_classes": np.full(n, 2, dtype=np.int8),
        "likeliest_probabilities": first,
        "likeliest_correct": correct,
        "likeliest_classes": np.full(n, 2, dtype=np.int8),
        "true_classes": np.where(absent, -1, 2).astype(np.int8),
        "critical": np.where(correct, np.inf, np.where(absent, -1, 0.2)),
        "clusters": np.where(absent, n + np.arange(n) % 30, np.arange(n)),
        "sources": np.zeros(n, dtype=np.int16),
        "source_names": [""],
        "absence": "absent_labels",
        "rivals": 1.0,
    }
    return Evidence(**(fields | changes))


def of_critical(
    critical: Sequence[float] | np.ndarray, classes: int | np.ndarray = 2, **changes: Any
) -> Evidence:
    """Present queries of which nothing but what result sets rest on is of interest."""
    n = len(critical)
    return evidence(
        n,
        0,
        critical=np.asarray(critical, dtype=np.float64),
        true_classes=np.broadcast_to(np.int8(classes), n).copy()
        if isinstance(classes, int)
        else classes.astype(np.int8),
        **changes,
    )


def outcome(**known: Any) -> GalleryOutcome:
    """Return an outcome with these numbers and lines; all other numbers are None."""
    unknown: dict[str, Any] = dict.fromkeys(GalleryOutcome.model_fields)
    return GalleryOutcome(**unknown | {"lines": []} | known)
