"""One gallery at work: cache, threads, and the retriever of its bundle."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Assessment, DriftTest, assess
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from model_store.decision.drift import PERIOD
from model_store.errors import FeedbackNotKept, ItemNotFound, QueryNotFound
from model_store.feedback import Feedback
from model_store.images import DecodedImage, ImageLimits, decode_image
from model_store.predictive import N_SAMPLES, Predictive
from model_store.quality import QualityHint, quality_hints, quality_measures
from model_store.retriever import Answer, Bundle
from model_store.search import N_CANDIDATES
from service.cache import Cache, CacheEntry
from service.schemas import QueryImage

T = TypeVar("T")

KEY_VERSION = 2
"""Of the layout of cache entries; another layout is another key."""

DRIFTED = (
    "Recent queries are not such as the gallery was calibrated with, so that its probabilities may "
    "be wrong. Look at what is being sent, then run `vouch-build calibrate` with queries like it."
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a search is to answer; None for what the gallery was calibrated with.

    Attributes
    ----------
    limit : items to describe.
    alpha : rate of false alarms of the outlier flag.
    coverage : of the result set.
    """

    limit: int
    alpha: float | None = None
    coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """An answer, and how it came about; ``query_id`` is the hash of the uploaded bytes."""

    query_id: str
    image: QueryImage
    answer: Answer
    cache: Literal["hit", "miss"]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Assessed:
    """A picture looked at, and nothing searched."""

    query_id: str
    image: QueryImage
    measures: NDArray[np.float64]
    hints: list[QualityHint]
    predictive: Predictive
    assessment: Assessment
    alpha: float


class SearchEngine:
    """Answers queries on one bundle without ever blocking the event loop.

    Everything that computes runs on ``executor``; the event loop only waits.
    """

    def __init__(
        self, bundle: Bundle, cache: Cache, executor: Executor, limits: ImageLimits
    ) -> None:
        self.bundle = bundle
        self._retriever = bundle.retriever
        self._cache = cache
        self._executor = executor
        self._limits = limits
        calibration = bundle.retriever.calibration
        scores = [] if calibration is None else calibration.outlier_scores.tolist()
        self._drift = DriftTest(scores)
        self._watched: OrderedDict[str, None] = OrderedDict()
        self._key_prefix = f"vouch:{KEY_VERSION}:{_basis(bundle)}:{N_SAMPLES}"

    @property
    def stale(self) -> str | None:
        """Why the calibration does not hold for what is served; None where it does."""
        if self._retriever.stale is None and self._drift.drifted:
            return DRIFTED
        return self._retriever.stale

    @property
    def drift_log_capital(self) -> float:
        """Evidence that queries are no longer like the calibration's, in nats."""
        return self._drift.log_capital

    async def search(self, data: bytes, asked: Asked) -> Found:
        """Answer for the bytes of an uploaded image.

        Raises
        ------
        ImageError : the bytes cannot be searched with.
        """
        started = time.perf_counter()
        query_id = hashlib.sha256(data).hexdigest()
        key = self._key(query_id)
        cached = await self._cache.get(key)
        stages = {"cache": time.perf_counter() - started}
        if cached is None:
            entry, answer, encoding = await self.compute(lambda: self._miss(data, asked))
            stages |= encoding
            await self._cache.put(key, entry)
        else:
            entry = cached
            answer = await self.compute(lambda: self._find(cached.predictive, asked))
        self._watch(query_id, answer.predictive.outlier_score)
        stages |= answer.seconds | {"total": time.perf_counter() - started}
        return Found(query_id, entry.image, answer, "miss" if cached is None else "hit", stages)

    async def assess(self, data: bytes, alpha: float | None) -> Assessed:
        """Look at an uploaded image without searching; what is encoded is cached for the search.

        Raises
        ------
        ImageError : the bytes cannot be searched with.
        """
        assessed = await self.compute(lambda: self._assess(data, alpha))
        entry = CacheEntry(assessed.image, assessed.predictive)
        await self._cache.put(self._key(assessed.query_id), entry)
        return assessed

    async def said(self, query_id: str, item_id: str, *, correct: bool) -> Feedback:
        """What a user says of an item that a query found, with what was served then.

        Raises
        ------
        FeedbackNotKept : the gallery is not calibrated.
        QueryNotFound : the query has left the cache, or never was in it.
        ItemNotFound : the gallery has no such item, or the query did not find it.
        """
        if self._retriever.calibration is None:
            raise FeedbackNotKept(
                f"The gallery {self.bundle.name!r} is not calibrated: there are no probabilities "
                "that feedback could refine. Run `vouch-build calibrate`."
            )
        entry = await self._cache.get(self._key(query_id))
        if entry is None:
            raise QueryNotFound(
                f"No query {query_id[:12]}… is known; they are remembered for a while only. Search "
                "with the image again, and send the id of that answer."
            )
        rank, probability, log_odds = await self.compute(
            lambda: self._served(entry.predictive, item_id)
        )
        return Feedback(
            gallery=self.bundle.name,
            bundle=self.bundle.manifest.id,
            query_id=query_id,
            item_id=item_id,
            correct=correct,
            rank=rank,
            match_probability=probability,
            match_log_odds=log_odds,
            match_fingerprint=self._retriever.calibration.match_fingerprint(),
        )

    async def canary(self) -> float:
        """Encode and search an empty picture, past the cache; returns the seconds it took."""
        started = time.perf_counter()
        await self.compute(self._canary)
        return time.perf_counter() - started

    async def compute(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the executor."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _watch(self, query_id: str, outlier_score: float) -> None:
        """Let the drift test see each picture once, cached or not: copies are not exchangeable."""
        if self._retriever.calibration is None or query_id in self._watched:
            return
        self._watched[query_id] = None
        if len(self._watched) > PERIOD:
            self._watched.popitem(last=False)
        self._drift.observe(outlier_score)

    def _key(self, query_id: str) -> str:
        return f"{self._key_prefix}:{query_id}"

    def _miss(self, data: bytes, asked: Asked) -> tuple[CacheEntry, Answer, dict[str, float]]:
        decoded, predictive, stages = self._encode(data)
        answer = self._find(predictive, asked)
        return CacheEntry(_received(decoded), predictive), answer, stages

    def _encode(self, data: bytes) -> tuple[DecodedImage, Predictive, dict[str, float]]:
        """Decode and embed an image file; and the seconds that each took."""
        started = time.perf_counter()
        decoded = decode_image(data, self._limits)
        prepared = self._retriever.prepare(decoded)
        prepared_at = time.perf_counter()
        predictive = self._retriever.embed(prepared[None])[0]
        stages = {"decode": prepared_at - started, "encode": time.perf_counter() - prepared_at}
        return decoded, predictive, stages

    def _find(self, predictive: Predictive, asked: Asked) -> Answer:
        return self._retriever.find(predictive, asked.limit, asked.alpha, asked.coverage)

    def _assess(self, data: bytes, alpha: float | None) -> Assessed:
        decoded, predictive, _ = self._encode(data)
        calibration = self._retriever.calibration
        measures = quality_measures(decoded.pixels)
        ordinary = None if calibration is None else calibration.quality_limits
        return Assessed(
            hashlib.sha256(data).hexdigest(),
            _received(decoded),
            measures,
            quality_hints(measures, ordinary),
            predictive,
            assess(calibration, predictive),
            self._retriever.alpha if alpha is None else alpha,
        )

    def _served(self, predictive: Predictive, item_id: str) -> tuple[int, float, float]:
        """Rank, match probability and its uncorrected log-odds of an item a query found."""
        self._retriever.gallery.item(item_id)  # says so where there is none
        answer = self._retriever.find(predictive, N_CANDIDATES)
        uncorrected = answer.decision.match_log_odds
        for place, match in enumerate(answer.matches):
            if match.item.id != item_id or match.match_probability is None or uncorrected is None:
                continue
            return match.rank, match.match_probability, float(uncorrected[place])
        raise ItemNotFound(
            f"The query did not find item {item_id!r} among its nearest {N_CANDIDATES}."
        )

    def _canary(self) -> None:
        preprocessing = self._retriever.encoder.metadata.preprocessing
        empty = np.zeros((1, preprocessing.height, preprocessing.width, 3), dtype=np.uint8)
        self._retriever.find(self._retriever.embed(empty)[0], limit=1)


def _received(decoded: DecodedImage) -> QueryImage:
    return QueryImage(
        format=decoded.format,
        width=decoded.width,
        height=decoded.height,
        warnings=list(decoded.warnings),
    )


def _basis(bundle: Bundle) -> str:
    """What cached numbers depend on: the encoder, and the calibration's outlier detector."""
    files = bundle.manifest.files
    parts = [files.get(name, {"sha256": ""})["sha256"] for name in (CALIBRATION_FILE, ARRAYS_FILE)]
    parts.append(str(bundle.manifest.encoder["fingerprint"]))
    digest = hashlib.sha256(":".join(parts).encode())
    return digest.hexdigest()[:32]
