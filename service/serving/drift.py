"""The drift test of a gallery's queries against those that it was calibrated with."""

from __future__ import annotations

import numpy as np

from model_store.decision import Calibration, DriftTest
from model_store.decision.drift import PERIOD
from model_store.drift_states import SavedDrift

DRIFTED = (
    "Recent queries are not such as the gallery was calibrated with, so that its probabilities may "
    "be wrong. Look at what is being sent, then run `vouch-build calibrate` with queries like it."
)

_KEY_DIGITS = 16
"""Hexadecimal digits of a query's id that are kept: 64 bits tell 10,000 queries apart."""


class DriftWatch:
    """Lets the drift test see each picture once, cached or not: copies are not exchangeable."""

    def __init__(self, calibration: Calibration | None) -> None:
        self._calibrated = calibration is not None
        self._test = DriftTest([]) if calibration is None else DriftTest.of(calibration)
        self._seen: dict[int, None] = {}
        self._saved = True

    @property
    def reason(self) -> str | None:
        """Why the calibration does not hold any more; None while it does."""
        return DRIFTED if self._test.drifted else None

    @property
    def log_capital(self) -> float:
        """Evidence that queries are no longer like the calibration's, in nats."""
        return self._test.log_capital

    def observe(self, query_id: str, outlier_score: float) -> bool:
        """Take notice of a query; return whether it is a new picture in a calibrated gallery."""
        key = int(query_id[:_KEY_DIGITS], 16)
        if not self._calibrated or key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > PERIOD:
            del self._seen[next(iter(self._seen))]
        self._test.observe(outlier_score)
        self._saved = False
        return True

    def unsaved(self) -> SavedDrift | None:
        """Return what is to be kept; None where nothing was seen since it was asked for last."""
        if self._saved:
            return None
        self._saved = True
        return SavedDrift(self._test.state(), np.array([*self._seen], dtype=np.uint64))

    def restore(self, saved: SavedDrift) -> None:
        """Go on from what was kept."""
        self._test.restore(saved.test)
        self._seen = dict.fromkeys(saved.seen.tolist())
