"""The drift tests of a gallery: one for each caller, and one of all queries together."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from model_store.decision import Calibration, DriftTest, reference_of
from model_store.decision.drift import NOT_TESTED, PERIOD
from model_store.drift_states import ALL_CALLERS, SavedDrift
from model_store.messages import message

logger = logging.getLogger(__name__)

DRIFTED = message("drifted")

MAX_STREAMS = 256
"""Maximum number of callers whose queries are tested; the longest idle caller is dropped."""

MAX_SEEN = 2_000
"""Maximum number of query ids stored for each caller. A query is not counted again while its id is
stored."""

_KEY_DIGITS = 16
"""Number of hexadecimal digits of a query id that are stored. With 64 bits, the probability that
any two of 10,000 queries have the same digits is below 1e-11."""


@dataclass(slots=True)
class _Stream:
    """The drift test of one caller, and the ids of the caller's queries, oldest first."""

    test: DriftTest
    seen: dict[int, None] = field(default_factory=dict)
    is_saved: bool = True


@dataclass(frozen=True, slots=True)
class DriftSummary:
    """The state of a gallery's drift tests.

    Attributes
    ----------
    reason : why drift is not tested; None if it is tested.
    n_served : number of queries of all callers in the current test.
    log_capital : evidence of drift in the queries of all callers, in nats.
    drifted : whether the queries of all callers raised an alarm.
    n_streams : number of callers that are tested.
    alarmed : callers whose queries raised an alarm.
    """

    reason: str | None
    n_served: int = 0
    log_capital: float = 0.0
    drifted: bool = False
    n_streams: int = 0
    alarmed: tuple[str, ...] = ()


class DriftWatch:
    """Tests the queries of each caller separately, so that no caller affects another's answers.

    A further test counts the queries of all callers. The result of this test is only reported; it
    changes no answer.

    Each test counts each image once, because repeated queries are not exchangeable.

    Parameters
    ----------
    gallery : name of the gallery, for the log.
    """

    def __init__(self, calibration: Calibration | None, gallery: str = "") -> None:
        self._gallery = gallery
        self._calibrated = calibration is not None
        self._reference = None if calibration is None else reference_of(calibration)
        lacks = calibration is not None and calibration.absent_outlier_scores is None
        self._reason = NOT_TESTED if lacks else None
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._seen: dict[int, None] = {}

    @property
    def report(self) -> DriftSummary:
        """The state of the tests."""
        everyone = self._streams.get(ALL_CALLERS)
        of_callers = {name: one for name, one in self._streams.items() if name != ALL_CALLERS}
        alarmed = tuple(sorted(name for name, one in of_callers.items() if one.test.drifted))
        if everyone is None:
            return DriftSummary(self._reason)
        test = everyone.test
        return DriftSummary(
            self._reason,
            test.n_served,
            test.log_capital,
            test.drifted,
            len(of_callers),
            alarmed,
        )

    def reason(self, caller: str) -> str | None:
        """Return why the guarantees do not hold for a caller; None if they hold."""
        stream = self._streams.get(caller)
        alarmed = caller != ALL_CALLERS and stream is not None and stream.test.drifted
        return DRIFTED if alarmed else None

    def observe(self, query_id: str, outlier_score: float | None, caller: str) -> bool:
        """Count a query; return whether its id is new. Without calibration, return False.

        Parameters
        ----------
        outlier_score : None for a query that no test counts.
        """
        if not self._calibrated:
            return False
        key = int(query_id[:_KEY_DIGITS], 16)
        is_new = _is_new(self._seen, key, PERIOD)
        if self._reference is not None and outlier_score is not None:
            if is_new:
                self._count(ALL_CALLERS, outlier_score)
            if caller != ALL_CALLERS and _is_new(self._stream(caller).seen, key, MAX_SEEN):
                self._count(caller, outlier_score)
        return is_new

    def acknowledge(self) -> tuple[str, ...]:
        """End all alarms, restart all tests, and return the callers whose alarms ended."""
        alarmed = self.report.alarmed
        for stream in self._streams.values():
            stream.test.acknowledge()
            stream.is_saved = False
        return alarmed

    def unsaved(self) -> list[SavedDrift]:
        """Return the states of the tests that have changed since the last call of this method."""
        changed = [(name, one) for name, one in self._streams.items() if not one.is_saved]
        for _, stream in changed:
            stream.is_saved = True
        return [SavedDrift(name, one.test.state(), self._ids(name, one)) for name, one in changed]

    def restore(self, saved: Iterable[SavedDrift]) -> None:
        """Continue from saved tests; the most recently used test is the last in ``saved``."""
        if self._reference is None:
            return
        for one in saved:
            seen = dict.fromkeys(one.seen.tolist())
            stream = self._stream(one.caller)
            stream.test.restore(one.test)
            if one.caller == ALL_CALLERS:
                self._seen = seen
            else:
                stream.seen = seen

    def _ids(self, caller: str, stream: _Stream) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.array([*(self._seen if caller == ALL_CALLERS else stream.seen)], dtype=np.uint64)

    def _stream(self, caller: str) -> _Stream:
        """Return the stream of a caller; if there are too many streams, drop the longest idle one.

        The stream of all queries is never dropped.
        """
        stream = self._streams.get(caller)
        if stream is None:
            assert self._reference is not None  # noqa: S101 - the caller has looked
            stream = self._streams[caller] = _Stream(DriftTest(self._reference))
        self._streams.move_to_end(caller)
        if ALL_CALLERS in self._streams:
            self._streams.move_to_end(ALL_CALLERS)
        if len(self._streams) > MAX_STREAMS + 1:
            self._streams.popitem(last=False)
        return stream

    def _count(self, caller: str, outlier_score: float) -> None:
        stream = self._stream(caller)
        before = stream.test.drifted
        stream.test.observe(outlier_score)
        stream.is_saved = False
        if stream.test.drifted != before:
            fields = {
                "gallery": self._gallery,
                "caller": caller or "all callers",
                "n_queries": stream.test.n_served,
            }
            said = "drift ended" if before else "drift"
            logger.warning(said, extra={"fields": fields})


def _is_new(seen: dict[int, None], key: int, most: int) -> bool:
    """Add an id; return whether it is new. If there are more than ``most``, remove the oldest."""
    if key in seen:
        return False
    seen[key] = None
    if len(seen) > most:
        del seen[next(iter(seen))]
    return True
