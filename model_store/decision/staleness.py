"""The check that a calibration still holds for the gallery that is searched."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.decision import Calibration
from model_store.decision.calibration import UNKNOWN_CLASS
from model_store.gallery import Gallery
from model_store.messages import message
from model_store.search import N_CANDIDATES


def search_settings(gallery: Gallery) -> dict[str, Any]:
    """Return the settings of the search that a calibration depends on, beside the encoder."""
    return {
        "index": gallery.index_type,
        "n_items": gallery.n_items,
        "n_candidates": N_CANDIDATES,
        "n_changed": gallery.n_changed,
    }


def n_gone_labels(calibration: Calibration, gallery: Gallery) -> int:
    """Return the number of calibrated labels that no longer have an item.

    Reads the label of every item, where items have changed since.
    """
    before = int({"n_changed": 0, **calibration.search}["n_changed"])
    if gallery.n_changed == before or not gallery.labels:
        return 0
    codes = gallery.label_codes(gallery.rows())
    counts = np.bincount(codes[codes >= 0], minlength=len(calibration.label_classes))
    known = calibration.label_classes != UNKNOWN_CLASS
    return int((known & (counts[: len(known)] == 0)).sum())


TOLERATED_CHANGES = 0.1
"""Share of the calibrated items that may have changed. Which items there are moves probabilities by
and by, no single one of many does; index and candidates must be what they were."""


def staleness(calibration: Calibration, gallery: Gallery) -> str | None:
    """Why the calibration does not hold for the gallery; None where it does."""
    if calibration.outdated is not None:
        return calibration.outdated
    settings, calibrated = search_settings(gallery), {"n_changed": 0, **calibration.search}
    n_calibrated = int(calibrated["n_items"])
    n_changed = gallery.n_changed - int(calibrated["n_changed"])
    built = settings | {name: calibrated[name] for name in ("n_items", "n_changed")}
    if calibrated != built or abs(gallery.n_items - n_calibrated) > n_changed:
        return message("search_changed", calibrated=calibrated, searched=settings)
    if n_changed > TOLERATED_CHANGES * n_calibrated:
        return message(
            "items_changed",
            n_changed=n_changed,
            n_calibrated=n_calibrated,
            tolerated=round(100 * TOLERATED_CHANGES),
        )
    return None
