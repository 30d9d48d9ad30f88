"""The statistics that a gallery's engine updates while it answers.

The statistics are the drift of queries, the error rate of matches, and the share of absent queries.
The error rate and the caller's own drift change the guarantees; the share of absent queries is only
reported.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.bundles.operator import OperatorSettings
from model_store.curation import COPY
from model_store.drift_states import DriftStates, SavedDrift
from model_store.encoder.contract import QueryKind
from model_store.feedback import FeedbackLog
from model_store.share_states import SavedShare, ShareStates
from service.serving.absent_share import AbsentShareWatch
from service.serving.audit import Audit
from service.serving.drift import DriftWatch

logger = logging.getLogger(__name__)


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

    def searched(self, query_id: str, answer: Answer, caller: str) -> None:
        """Count a query of a caller; a query with the same image is not counted again.

        The drift test does not count a query that is nearer to an item than any calibration query
        was. No calibration query finds its own copy, so a visitor who searches with photographs of
        the gallery itself, possibly compressed again, would look like drift.
        """
        is_nearer = any(one.similarity > self._largest_similarity for one in answer.matches)
        score = None if is_nearer else answer.predictive.outlier_score
        is_new = self.drift.observe(query_id, score, caller)
        if is_new and self.absent is not None:
            self.absent.observe(answer.decision)

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
        states, assumed = self._shares, self.absent.assumed
        await asyncio.to_thread(
            self._try_to, lambda: heard.append(states.add(self.key, assumed, served))
        )
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
        except (sqlite3.Error, OSError) as error:
            fields = {"bundle": self.key, "reason": str(error)}
            logger.error("drift and reviews not kept", extra={"fields": fields})  # noqa: TRY400
