"""Keeps queries for review, draws answers, and estimates the error rate of `match` from reviews."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from model_store.answers import Answer
from model_store.decision import (
    BlockSums,
    Calibration,
    ErrorTest,
    MatchDraw,
    MatchReview,
    ReviewDraws,
)
from model_store.encoder.contract import Embeddings
from model_store.errors import VouchError, WriteError
from model_store.feedback import (
    AnsweredQueries,
    AnsweredQuery,
    Case,
    CaseItem,
    CaseReason,
    CaseState,
    Decided,
    FeedbackLog,
    NewCase,
    Picture,
    ReviewQueue,
)
from model_store.messages import Message, Verdict, message
from model_store.table import HalfRows
from service.decoding.decoder import Prepared
from service.settings import ImageKept

from .queries import Answered, SearchResult

MAX_SEEN = 100_000
"""Maximum number of query ids stored for queries with a match. A query is not counted again while
its id is stored."""


def is_drawn(purpose: str, query_id: str, share: float) -> bool:
    """Return whether the hash of a query's id draws the query; all replicas draw the same ones."""
    drawn = hashlib.blake2b(f"{purpose}:{query_id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") < share * 2**64


@dataclass(frozen=True, slots=True)
class ReviewDraw:
    """An answer that was drawn for review.

    Attributes
    ----------
    probability : probability with which the answer was drawn.
    evenly : whether the answer would also have been drawn with the smallest probability of all
        answers.
    """

    probability: float
    evenly: bool


class Audit:
    """Draws answers for review with known probabilities, and tests the reviews of matches.

    A hash of query and bundle decides whether an answer is drawn, so that every replica draws the
    same answers. The test of matches survives a restart, because the matches drawn for review are
    stored in the feedback file. Replicas may share this file.

    Parameters
    ----------
    bundle_id : id of the bundle that answers.
    calibration : calibration of the bundle; without it, nothing is drawn.
    log : store of feedback; without it, nothing is drawn.
    share : share of answers to draw.
    """

    def __init__(
        self, bundle_id: str, calibration: Calibration | None, log: FeedbackLog | None, share: float
    ) -> None:
        self._bundle_id = bundle_id
        max_error = None if calibration is None else calibration.max_error
        self._log = None if max_error is None else log
        self._calibration = calibration
        # filled and emptied by different threads
        self._asked: deque[tuple[str, str, MatchDraw]] = deque()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._before = BlockSums()
        self.reviews: tuple[MatchReview, ...] = ()
        self.max_error = 0.0 if max_error is None else max_error
        self.share = share
        self.n_asked = 0
        self.test = ErrorTest(self.max_error)

    @property
    def watches(self) -> bool:
        """True if matches are drawn for review and their reviews are counted."""
        return self._log is not None

    @property
    def reason(self) -> Message | None:
        """Why matches are not reliable; None if the error test has raised no alarm."""
        if not self.test.alarmed:
            return None
        return message(
            "too_many_errors",
            n=self.test.n,
            n_wrong=self.test.n_wrong,
            max_error=self.max_error,
        )

    @cached_property
    def _draws(self) -> ReviewDraws:
        assert self._calibration is not None  # noqa: S101 - else there is no log
        return ReviewDraws.of(self._calibration, self.share)

    def draw(self, query_id: str, answer: Answer) -> ReviewDraw | None:
        """Return how an answer was drawn for review; None if the answer is not drawn."""
        if self._log is None:
            return None
        is_match = answer.decision.verdict == "match"
        probability = self._draws.probability(_first(answer), is_match=is_match)
        if not is_drawn(self._bundle_id, query_id, probability):
            return None
        return ReviewDraw(probability, is_drawn(self._bundle_id, query_id, self._draws.least))

    def count(self, query_id: str, answer: Answer, draw: ReviewDraw | None) -> None:
        """Count a match; `keep` writes the match if it was drawn for review."""
        if self._log is None or not self.share or query_id in self._seen:
            return
        self._seen[query_id] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        first = _first(answer)
        wrong = 1.0 if first is None else 1 - first
        if draw is None:
            probability = self._draws.probability(first, is_match=True)
            self._before.add(self._draws.predicted_error(wrong, probability))
            return
        predicted = self._draws.predicted_error(wrong, draw.probability)
        drawn = self._before.close(predicted, draw.probability, self._draws.least)
        self._asked.append((query_id, answer.matches[0].id, drawn))

    def keep(self) -> None:
        """Write the matches drawn for review, and read the decisions on drawn matches.

        The decisions may come from other processes.
        """
        if self._log is None:
            return
        drawn = [self._asked.popleft() for _ in range(len(self._asked))]
        if drawn:
            try:
                self._log.ask(self._bundle_id, drawn)
            except BaseException:
                self._asked.extend(drawn)
                raise
        reviews = self._log.reviews(self._bundle_id)
        self.n_asked = reviews.n_asked
        if reviews.matches != self.reviews:
            test = ErrorTest(self.max_error)
            for review in reviews.matches:
                test.observe(review)
            self.test, self.reviews = test, reviews.matches


def _first(answer: Answer) -> float | None:
    """Return the match probability of the first item; None if the answer has no items."""
    return answer.matches[0].match_probability if answer.matches else None


logger = logging.getLogger(__name__)

REASON_OF: Final[dict[Verdict, CaseReason]] = {
    "ambiguous": "ambiguous",
    "no_match": "absent",
    "out_of_distribution": "alien",
}
"""Maps the verdict on a query to the reason for which the query is kept."""

N_FOUND = 10
"""Number of an answer's items that a reviewer sees."""

MOST_WAITING_BYTES = 64 * 2**20
"""Maximum size of the uploads that wait to be written; further uploads are counted as ``lost``."""

MOST_WAITING = 10_000
"""Maximum number of queries that wait to be written; the oldest are dropped."""


WRITTEN_AFTER_S = 0.5
"""Seconds after an answer until its query is written. One write, which takes about 20 ms, stores
all queries that wait."""


class DelayedWrite:
    """Calls ``write`` `WRITTEN_AFTER_S` after a request; a call serves all earlier requests."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        self._task: asyncio.Task[None] | None = None
        self._is_requested = False
        self._closing = asyncio.Event()

    def request(self) -> None:
        """Request a call; this takes microseconds."""
        self._is_requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), context=Context())

    async def close(self) -> None:
        """Make the requested call now, and wait until it ends."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._is_requested:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), WRITTEN_AFTER_S)
            self._is_requested = False  # a request during the call needs another call
            await self._write()


@dataclass(frozen=True, slots=True)
class ReviewTerms:
    """The operator's choice of queries to keep.

    Attributes
    ----------
    reasons : reasons for which a query is kept.
    image : version of the query image that is stored.
    reviewers : number of reviewers who must agree before a decision counts.
    """

    reasons: Collection[CaseReason]
    image: ImageKept
    reviewers: int


NOTHING_REVIEWED = ReviewTerms((), "none", 1)


@dataclass(frozen=True, slots=True)
class ReviewedGallery:
    """The parts of a gallery that its review queue needs.

    Attributes
    ----------
    key, encoder : `Bundle.key` of the gallery, and the fingerprint of its encoder.
    decode : turns uploaded bytes into an image, with a thumbnail if requested.
    encode : turns an image into its embedding.
    find : see `RetainedQueries.find`.
    noted : called when a case waits to be written.
    observe : counts cases that were ``kept``, ``expired``, ``displaced`` or ``lost``.
    """

    key: str
    encoder: str
    decode: Callable[[bytes, bool], Awaitable[Prepared]]
    encode: Callable[[Prepared], Awaitable[Embeddings]]
    find: Callable[[str], Awaitable[tuple[Embeddings, int | None] | None]]
    noted: Callable[[], None]
    observe: Callable[[str, int], None]


class ReviewKeeper:
    """Keeps queries of one gallery for review.

    The queries are written soon after their answers, and before cases are leased to a reviewer.

    A crash loses the unwritten queries, but no decision.

    Parameters
    ----------
    queue : the cases of all galleries; None if no queries are kept.
    """

    def __init__(
        self, gallery: ReviewedGallery, queue: ReviewQueue | None, terms: ReviewTerms
    ) -> None:
        self._gallery, self.queue, self.terms = gallery, queue, terms
        self._waiting: OrderedDict[str, tuple[bytes, Case, int]] = OrderedDict()
        self._waiting_bytes = 0
        self._writing = asyncio.Lock()
        self.counts: dict[tuple[CaseReason, CaseState], int] = {}

    def note(
        self, data: bytes, found: SearchResult, bundle: str, version: int, draw: ReviewDraw | None
    ) -> None:
        """Keep a query for review, if its answer has a configured reason.

        Parameters
        ----------
        data : the upload.
        bundle : key under which decisions on the query are stored.
        version : version of the gallery that gave the answer.
        draw : random draw for review; None if the query was not drawn.
        """
        if self.queue is None:
            return
        reasons = self.terms.reasons
        draw = draw if "random" in reasons else None
        reason = REASON_OF.get(found.answer.decision.verdict)
        if reason not in reasons:
            reason = None if draw is None else "random"
        if reason is None or found.query_id in self._waiting:
            return
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            self._gallery.observe("lost", 1)
            return
        case = self._case(found, bundle, reason, draw)
        self._waiting[found.query_id] = data, case, version
        self._waiting_bytes += len(data)
        self._gallery.noted()

    async def keep(self) -> None:
        """Write waiting cases, and delete expired ones."""
        if self.queue is None:
            return
        async with self._writing:
            waiting = list(self._waiting.items())
            try:
                made = [await self._new(self.queue, *one) for _, one in waiting]
                new = [case for case in made if case is not None]
                done = await asyncio.to_thread(self.queue.add, new)
                self.counts = await asyncio.to_thread(self.queue.counts, self._gallery.key)
            except (WriteError, OSError) as error:
                fields = {"gallery": self._gallery.key, "reason": str(error)}
                logger.error("cases not kept", extra={"fields": fields})  # noqa: TRY400
                return
            for query_id, one in waiting:
                if self._waiting.get(query_id) == one:
                    self._drop(query_id)
            for outcome, n in done.items():
                self._gallery.observe(outcome, n)

    async def contradict(self, decided: Decided, answered: Answered) -> None:
        """Keep a query for a second reviewer if a decision rejects its match."""
        wrong = any(pair.rank == 1 and not pair.correct for pair in decided.pairs)
        if (
            self.queue is None
            or "contradicted" not in self.terms.reasons
            or answered.answer.decision.verdict != "match"
            or not wrong
        ):
            return
        await self.keep()
        found = await self._gallery.find(decided.query_id)
        if found is None:  # a case needs an embedding
            return
        case = self._case(answered, decided.bundle, "contradicted", None)
        new = NewCase(case, _embedded(case, found[0], answered.version), None)
        await asyncio.to_thread(self.queue.contradict, new)

    def forget(self, query_id: str) -> None:
        """Remove a query that waits to be written."""
        if query_id in self._waiting:
            self._drop(query_id)

    def _drop(self, query_id: str) -> None:
        data, _, _ = self._waiting.pop(query_id)
        self._waiting_bytes -= len(data)

    async def _new(
        self, queue: ReviewQueue, data: bytes, case: Case, version: int
    ) -> NewCase | None:
        """Return the case of an upload; None if the case is already stored."""
        known = await asyncio.to_thread(queue.find, case.gallery, case.query_id)
        image = self.terms.image
        if known is not None and (known.media_type is not None or image == "none"):
            return None
        try:
            found = await self._gallery.find(case.query_id)
            embeddings = None if found is None else found[0]
            picture = None
            if embeddings is None or image != "none":
                prepared = await self._gallery.decode(data, image == "thumbnail")
                embeddings = embeddings or await self._gallery.encode(prepared)
                if image == "original":
                    picture = Picture(data, f"image/{prepared.format.lower()}")
                elif prepared.thumbnail is not None:
                    picture = Picture(prepared.thumbnail.data, prepared.thumbnail.media_type)
        except WriteError:  # `keep` tries again later
            raise
        except VouchError as error:  # the answer was cached, but the decoder refuses the image
            fields = {"gallery": case.gallery, "reason": type(error).__name__}
            logger.warning("case not kept", extra={"fields": fields})
            self._gallery.observe("lost", 1)
            return None
        return NewCase(case, _embedded(case, embeddings, version), picture)

    def _case(
        self,
        found: SearchResult | Answered,
        bundle: str,
        reason: CaseReason,
        draw: ReviewDraw | None,
    ) -> Case:
        answer = found.answer
        log_odds = answer.decision.match_log_odds
        reviewers = self.terms.reviewers
        return Case(
            gallery=self._gallery.key,
            encoder=self._gallery.encoder,
            bundle=bundle,
            query_id=found.query_id,
            reason=reason,
            drawn=draw is not None,
            draw_probability=None if draw is None else draw.probability,
            drawn_evenly=draw is not None and draw.evenly,
            verdict=answer.decision.verdict,
            found=tuple(
                CaseItem(match.id, match.label, match.match_probability)
                for match in answer.matches[:N_FOUND]
            ),
            no_match_probability=answer.decision.no_match_probability,
            match_log_odds=None if log_odds is None or not len(log_odds) else float(log_odds[0]),
            match_fingerprint=found.match_fingerprint,
            reviewers=reviewers,
            wanted=max(2, reviewers) if reason == "contradicted" else reviewers,
            kept_at=time.time(),
        )


def _embedded(case: Case, embeddings: Embeddings, version: int) -> AnsweredQuery:
    return AnsweredQuery(
        case.query_id, *_rounded(embeddings), version=version, noted_at=case.kept_at
    )


def _rounded(embeddings: Embeddings) -> tuple[bytes, bytes, bytes]:
    """Return the mean, variance and features of an embedding in half precision."""
    mean, variance, features = (
        HalfRows.of(part).to_bytes()[0]
        for part in (embeddings.mean, embeddings.variance, embeddings.features)
    )
    return mean, variance, features


class RetainedQueries:
    """Stores the embeddings of one gallery's queries; writes them soon after the answers.

    A crash loses the unwritten queries, but no decisions.

    Parameters
    ----------
    gallery, encoder : name of the gallery, and fingerprint of its encoder.
    kept : the queries of all galleries; None if no queries are stored.
    noted : called when a query waits to be written.
    """

    def __init__(
        self,
        gallery: str,
        encoder: str,
        kept: AnsweredQueries | None,
        noted: Callable[[], None] = lambda: None,
    ) -> None:
        self._gallery, self._encoder, self._kept, self._noted = gallery, encoder, kept, noted
        self._waiting: OrderedDict[str, AnsweredQuery] = OrderedDict()
        self._writing = asyncio.Lock()

    @property
    def keeps_all(self) -> bool:
        """See `AnsweredQueries.keeps_all`; False if no queries are stored."""
        return self._kept is not None and self._kept.keeps_all

    def note(self, query_id: str, embeddings: Embeddings, version: int) -> None:
        """Queue the ``embeddings`` of one image query, and the gallery's version, for writing."""
        if self._kept is None:
            return
        self._waiting[query_id] = AnsweredQuery(query_id, *_rounded(embeddings), version=version)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)
        if self.keeps_all:
            self._noted()

    async def find(self, query_id: str) -> tuple[Embeddings, int | None] | None:
        """Return a query's rounded embeddings and `AnsweredQuery.version`; None if not stored."""
        if self._kept is None:
            return None
        found = self._waiting.get(query_id)
        if found is None:
            found = await asyncio.to_thread(self._kept.find, self._gallery, self._encoder, query_id)
        if found is None:
            return None
        return Embeddings(*(part.whole() for part in found.rows())), found.version

    async def keep(self) -> None:
        """Write waiting queries; delete expired ones."""
        if self._kept is None:
            return
        if not self.keeps_all:  # queries under review are written with their cases
            self._waiting.clear()
            return
        async with self._writing:
            queries = list(self._waiting.values())
            await asyncio.to_thread(self._kept.add, self._gallery, self._encoder, queries)
            for one in queries:
                if self._waiting.get(one.query_id) is one:
                    del self._waiting[one.query_id]

    async def forget(self, query_id: str) -> None:
        """Delete a query, on request."""
        self._waiting.pop(query_id, None)
        if self._kept is not None:
            await asyncio.to_thread(self._kept.forget, self._gallery, query_id)
