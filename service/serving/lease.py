"""One request's fixed view of a gallery, and the operations on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.decision import Terms, assess
from model_store.encoder.contract import QueryKind
from model_store.errors import FeedbackNotKept, InternalError, ItemNotFound
from model_store.feedback import Decided, Pair, moment
from model_store.images.quality import degradation_hint, quality_hints
from model_store.predictive import Predictive
from model_store.queries import NeighbourList, VectorQuery, decide_list
from model_store.retriever import Retriever
from model_store.search import N_CANDIDATES
from service.schemas import AbsentState, ShareOrigin
from service.serving.engine import SearchEngine
from service.serving.queries import (
    Answered,
    Assessed,
    DecidedList,
    Embedded,
    Encoded,
    ReviewerDecision,
    SearchParameters,
    SearchResult,
    SimilarItems,
    changed_since,
    vector_id,
)
from service.serving.watch import Watch


@dataclass(frozen=True, slots=True)
class Lease:
    """One request's view of a gallery, which stays fixed until the answer.

    Attributes
    ----------
    engine : encodes and computes for all requests.
    bundle : the bundle, with the gallery at the start of the request or at an earlier version.
    caller : name of the caller in the drift test; empty if the caller has no drift test.
    watch : the statistics of the queries of this kind.
    """

    engine: SearchEngine
    bundle: Bundle
    caller: str = ""
    watch: Watch = field(init=False, repr=False, compare=False)
    _retriever: Retriever = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        retriever = self.bundle.retriever
        object.__setattr__(self, "_retriever", retriever)
        object.__setattr__(self, "watch", self.engine.watches[retriever.kind])

    def at(self, version: int) -> Lease:
        """Return this lease with the gallery at ``version``."""
        live = self.engine.bundle.live
        if live is None or version == self.bundle.version:
            return self
        live.refresh()  # another replica may have loaded newer changes
        retriever = self._retriever.with_gallery(live.snapshot(version))
        return replace(self, bundle=replace(self.bundle, retriever=retriever))

    def for_kind(self, kind: QueryKind) -> Lease:
        """Return a copy of this lease that decides on queries of one kind: images or texts."""
        retriever = self._retriever.for_kind(kind)
        if retriever is self._retriever:
            return self
        return replace(self, bundle=replace(self.bundle, retriever=retriever))

    @property
    def stale(self) -> str | None:
        """Why the calibration does not hold, so that no verdict is `match`; None if it holds."""
        return self._retriever.stale or self._watched_stale

    @property
    def drift(self) -> str | None:
        """Why the guarantees do not hold for the caller's queries; None if they hold."""
        return self.watch.drift.reason(self.caller) or self._retriever.not_guaranteed

    @property
    def _watched_stale(self) -> str | None:
        withholds = self.engine.on_drift == "withhold"
        withheld = self.watch.drift.reason(self.caller) if withholds else None
        return withheld or self.watch.audit.reason

    @property
    def absent_share(self) -> AbsentState | None:
        """The share of queries without a match, and its sources; None without calibration."""
        return None if self.watch.absent is None else self.watch.absent.state

    async def search(self, data: bytes, parameters: SearchParameters) -> SearchResult:
        """Answer an image query from the uploaded bytes.

        Raises
        ------
        ImageError : the bytes are not a usable image.
        """
        started = time.perf_counter()
        found = await self._searched(await self.engine.encoded(data), parameters, started)
        calibrated = self._retriever.calibration is not None
        if calibrated and parameters.where is None and self.engine.reviews.queue is not None:
            draw = self.watch.audit.draw(found.query_id, found.answer)
            self.engine.reviews.note(data, found, self.watch.key, self.bundle.version, draw)
        if self.engine.shadow is not None:
            self.engine.shadow.offer(data, parameters, found)
        return found

    async def search_vector(self, query: VectorQuery, parameters: SearchParameters) -> SearchResult:
        """Answer a query that was embedded elsewhere.

        Raises
        ------
        InvalidVector : the vector is not from the gallery's encoder.
        """
        started = time.perf_counter()
        return await self._searched(await self.engine.embedded(query), parameters, started)

    async def search_text(self, text: str, parameters: SearchParameters) -> SearchResult:
        """Answer a text query.

        Raises
        ------
        TextUnavailable, InvalidText : see `embed_text`.
        """
        started = time.perf_counter()
        encoded = await self.engine.encoded_text(text)
        return await self.for_kind("text")._searched(encoded, parameters, started)

    async def decide(
        self, query: VectorQuery, neighbours: NeighbourList, parameters: SearchParameters
    ) -> DecidedList:
        """Decide on neighbours that another store has found; nothing is searched.

        Raises
        ------
        InvalidVector : see `decide_list`.
        """
        started = time.perf_counter()
        share, origin = self._share(parameters)
        alpha = self._retriever.alpha if parameters.alpha is None else parameters.alpha
        terms = Terms(
            alpha,
            parameters.coverage,
            share,
            parameters.source,
            stale=self.stale,
            drift=self.drift,
        )
        query_id, decided = await self.engine.compute(
            lambda: (vector_id(query), decide_list(self._retriever, query, neighbours, terms))
        )
        seconds = {"total": time.perf_counter() - started}
        return DecidedList(query_id, None, neighbours, decided, alpha, origin, seconds)

    async def _searched(
        self, encoded: Encoded, parameters: SearchParameters, started: float
    ) -> SearchResult:
        """Search and decide for an embedded query, and record the outcome."""
        answer, origin = await self._found(encoded.entry.predictive, parameters)
        watch = self.watch
        if watch.searched(encoded.query_id, answer, self.caller):  # the drift changed: decide again
            answer, origin = await self._found(encoded.entry.predictive, parameters)
        await self.engine.answered(encoded, self.bundle.version)
        audit = watch.answered(encoded.query_id, answer)
        total = {"total": time.perf_counter() - started}
        seconds = encoded.seconds | answer.seconds | total
        return SearchResult(
            encoded.query_id,
            encoded.entry.image,
            answer,
            origin,
            encoded.cache,
            seconds,
            audit,
            text=encoded.entry.text,
            match_fingerprint=_fingerprint(self._retriever),
        )

    async def assess(self, data: bytes, alpha: float | None) -> Assessed:
        """Assess an uploaded image without a search; its embedding is cached for a later search.

        Raises
        ------
        ImageError : the bytes are not a usable image.
        """
        prepared = await self.engine.decode(data, measured=True)
        if prepared.measures is None:
            raise InternalError("The decoder measured nothing.")
        encoded = await self.engine.encoded(data, prepared)
        calibration = self._retriever.calibration
        ordinary = None if calibration is None else calibration.quality_limits
        hints = quality_hints(prepared.measures, ordinary)
        uncertainty = await self._uncertainty(encoded.entry.predictive)
        assessment = assess(calibration, encoded.entry.predictive, uncertainty)
        return Assessed(
            encoded.query_id,
            encoded.entry.image,
            prepared.measures,
            hints or degradation_hint(assessment.displacement, assessment.displacement_percentile),
            encoded.entry.predictive,
            assessment,
            self._retriever.alpha if alpha is None else alpha,
        )

    async def review(self, review: ReviewerDecision) -> tuple[Decided, Answered]:
        """Return a decision on a query, with the answer to the query.

        The gallery's version at the answer gives the answer again. So items that were added later
        get no feedback: a reviewer has not seen them.

        Raises
        ------
        FeedbackNotKept : the gallery is not calibrated.
        QueryNotFound : the query was never stored, or its storage time has ended.
        ItemNotFound : the gallery has no such item; or the query did not find the item that the
            decision confirms or rejects.
        """
        retriever = self._retriever
        if all(retriever.for_kind(kind).calibration is None for kind in self.engine.watches):
            raise _not_calibrated(self.bundle)  # for every kind of query
        entry = await self.engine.known(review.query_id)
        lease = self.for_kind(entry.predictive.kind)
        if lease.bundle.retriever.calibration is None:
            raise _not_calibrated(self.bundle)
        version = entry.versions.get(self.bundle.key, self.bundle.version)
        served = await self.engine.compute(lambda: lease.at(version))
        everything = SearchParameters(N_CANDIDATES)
        answer, _ = await served._found(entry.predictive, everything, on_thread=True)
        label, pairs = await self.engine.compute(lambda: lease._reviewed(answer, review))
        if served.bundle.version > version:  # a compaction has removed the state of the answer
            found = await self._kept_items(review.query_id)
            pairs = tuple(pair for pair in pairs if pair.item_id in found)
        decided = Decided(
            gallery=self.bundle.key,
            bundle=lease.watch.key,
            query_id=review.query_id,
            decision=review.decision,
            item_id=review.item_id,
            label=label,
            reviewer=review.reviewer,
            comment=review.comment,
            pairs=pairs,
            decided_at=moment(),
        )
        return decided, Answered(
            review.query_id, answer, _fingerprint(lease.bundle.retriever), version
        )

    async def _kept_items(self, query_id: str) -> frozenset[str]:
        """Return the ids of the items that a query's review case keeps; empty without a case."""
        queue = self.engine.reviews.queue
        if queue is None:
            return frozenset()
        key = self.bundle.key
        case = await self.engine.compute(lambda: queue.find(key, query_id))
        return frozenset() if case is None else frozenset(item.item_id for item in case.found)

    async def again(self, query_id: str, parameters: SearchParameters) -> SearchResult:
        """Answer an earlier query again, without encoding it again.

        Raises
        ------
        QueryNotFound : the cache never had the query, or has dropped it.
        """
        started = time.perf_counter()
        entry = await self.engine.known(query_id)
        stages = {"cache": time.perf_counter() - started}
        lease = self.for_kind(entry.predictive.kind)
        answer, origin = await lease._found(entry.predictive, parameters)
        stages |= answer.seconds | {"total": time.perf_counter() - started}
        audit = lease.watch.answered(query_id, answer)
        live, searched = self.bundle.live, self._retriever.gallery
        now = searched if live is None else live.snapshot()
        gone = await self.engine.compute(lambda: changed_since(answer, searched, now))
        return SearchResult(
            query_id, entry.image, answer, origin, "hit", stages, audit, gone, text=entry.text
        )

    async def embed(self, data: bytes, alpha: float | None) -> Embedded:
        """Return the embedding of an uploaded image; a cached embedding is not computed again.

        Raises
        ------
        ImageError : the bytes cannot be embedded.
        """
        encoded = await self.engine.encoded(data)
        return Embedded(
            encoded.query_id,
            encoded.entry.image,
            encoded.entry.predictive,
            assess(
                self._retriever.calibration,
                encoded.entry.predictive,
                await self._uncertainty(encoded.entry.predictive),
            ),
            self._retriever.alpha if alpha is None else alpha,
        )

    async def _uncertainty(self, predictive: Predictive) -> float | None:
        """Return `Assessment.uncertainty`, which needs a search for the nearest item."""
        return await self.engine.compute(lambda: self._retriever.uncertainty(predictive))

    async def similar(self, item_id: str, parameters: SearchParameters) -> SimilarItems:
        """Find the items most similar to an item of the gallery; nothing is encoded.

        Raises
        ------
        ItemNotFound : the gallery has no such item.
        """
        started = time.perf_counter()
        retriever = self._retriever
        item = await self.engine.compute(lambda: retriever.gallery.item(item_id))
        answer = await self.engine.compute(
            lambda: retriever.similar(
                item_id, parameters.limit, parameters.where, parameters.diversity
            )
        )
        return SimilarItems(item, answer, answer.seconds | {"total": time.perf_counter() - started})

    def _share(self, parameters: SearchParameters) -> tuple[float | None, ShareOrigin]:
        """Choose the share of absent queries for a search; return the share and its origin."""
        if self.watch.absent is None:
            return parameters.expected_absent, "bundle"
        return self.watch.absent.choose(parameters.expected_absent, parameters.of_key)

    async def _found(
        self, predictive: Predictive, parameters: SearchParameters, *, on_thread: bool = False
    ) -> tuple[Answer, ShareOrigin]:
        """Search and decide for a query; return also the origin of the share of absent queries.

        Searches with a filter always run on a thread.
        """
        share, origin = self._share(parameters)
        find = partial(
            self._retriever.find,
            predictive,
            parameters.limit,
            parameters.alpha,
            parameters.coverage,
            where=parameters.where,
            diversity=parameters.diversity,
            expected_absent=share,
            source=parameters.source,
            filter_means=parameters.filter_means,
            stale=self._watched_stale,
            drift=self.watch.drift.reason(self.caller),  # `find` adds the gallery's own reason
            order=parameters.order,
        )
        on_thread = on_thread or parameters.where is not None
        pace = None if on_thread else self.engine.search_pace
        return await self.engine.compute(find, pace), origin

    def _reviewed(
        self, answer: Answer, review: ReviewerDecision
    ) -> tuple[str | None, tuple[Pair, ...]]:
        """Return the label of the decided item, and the feedback pairs of the decision.

        If the decision names a different item, or no item, the first item counts as rejected.
        """
        retriever, item_id = self._retriever, review.item_id
        item = None if item_id is None else retriever.gallery.item(item_id)
        listed = {match.id: place for place, match in enumerate(answer.matches)}
        if item is not None and review.decision != "that_item" and item.id not in listed:
            raise ItemNotFound(
                f"The query did not find item {item.id!r} among its nearest {N_CANDIDATES}. If the "
                "query shows this item, send the decision `that_item`."
            )
        words = {}
        if answer.matches and (item is None or review.decision == "that_item"):
            first = answer.matches[0]
            same = item is not None and item.label is not None and first.label == item.label
            words[first.id] = same
        if item is not None and item.id in listed:
            words[item.id] = review.decision != "not_this_item"
        pairs = tuple(
            pair
            for item_id, correct in words.items()
            if (pair := self._pair(answer, listed[item_id], correct=correct)) is not None
        )
        return None if item is None else item.label, pairs

    def _pair(self, answer: Answer, place: int, *, correct: bool) -> Pair | None:
        """Return the feedback pair of an item in an answer; None if the item had no probability."""
        match, uncorrected = answer.matches[place], answer.decision.match_log_odds
        calibration = self._retriever.calibration
        if match.match_probability is None or uncorrected is None or calibration is None:
            return None
        return Pair(
            match.id,
            correct,
            match.rank,
            match.match_probability,
            float(uncorrected[place]),
            calibration.match_fingerprint,
        )


def _fingerprint(retriever: Retriever) -> str | None:
    calibration = retriever.calibration
    return None if calibration is None else calibration.match_fingerprint


def _not_calibrated(bundle: Bundle) -> FeedbackNotKept:
    return FeedbackNotKept(
        f"The gallery {bundle.name!r} has no calibration for this kind of query, so there "
        "are no probabilities for feedback to correct. Run `vouch-build calibrate`."
    )
