"""The statistics that a gallery's engine updates while it answers.

The statistics are the drift of queries, the error rate of matches, and the share of absent queries.
The error rate and the caller's own drift change the guarantees; the share of absent queries is only
reported.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import OperatorSettings
from model_store.curation import COPY
from model_store.decision import (
    Calibration,
    Decision,
    DriftTest,
    ServedShare,
    ShareEstimate,
    ShareReference,
    reference_of,
)
from model_store.decision.drift import NOT_TESTED, PERIOD
from model_store.encoder.contract import QueryKind
from model_store.errors import WriteError
from model_store.feedback import FeedbackLog
from model_store.messages import message
from model_store.watch_states import ALL_CALLERS, DriftStates, SavedDrift, SavedShare, ShareStates
from service.schemas import AbsentState, ShareOrigin

from .reviewing import Audit

logger = logging.getLogger(__name__)

ESTIMATED_EVERY = 50
"""Number of served queries between two estimates of the share."""

OTHER_SHARE = (
    "The estimated share of absent queries is {lower:.3g} to {upper:.3g} (95 % interval). "
    "Probabilities and guarantees assume {used:g}. "
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
        self._served = ServedShare()
        scores = calibration.outlier_scores, calibration.absent_outlier_scores
        self._largest_score = max(math.inf if one is None else float(one[-1]) for one in scores)
        self._n_served = 0
        # `ServedShare` forgets older values, so there is no need to save them.
        self._unsaved: deque[float] = deque(maxlen=ServedShare.memory)
        self._estimate: ShareEstimate | None = None
        self._warned_of: float | None = None
        self.operator = OperatorSettings()

    @cached_property
    def _reference(self) -> ShareReference:
        return ShareReference(self._calibration.evidence, self._calibration.assumed_absent)

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

    def observe(self, decision: Decision, outlier_score: float) -> None:
        """Count a served query, unless it is more unusual than all calibration queries.

        Such a query is like neither the matched nor the absent calibration queries.
        """
        if decision.assumed_no_match is None or outlier_score > self._largest_score:
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
        self._estimate, used = self._reference.estimate(self._served), self.used
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


class Watch:
    """The statistics of one bundle: drift, errors, and absent queries.

    They are stored in the feedback file, if there is such a file.

    Images and texts have separate statistics.

    Answering a query writes nothing. `keep` writes the statistics every few seconds, and when the
    service ends. A crash loses the statistics since the last call of `keep`.

    Parameters
    ----------
    log : store of feedback. Without a store, each process keeps its statistics in memory only, and
        draws no answers for review.
    audit_share : share of answers to draw for review.
    kind : kind of the queries.

    Attributes
    ----------
    key : identifies the bundle and the kind in the feedback file.
    """

    def __init__(
        self,
        bundle: Bundle,
        log: FeedbackLog | None = None,
        audit_share: float = 0.0,
        kind: QueryKind = "image",
    ) -> None:
        calibration = bundle.retriever.for_kind(kind).calibration
        self.key = bundle.manifest.id if kind == "image" else f"{bundle.manifest.id}:{kind}"
        self._states = None if log is None else DriftStates(log.path)
        self._shares = None if log is None else ShareStates(log.path)
        self._keeping = asyncio.Lock()
        self.drift = DriftWatch(calibration, bundle.name)
        self.absent = None if calibration is None else AbsentShareWatch(calibration, bundle.name)
        self._acknowledged_at = 0.0
        known = None if calibration is None else calibration.largest_similarity
        self._largest_similarity = COPY if known is None else min(known, COPY)
        self.audit = Audit(self.key, calibration, log, audit_share)

    def apply(self, operator: OperatorSettings) -> None:
        """Apply the decisions of the gallery's operator."""
        if self.absent is not None:
            self.absent.operator = operator
        if operator.acknowledged_at > self._acknowledged_at:
            self._acknowledged_at = operator.acknowledged_at
            self.drift.acknowledge()

    def searched(self, query_id: str, answer: Answer, caller: str) -> bool:
        """Count a query of a caller; return whether the query changed the caller's drift.

        A query with the same image is not counted again.

        The drift test does not count a query that is nearer to an item than any calibration query
        was. No calibration query finds its own copy, so a visitor who searches with photographs of
        the gallery itself, possibly compressed again, would look like drift.
        """
        is_nearer = any(one.similarity > self._largest_similarity for one in answer.matches)
        score = None if is_nearer else answer.predictive.outlier_score
        before = self.drift.reason(caller)
        is_new = self.drift.observe(query_id, score, caller)
        if is_new and self.absent is not None:
            self.absent.observe(answer.decision, answer.predictive.outlier_score)
        return self.drift.reason(caller) != before

    def answered(self, query_id: str, answer: Answer) -> bool:
        """Count an answer; return whether it is a match drawn for review."""
        if answer.decision.verdict != "match":
            return False
        draw = self.audit.draw(query_id, answer)
        self.audit.count(query_id, answer, draw)
        return draw is not None

    async def restore(self) -> None:
        """Load the statistics stored before a restart."""
        await asyncio.to_thread(self._try_to, self._restore)
        await self._share()

    async def hear(self) -> None:
        """Reload reviewer decisions."""
        async with self._keeping:
            await asyncio.to_thread(self._try_to, self.audit.keep)

    async def keep(self) -> None:
        """Write new observations, and reload reviewer decisions."""
        async with self._keeping:
            seen = self.drift.unsaved()
            await asyncio.to_thread(self._try_to, lambda: self._keep(seen))
            await self._share()

    async def _share(self) -> None:
        """Add new queries to the stored estimate of absent queries, and load this estimate."""
        if self._shares is None or self.absent is None:
            return
        served, heard = self.absent.unsaved(), list[SavedShare]()
        states = self._shares
        await asyncio.to_thread(self._try_to, lambda: heard.append(states.add(self.key, served)))
        if heard:
            self.absent.restore(heard[0])
        else:
            self.absent.put_back(served)

    def _restore(self) -> None:
        if self._states is not None:
            self.drift.restore(self._states.load(self.key, since=self._acknowledged_at))
        self.audit.keep()

    def _keep(self, seen: Sequence[SavedDrift]) -> None:
        if self._states is not None:
            self._states.save(self.key, seen)
        self.audit.keep()

    def _try_to(self, work: Callable[[], None]) -> None:
        """Run ``work``; log a storage error, because queries can be answered without storage."""
        try:
            work()
        except (WriteError, sqlite3.Error, OSError) as error:
            fields = {"bundle": self.key, "reason": str(error)}
            logger.error("drift and reviews not kept", extra={"fields": fields})  # noqa: TRY400
