"""The parts that all engines of a service share."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from model_store.feedback import AnsweredQueries, FeedbackLog, ReviewQueue
from service.decoding.decoder import Decoder
from service.encoding.cache import Cache
from service.fair_share import FairShare
from service.observability.metrics import Telemetry
from service.serving.reviewing import NOTHING_REVIEWED, ReviewTerms


@dataclass(frozen=True, slots=True)
class EngineResources:
    """The parts that all engines of a service share.

    Attributes
    ----------
    cache : keeps predictive distributions.
    decoder : turns uploads into the encoder's input, in processes that can be lost.
    executor : threads that search and decide.
    threads : the callers' turns to have one of the threads.
    telemetry : metrics of all galleries.
    max_batch : images encoded at once at most.
    max_batch_pixels : their pixels at most, at the encoder's input size.
    pad_batches : see `MicroBatcher`.
    feedback : keeps users' feedback, and the state of drift tests.
    audit_share : share of matches to draw for review, where feedback is kept.
    answered : keeps what was made of queries; None where they are remembered as long as cached.
    reviews, review_terms : queries that are kept to be decided on, and which; None: none are.
    """

    cache: Cache
    decoder: Decoder
    executor: Executor
    threads: FairShare
    telemetry: Telemetry
    max_batch: int = 1
    max_batch_pixels: int = 4_000_000
    pad_batches: bool = False
    feedback: FeedbackLog | None = None
    audit_share: float = 0.0
    answered: AnsweredQueries | None = None
    reviews: ReviewQueue | None = None
    review_terms: ReviewTerms = NOTHING_REVIEWED
