"""Whether the queries of a gallery are still such as it was calibrated with."""

from __future__ import annotations

from collections import OrderedDict

from model_store.decision import Calibration, DriftTest
from model_store.decision.drift import PERIOD

DRIFTED = (
    "Recent queries are not such as the gallery was calibrated with, so that its probabilities may "
    "be wrong. Look at what is being sent, then run `vouch-build calibrate` with queries like it."
)


class DriftWatch:
    """Lets the drift test see each picture once, cached or not: copies are not exchangeable."""

    def __init__(self, calibration: Calibration | None) -> None:
        scores = [] if calibration is None else calibration.outlier_scores.tolist()
        self._calibrated = calibration is not None
        self._test = DriftTest(scores)
        self._seen: OrderedDict[str, None] = OrderedDict()

    @property
    def reason(self) -> str | None:
        """Why the calibration does not hold any more; None while it does."""
        return DRIFTED if self._test.drifted else None

    @property
    def log_capital(self) -> float:
        """Evidence that queries are no longer like the calibration's, in nats."""
        return self._test.log_capital

    def observe(self, query_id: str, outlier_score: float) -> None:
        """Take notice of a query."""
        if not self._calibrated or query_id in self._seen:
            return
        self._seen[query_id] = None
        if len(self._seen) > PERIOD:
            self._seen.popitem(last=False)
        self._test.observe(outlier_score)
