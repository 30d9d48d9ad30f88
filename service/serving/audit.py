"""Draws answers for review, and estimates the error rate of verdict `match` from the reviews."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import cached_property

from model_store.answers import Answer
from model_store.decision import (
    BlockSums,
    Calibration,
    ErrorTest,
    MatchDraw,
    MatchReview,
    ReviewDraws,
)
from model_store.feedback import FeedbackLog
from model_store.messages import Message, message

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
