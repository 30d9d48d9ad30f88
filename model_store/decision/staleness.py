"""The check whether a calibration is still valid for the searched gallery."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.decision import Calibration
from model_store.decision.calibration import UNKNOWN_CLASS
from model_store.encoder.contract import QueryKind
from model_store.gallery import Gallery
from model_store.messages import message
from model_store.search import N_CANDIDATES


def search_settings(gallery: Gallery) -> dict[str, Any]:
    """Return the search settings that a calibration depends on, besides the encoder."""
    return {
        "index": gallery.index_type,
        "n_items": gallery.n_items,
        "n_candidates": N_CANDIDATES,
        "n_changed": gallery.n_changed,
    }


def n_gone_labels(calibration: Calibration, gallery: Gallery) -> int:
    """Return the number of calibrated labels that no longer have an item.

    If items have changed since the calibration, the function reads the label of every item.
    """
    before = int({"n_changed": 0, **calibration.search}["n_changed"])
    if gallery.n_changed == before or not gallery.labels:
        return 0
    codes = gallery.label_codes(gallery.rows())
    counts = np.bincount(codes[codes >= 0], minlength=len(calibration.label_classes))
    known = calibration.label_classes != UNKNOWN_CLASS
    return int((known & (counts[: len(known)] == 0)).sum())


TOLERATED_CHANGES = 0.1
"""Maximum share of the calibrated items that may change before the calibration is stale. A few
changed items hardly affect the probabilities. Any change of the index type or of the number of
candidates makes the calibration stale."""


def staleness(calibration: Calibration, gallery: Gallery, kind: QueryKind = "image") -> str | None:
    """Return the reason why the calibration is not valid for the gallery; None if it is valid.

    Parameters
    ----------
    kind : the kind of queries that the calibration is for.
    """
    if calibration.outdated is not None:
        return calibration.outdated
    settings, calibrated = search_settings(gallery), {"n_changed": 0, **calibration.search}
    n_calibrated = int(calibrated["n_items"])
    n_changed = gallery.n_changed - int(calibrated["n_changed"])
    built = settings | {name: calibrated[name] for name in ("n_items", "n_changed")}
    again = "calibrate_again" if kind == "image" else "calibrate_texts_again"
    advice = message(again if gallery.is_local else "build_again")
    if calibrated != built or abs(gallery.n_items - n_calibrated) > n_changed:
        return message("search_changed", calibrated=calibrated, searched=settings, advice=advice)
    if n_changed > TOLERATED_CHANGES * n_calibrated:
        return message(
            "items_changed",
            n_changed=n_changed,
            n_calibrated=n_calibrated,
            tolerated=round(100 * TOLERATED_CHANGES),
            advice=advice,
        )
    return None
