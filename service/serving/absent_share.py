"""The share of queries without a match: the share in use, and its estimate from served queries."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from model_store.bundles.operator import OperatorSettings
from model_store.decision import Calibration, Decision, ServedShare, ShareEstimate
from model_store.share_states import SavedShare
from service.schemas import AbsentState, ShareOrigin

logger = logging.getLogger(__name__)

ESTIMATED_EVERY = 50
"""Number of served queries between two estimates of the share."""

OTHER_SHARE = (
    "The estimated share of absent queries is {lower:.2f} to {upper:.2f} (95 % interval). "
    "Out-of-distribution queries are not counted. Probabilities and guarantees assume {used:g}. "
    "Send `expected_absent` with each request, or adopt another share "
    "(`POST …/calibration/absent-share`)."
)


class AbsentShareWatch:
    """Estimates the share of absent queries among served queries; no answer uses the estimate.

    Parameters
    ----------
    gallery : name of the gallery, for the log.

    Attributes
    ----------
    operator : settings that the gallery's operator adopted.
    """

    def __init__(self, calibration: Calibration, gallery: str = "") -> None:
        self._calibration = calibration
        self._gallery = gallery
        self._served = ServedShare(calibration.assumed_absent)
        self._n_served = 0
        # `ServedShare` forgets older values, so there is no need to save them.
        self._unsaved: deque[float] = deque(maxlen=ServedShare.memory)
        self._estimate: ShareEstimate | None = None
        self._warned_of: float | None = None
        self.operator = OperatorSettings()

    @property
    def assumed(self) -> float:
        """The share of absent queries that was assumed when the probabilities were fitted."""
        return self._calibration.assumed_absent

    @property
    def used(self) -> float:
        """The share that is used if neither the request nor its key sets a share."""
        adopted = self.operator.absent_share
        return self._calibration.default_share if adopted is None else adopted

    @property
    def state(self) -> AbsentState:
        """The current share of absent queries and its sources."""
        calibration, estimate, used = self._calibration, self._estimate, self.used
        return AbsentState(
            assumed=calibration.assumed_absent,
            expected=calibration.expected_absent,
            adopted=self.operator.absent_share,
            adopted_at=self.operator.adopted_at,
            estimated=None if estimate is None else estimate.value,
            interval=None if estimate is None else (estimate.lower, estimate.upper),
            n_served=self._n_served,
            used=used,
            is_hint=calibration.estimate_is_hint,
            basis=calibration.evidence.absence,
            warning=self._warning(used),
        )

    def choose(self, of_request: float | None, of_key: float | None) -> tuple[float, ShareOrigin]:
        """Return the share to use, and its origin. The estimate from served queries is not used."""
        if of_request is not None:
            return of_request, "request"
        if of_key is not None:
            return of_key, "key"
        return self.used, "bundle" if self.operator.absent_share is None else "adopted"

    def observe(self, decision: Decision) -> None:
        """Count a served query, unless it is out of distribution."""
        if decision.assumed_no_match is None or decision.verdict == "out_of_distribution":
            return
        self._unsaved.append(decision.assumed_no_match)
        self._count(decision.assumed_no_match)
        if self._n_served % ESTIMATED_EVERY == 0:
            self._estimate_anew()

    def unsaved(self) -> list[float]:
        """Return P(no match) of the queries served since the last call, oldest first."""
        unsaved = list(self._unsaved)
        self._unsaved.clear()
        return unsaved

    def put_back(self, unsaved: Sequence[float]) -> None:
        """Put back values that could not be stored; the next call of `unsaved` returns them."""
        newer = list(self._unsaved)
        self._unsaved.clear()
        self._unsaved.extend([*unsaved, *newer])

    def restore(self, saved: SavedShare) -> None:
        """Continue from the saved queries of all processes; add this process's unsaved queries."""
        rounds = self._n_served // ESTIMATED_EVERY
        self._served, self._n_served = saved.served, saved.n_served
        for no_match in self._unsaved:
            self._count(no_match)
        if self._n_served // ESTIMATED_EVERY != rounds:
            self._estimate_anew()

    def _estimate_anew(self) -> None:
        """Update the estimate; if the share in use is clearly too small, log a warning once."""
        self._estimate, used = self._served.estimate(), self.used
        warning = self._warning(used)
        is_more = self._estimate is not None and self._estimate.lower > used
        if warning is not None and is_more and self._warned_of != used:
            self._warned_of = used
            fields = {"gallery": self._gallery, "reason": warning}
            logger.warning("another share of absent queries", extra={"fields": fields})

    def _warning(self, used: float) -> str | None:
        """Return advice if the interval of the estimate excludes the share in use."""
        estimate = self._estimate
        if estimate is None or estimate.lower <= used <= estimate.upper:
            return None
        return OTHER_SHARE.format(lower=estimate.lower, upper=estimate.upper, used=used)

    def _count(self, no_match: float) -> None:
        self._served.observe(no_match)
        self._n_served += 1
