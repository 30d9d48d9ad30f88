"""The share of served queries without a match: its estimate, and the share in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from model_store.decision import Absence, Calibration, Decision, ServedShare, ShareEstimate
from model_store.share_states import SavedShare
from service.schemas import ShareOrigin

ESTIMATED_EVERY = 50
"""Served queries after which the share is estimated anew: in between, equal queries get equal
answers."""

DIGITS = 2
"""Decimals of an estimate that is used: its interval is wider."""


@dataclass(frozen=True, slots=True)
class AbsentState:
    """The share of absent queries and its sources; see `service.schemas.AbsentState`."""

    assumed: float
    expected: float | None
    estimated: float | None
    interval: tuple[float, float] | None
    n_served: int
    used: float
    is_hint: bool
    basis: Absence


class AbsentShareWatch:
    """Estimates the share of absent queries among those that are served.

    The estimate is used where the gallery's owner names no share, unless the absent calibration
    queries are views of items, which say too little of absent queries.
    """

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._served = ServedShare(calibration.assumed_absent)
        self._n_served = 0
        # What the histogram would have forgotten need not be kept either.
        self._unsaved: deque[float] = deque(maxlen=ServedShare.memory)
        self._estimate: ShareEstimate | None = None

    @property
    def assumed(self) -> float:
        """The share that the probabilities were fitted with."""
        return self._calibration.assumed_absent

    @property
    def state(self) -> AbsentState:
        """The current share of absent queries and its sources."""
        calibration, estimate = self._calibration, self._estimate
        is_hint = not calibration.follows_estimate
        used = calibration.default_share
        if estimate is not None and calibration.expected_absent is None and not is_hint:
            used = round(estimate.value, DIGITS)
        return AbsentState(
            calibration.assumed_absent,
            calibration.expected_absent,
            None if estimate is None else estimate.value,
            None if estimate is None else (estimate.lower, estimate.upper),
            self._n_served,
            used,
            is_hint,
            calibration.evidence.absence,
        )

    def choose(self, of_request: float | None, of_key: float | None) -> tuple[float, ShareOrigin]:
        """Return the share to use, and who named it."""
        if of_request is not None:
            return of_request, "request"
        if of_key is not None:
            return of_key, "key"
        state = self.state
        if state.estimated is None or state.expected is not None or state.is_hint:
            return state.used, "bundle"
        return state.used, "estimated"

    def observe(self, decision: Decision) -> None:
        """Count a served query, unless it is out of distribution."""
        if decision.assumed_no_match is None or decision.verdict == "out_of_distribution":
            return
        self._unsaved.append(decision.assumed_no_match)
        self._count(decision.assumed_no_match)
        if self._n_served % ESTIMATED_EVERY == 0:
            self._estimate = self._served.estimate()

    def unsaved(self) -> list[float]:
        """Return P(no match) of what was served since it was asked for last, oldest first."""
        unsaved = list(self._unsaved)
        self._unsaved.clear()
        return unsaved

    def put_back(self, unsaved: Sequence[float]) -> None:
        """Take again what could not be saved."""
        newer = list(self._unsaved)
        self._unsaved.clear()
        self._unsaved.extend([*unsaved, *newer])

    def restore(self, saved: SavedShare) -> None:
        """Go on from what was served by all, with what was served here since."""
        rounds = self._n_served // ESTIMATED_EVERY
        self._served, self._n_served = saved.served, saved.n_served
        for no_match in self._unsaved:
            self._count(no_match)
        if self._n_served // ESTIMATED_EVERY != rounds:
            self._estimate = self._served.estimate()

    def _count(self, no_match: float) -> None:
        self._served.observe(no_match)
        self._n_served += 1
