"""The parts that all engines of a service share."""

from __future__ import annotations

from dataclasses import dataclass, field

from model_store.feedback import AnsweredQueries, FeedbackLog, ReviewQueue
from service.decoding.decoder import Decoder
from service.encoding.cache import Cache
from service.encoding.queues import BatchLimits, EncoderQueues
from service.observability.metrics import Telemetry
from service.serving.reviewing import NOTHING_REVIEWED, ReviewTerms
from service.serving.threads import Threads
from service.settings import OnDrift


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
