"""The engine of one gallery, and the resources that all engines of a service share."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import (
    OperatorSettings,
    change_operator,
    operator_mark,
    read_operator,
)
from model_store.bundles.manifest import BundleFiles
from model_store.bundles.signatures import secret_of
from model_store.decision import outcome_of
from model_store.encoder.contract import Embeddings, Inputs, QueryKind, VectorInput
from model_store.errors import (
    InternalError,
    NotReady,
    PointerUnreadable,
    QueryNotFound,
    WriteError,
)
from model_store.feedback import AnsweredQueries, FeedbackLog, ReviewQueue
from model_store.files import FileMark
from model_store.gallery import Thumbnail, Vector
from model_store.predictive import Predictive
from model_store.queries import (
    CANARY_PICTURE,
    VectorQuery,
    canary_vector,
    embed_text,
    embedding_canary,
    predictive_of,
    text_id,
)
from model_store.records import GalleryOutcome
from service.decoding.decoder import Decoder, Prepared
from service.encoding.cache import Cache, CacheEntry, SingleFlight, key_prefix
from service.encoding.queues import BatchLimits, EncoderQueue, EncoderQueues
from service.observability.metrics import Telemetry, counted_as
from service.scheduling import Pace, Threads
from service.schemas import QueryImage, QueryText
from service.serving.queries import Encoded, vector_id
from service.serving.reviewing import (
    NOTHING_REVIEWED,
    DelayedWrite,
    RetainedQueries,
    ReviewedGallery,
    ReviewKeeper,
    ReviewTerms,
)
from service.serving.shadow import Shadow
from service.serving.watch import Watch
from service.settings import OnDrift

logger = logging.getLogger(__name__)

T = TypeVar("T")

HASHED_AT_ONCE_BYTES = 2**18
"""Maximum bytes that are hashed in the event loop. Hashing this number of bytes takes half a
millisecond."""

WRITTEN_WITHIN_S = 2.0
"""Seconds that a request waits for a query that another process has just answered. They are longer
than `WRITTEN_AFTER_S`, because the write itself takes time."""

LOOKS_EVERY_S = 0.1
"""Seconds between two looks for this query."""


@dataclass(frozen=True, slots=True)
class EngineResources:
    """The objects that all engines of a service share.

    Attributes
    ----------
    cache : cache of predictive distributions.
    decoder : turns uploads into the encoder's input, in separate processes that may crash.
    threads : threads that search and decide.
    telemetry : metrics of all galleries.
    batches : limits on the size of encoder batches.
    feedback : stores users' feedback and the state of drift tests.
    audit_share : share of matches to draw for review, if feedback is stored.
    on_drift : see `SearchEngine.on_drift`.
    answered : store of the embeddings of queries; None if queries are only in the cache.
    reviews, review_terms : the review queue and its options; None without a review queue.
    queues : batch queues of the encoders.
    """

    cache: Cache
    decoder: Decoder
    threads: Threads
    telemetry: Telemetry
    batches: BatchLimits = field(default_factory=BatchLimits)
    feedback: FeedbackLog | None = None
    audit_share: float = 0.0
    on_drift: OnDrift = "warn"
    answered: AnsweredQueries | None = None
    reviews: ReviewQueue | None = None
    review_terms: ReviewTerms = NOTHING_REVIEWED
    queues: EncoderQueues = field(default_factory=EncoderQueues)


class SearchEngine:
    """Answers queries on one bundle without blocking the event loop for long.

    ``decoder`` decodes images, and the bundle's encoder embeds them, in batches if that is faster.
    Predictions, and searches without a filter of galleries in files, run in the event loop if
    they are quick. All other computation runs on ``threads``.

    Attributes
    ----------
    operator : settings of the gallery's operator, which apply to all bundles of the gallery.
    on_drift : effect on the verdicts of a caller whose queries drift. With ``warn``, verdicts have
        no guarantee; with ``withhold``, no verdict is `match`.
    search_pace : run times of searches without a filter; None if the gallery is on another machine.
    """

    def __init__(self, bundle: Bundle, resources: EngineResources, queue: EncoderQueue) -> None:
        self.bundle = bundle
        self.batch_size = queue.batches.size
        self._cache = resources.cache
        self._decoder = resources.decoder
        self._threads = resources.threads
        self._queues = resources.queues
        self._batcher = queue.batcher
        self._prediction_pace = Pace()
        self.search_pace = Pace() if bundle.retriever.gallery.is_local else None
        joined = resources.telemetry.single_flight_joins.labels(counted_as(bundle))
        self._flights: SingleFlight[Encoded] = SingleFlight(joined.inc)
        kinds: tuple[QueryKind, ...] = ("image", "text")
        self.watches = {
            kind: Watch(bundle, resources.feedback, resources.audit_share, kind) for kind in kinds
        }
        self._stores_decisions = resources.feedback is not None
        self.operator = OperatorSettings()
        self.on_drift = resources.on_drift
        self._written_soon = DelayedWrite(self._keep_soon)
        self.retained = RetainedQueries(
            bundle.key,
            bundle.retriever.encoder.fingerprint,
            resources.answered,
            self._written_soon.request,
        )
        self.reviews = ReviewKeeper(
            ReviewedGallery(
                bundle.key,
                bundle.retriever.encoder.fingerprint,
                lambda data, thumbnail: self.decode(data, thumbnail=thumbnail),
                lambda prepared: self._batcher.encode(prepared.pixels),
                self.retained.find,
                self._written_soon.request,
                resources.telemetry.reviews(counted_as(bundle)),
            ),
            resources.reviews,
            resources.review_terms,
        )
        self.secret = secret_of(bundle.root, bundle.manifest)
        self.files = BundleFiles(bundle.directory, bundle.manifest)
        self.changed_file: str | None = None
        self.files_looked_at = -math.inf
        separate = "" if bundle.entry is None else bundle.key
        self._key_prefix = f"{key_prefix(bundle.retriever, separate)}:"
        self._heard: tuple[int, int] | None = (0, 0)
        self.writing = asyncio.Lock()
        self.canary_at = -math.inf
        self.canary_s = math.nan
        self.shadow: Shadow | None = None
        self._operator_unreadable = self._operator_unwritten = False
        self._operator_mark: FileMark | None = None
        self._operator_lock = asyncio.Lock()
        self.closed = False

    @cached_property
    def outcome(self) -> GalleryOutcome:
        """The outcome of the gallery's calibration when the calibration was fitted."""
        return outcome_of(self.bundle.retriever.calibration, self.bundle.manifest.metrics)

    @classmethod
    async def start(cls, bundle: Bundle, resources: EngineResources) -> SearchEngine:
        """Return an engine that has measured its encoder and answered a canary.

        Raises
        ------
        EncoderError : the encoder does not answer.
        """
        encoder = bundle.retriever.encoder
        resources.telemetry.gallery(counted_as(bundle))
        observe = resources.telemetry.batches(counted_as(bundle))
        with embedding_canary(bundle.name):
            try:
                queue = await resources.queues.enter(encoder, resources.batches, observe)
            except BaseException:
                encoder.close()
                raise
            engine = cls(bundle, resources, queue)
            try:
                await engine.follow_operator()
                for watch in engine.watches.values():
                    await watch.restore()
                await engine.canary()
            except BaseException:
                await engine.close()
                raise
        fields = {
            "gallery": bundle.name,
            "bundle": bundle.manifest.id,
            "batch_size": queue.batches.size,
            "turn": queue.batches.turn,
        }
        logger.info("engine started", extra={"fields": fields})
        return engine

    async def close(self) -> None:
        """Stop the engine, and release the encoder."""
        self.closed = True
        if self.shadow is not None:
            await self.shadow.close(
                "The bundle that the shadow was compared with is no longer served."
            )
        # Close both at the same time: the queue waits for the encoder, which may hang.
        encoder_closes = asyncio.to_thread(self.bundle.retriever.encoder.close)
        queue_closes = self._queues.leave(self.bundle.retriever.encoder)
        await asyncio.gather(queue_closes, encoder_closes, self._close_stores())
        if self.bundle.live is not None:
            await asyncio.to_thread(self.bundle.live.close)
        if self.bundle.hold is not None:
            self.bundle.hold.close()

    async def _close_stores(self) -> None:
        await self._written_soon.close()
        await self.keep()

    async def keep(self) -> None:
        """Write new statistics and queries; reload reviews and the operator's settings."""
        await self.follow_operator()
        for watch in self.watches.values():
            await watch.keep()
        await self.reviews.keep()
        await self._keep_embeddings()

    async def _keep_soon(self) -> None:
        """Write new queries. Embeddings of cases wait in memory until `keep`, for later cases."""
        await self.reviews.keep()
        if self.retained.keeps_all:
            await self._keep_embeddings()

    async def _keep_embeddings(self) -> None:
        try:
            await self.retained.keep()
        except WriteError as error:
            fields = {"gallery": self.bundle.name, "reason": str(error)}
            logger.error("queries not retained", extra={"fields": fields})  # noqa: TRY400

    async def follow_operator(self) -> None:
        """Read the operator's settings; log an error if the file cannot be read.

        Any process may have written the file.
        """
        root = self.bundle.root
        if root is None or self._operator_unwritten:
            return
        async with self._operator_lock:  # in the order of the changes
            mark = operator_mark(root)  # read before the file: a later change has another mark
            try:
                self._apply(await asyncio.to_thread(read_operator, root))
            except PointerUnreadable as error:
                if not self._operator_unreadable:
                    fields = {"gallery": self.bundle.name, "reason": str(error)}
                    logger.error("OPERATOR not read", extra={"fields": fields})  # noqa: TRY400
                self._operator_unreadable = True
            else:
                self._operator_unreadable = False
            self._operator_mark = mark

    async def decide_as_operator(
        self, change: Callable[[OperatorSettings], OperatorSettings]
    ) -> bool:
        """Change the operator's settings; return whether the change is stored.

        A stored change also applies to replicas and after a restart. If the directory is not
        writable, the change applies only to this process.
        """
        root, persisted = self.bundle.root, False
        async with self._operator_lock:
            settings = change(self.operator)
            if root is not None:
                try:
                    settings = await asyncio.to_thread(change_operator, root, change)
                    persisted = True
                except OSError as error:
                    fields = {"gallery": self.bundle.name, "reason": str(error)}
                    logger.error("OPERATOR not written", extra={"fields": fields})  # noqa: TRY400
            self._operator_unwritten = not persisted
            self._apply(settings)
        return persisted

    def _apply(self, settings: OperatorSettings) -> None:
        self.operator = settings
        for watch in self.watches.values():
            watch.apply(settings)

    async def catch_up(self) -> None:
        """Load the gallery's new changes and its operator's new settings.

        Any process may have written them. This takes microseconds if there is nothing new.

        If the log's state is unknown, the log is read.

        Raises
        ------
        StorageFailed : the changes cannot be read.
        """
        root, live = self.bundle.root, self.bundle.live
        if root is not None and operator_mark(root) != self._operator_mark:
            await self.follow_operator()
        if live is None:
            return
        mark = live.mark()
        if mark is None or mark != self._heard:
            await self.renew()
            self._heard = mark  # only now: requests during `renew` must call `renew` too

    async def renew(self) -> None:
        """Load the written changes of the gallery for all later requests.

        Raises
        ------
        StorageFailed : the changes cannot be read.
        """
        if self.bundle.live is not None:
            await asyncio.to_thread(self.bundle.live.refresh)
            await self.show_changes()

    async def show_changes(self) -> None:
        """Use the changes that this process has written or read for all later requests."""
        renewed = await asyncio.to_thread(self.bundle.renewed)
        if renewed.state > self.bundle.state:  # another thread may have loaded newer changes
            self.bundle = replace(renewed, entry=self.bundle.entry)  # the entry may have changed

    @property
    def running(self) -> bool:
        """True unless the encoder is being restarted."""
        return self._batcher.running

    @property
    def waiting(self) -> int:
        """Number of images that wait for the encoder."""
        return self._batcher.waiting

    async def encoded(self, data: bytes, prepared: Prepared | None = None) -> Encoded:
        """Decode and embed an uploaded image, unless its embedding is cached or being computed.

        Parameters
        ----------
        prepared : the decoded image, if it is available.

        Raises
        ------
        ImageError : the bytes are not a usable image.
        EncoderError : the encoder stopped, or cannot embed the image.
        """
        started = time.perf_counter()
        if len(data) <= HASHED_AT_ONCE_BYTES:
            query_id = hashlib.sha256(data).hexdigest()
        else:
            query_id = await self.compute(lambda: hashlib.sha256(data).hexdigest())
        known = await self._remembered(query_id)
        looked_up = {"cache": time.perf_counter() - started}
        if known is not None:
            return Encoded(query_id, known, "hit", looked_up)
        encoded = await self._flights.do(query_id, lambda: self._encode(query_id, data, prepared))
        return replace(encoded, seconds=looked_up | encoded.seconds)

    async def embedded(self, query: VectorQuery) -> Encoded:
        """Accept a query that was embedded elsewhere, and cache it like an encoded query.

        Raises
        ------
        InvalidVector : the vector is not from the gallery's encoder.
        """
        started = time.perf_counter()
        query_id, predictive = await self.compute(
            lambda: (vector_id(query), predictive_of(self.bundle.retriever, query))
        )
        entry = CacheEntry(None, predictive, versions=self._versions)
        await self._cache.put(self._key_prefix + query_id, entry)
        seconds = {"predict": time.perf_counter() - started}
        return Encoded(query_id, entry, "miss", seconds)

    async def encoded_text(self, text: str) -> Encoded:
        """Embed a text, or use the cached result.

        Raises
        ------
        TextUnavailable, InvalidText : see `embed_text`.
        """
        started = time.perf_counter()
        query_id = text_id(text)
        known = await self._remembered(query_id)
        seconds = {"cache": time.perf_counter() - started}
        if known is not None:
            return Encoded(query_id, known, "hit", seconds)
        started = time.perf_counter()
        found = await self.compute(lambda: embed_text(self.bundle.retriever, text))
        seconds["encode"] = time.perf_counter() - started
        said = QueryText(n_tokens=found.n_tokens, warnings=list(found.warnings))
        entry = CacheEntry(None, found.predictive, said, self._versions)
        await self._cache.put(self._key_prefix + query_id, entry)
        return Encoded(query_id, entry, "miss", seconds)

    async def answered(self, encoded: Encoded, version: int) -> None:
        """Store the version of the gallery that answered a query, for later decisions."""
        versions = encoded.entry.versions
        if not self._stores_decisions or versions.get(self.bundle.key) == version:
            return
        entry = replace(encoded.entry, versions={**versions, self.bundle.key: version})
        await self._cache.put(self._key_prefix + encoded.query_id, entry)

    async def encode_item(self, data: bytes) -> tuple[Vector, Thumbnail, bytes]:
        """Return embedding, thumbnail and preview for a new item; see `encoded`.

        Raises
        ------
        ImageError : the bytes are not a usable image.
        EncoderError : the encoder stopped, or cannot embed the image.
        """
        side = self.bundle.retriever.gallery.preview_side
        prepared = await self.decode(data, thumbnail=True, preview_side=side)
        embeddings = await self._batcher.encode(prepared.pixels)
        embeddings.require_usable()
        if prepared.thumbnail is None:
            raise InternalError("The decoder made no thumbnail.")
        vector = Vector(embeddings.mean[0], embeddings.variance[0], embeddings.features[0])
        return vector, prepared.thumbnail, prepared.preview

    async def known(self, query_id: str) -> CacheEntry:
        """Return the entry of a query that is cached or retained.

        Raises
        ------
        QueryNotFound : the query is neither cached nor retained.
        NotReady : the cache does not answer, so the query cannot be looked up.
        """
        entry = await self._remembered(query_id)
        if entry is None:
            retained = await self.retained.find(query_id)
            if retained is not None:
                embeddings, version = retained
                found = await self.compute(lambda: self.bundle.retriever.predictives(embeddings))
                versions = {} if version is None else {self.bundle.key: version}
                return CacheEntry(None, found[0], versions=versions)
            if not self._cache.is_reachable:
                raise NotReady(
                    "The cache of queries does not answer. Send the request again later. If this "
                    "persists, the operator should check Redis (VOUCH_REDIS_URL)."
                )
            raise QueryNotFound(
                f"The query {query_id[:12]}… is unknown. The service stores queries for a limited "
                "time. Search with the image again, and send the query id of the new answer."
            )
        return entry

    async def once_written(
        self, query_id: str, find: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """Return the result of ``find``, which looks for stored data of a query.

        If there is no result, but another process may be about to store the query, wait for at most
        `WRITTEN_WITHIN_S`. Only a query in a shared cache can be of another process.
        """
        found = await find()
        stores = self.reviews.queue is not None or self.retained.keeps_all
        if found is not None or not stores or not self._cache.is_shared:
            return found
        if await self._remembered(query_id) is None:
            return None
        until = time.monotonic() + WRITTEN_WITHIN_S
        while found is None and time.monotonic() < until:
            await asyncio.sleep(LOOKS_EVERY_S)
            found = await find()
        return found

    async def forget(self, query_id: str) -> None:
        """Delete a query on request; entries in the caches of other processes expire."""
        self.reviews.forget(query_id)
        if self.shadow is not None:
            self.shadow.forget(query_id)
        await self.retained.forget(query_id)
        await self._cache.remove(self._key_prefix + query_id)

    async def _remembered(self, query_id: str) -> CacheEntry | None:
        """Return the cache entry of a query, if its dimension is that of this encoder."""
        entry = await self._cache.get(self._key_prefix + query_id)
        fits = (
            entry is not None
            and len(entry.predictive.direction) == self.bundle.retriever.encoder.dim
        )
        return entry if fits else None

    async def canary(self) -> float:
        """Search with the canary, without the cache; return the duration in seconds.

        Raises
        ------
        EncoderError : the encoder does not answer.
        """
        started = time.perf_counter()
        expected = self.bundle.retriever.encoder.metadata.input
        if isinstance(expected, VectorInput):
            _, predictive = await self._embed(canary_vector(expected))
        else:
            _, predictive = await self._embed((await self.decode(CANARY_PICTURE)).pixels)
        await self.compute(
            lambda: self.bundle.retriever.find(predictive, limit=1), self.search_pace
        )
        self.canary_at = time.monotonic()
        self.canary_s = time.perf_counter() - started
        return self.canary_s

    async def look_at_files(self) -> None:
        """Record whether a file of the bundle was changed, truncated or removed."""
        began = time.monotonic()
        changed = await asyncio.to_thread(self.files.changed)
        if began < self.files_looked_at:  # a later check ended first
            return
        self.files_looked_at = began
        if changed != self.changed_file and changed is not None:
            fields = {"gallery": self.bundle.name, "file": changed}
            logger.error("a file of the bundle was changed", extra={"fields": fields})
        self.changed_file = changed

    def require_whole(self) -> None:
        """Raise `NotReady` if a file of the bundle was changed while it was served."""
        if self.changed_file is not None:
            raise NotReady(
                f"{self.changed_file} of the bundle of {self.bundle.name!r} was changed while it "
                "was served. The operator must restore the bundle, or activate another bundle."
            )

    async def compute(self, work: Callable[[], T], pace: Pace | None = None) -> T:
        """Run ``work`` on a thread, with fair sharing between callers; see `Threads.compute`.

        Parameters
        ----------
        pace : recent run times of this kind of work. If the work is quick, it runs in the event
            loop.
        """
        if pace is None:
            return await self._threads.compute(work)
        if pace.is_quick:
            return pace.at_once(work)
        return await self._threads.compute(partial(pace.on_thread, work))

    @property
    def _versions(self) -> dict[str, int]:
        return {self.bundle.key: self.bundle.version}

    async def decode(
        self,
        data: bytes,
        *,
        measured: bool = False,
        thumbnail: bool = False,
        preview_side: int | None = None,
    ) -> Prepared:
        """Decode an uploaded image to the encoder's input size, and compute the requested parts."""
        return await self._decoder.decode(
            data,
            self.bundle.retriever.encoder.metadata.preprocessing,
            measured=measured,
            thumbnail=thumbnail,
            preview_side=preview_side,
        )

    async def _encode(self, query_id: str, data: bytes, prepared: Prepared | None) -> Encoded:
        """Decode and embed an image file, and cache the result."""
        started = time.perf_counter()
        prepared = prepared or await self.decode(data)
        decoded = time.perf_counter()
        embeddings, predictive = await self._embed(prepared.pixels)
        versions = self._versions
        self.retained.note(query_id, embeddings, versions[self.bundle.key])
        seconds = {"decode": decoded - started, "encode": time.perf_counter() - decoded}
        image = QueryImage(
            format=prepared.format,
            width=prepared.width,
            height=prepared.height,
            warnings=list(prepared.warnings),
        )
        entry = CacheEntry(image, predictive, versions=versions)
        await self._cache.put(self._key_prefix + query_id, entry)
        return Encoded(query_id, entry, "miss", seconds)

    async def _embed(self, image: Inputs) -> tuple[Embeddings, Predictive]:
        """Return embedding and predictive distribution of one image at the encoder's input size."""
        embeddings = await self._batcher.encode(image)
        found = await self.compute(
            lambda: self.bundle.retriever.predictives(embeddings), self._prediction_pace
        )
        return embeddings, found[0]
