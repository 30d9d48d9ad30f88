"""Feedback on a bundle since its calibration, from the records of its service."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from model_store.decision import (
    Calibration,
    DriftTest,
    ErrorTest,
    MatchDraw,
    MatchReview,
    estimate_error,
)
from model_store.errors import CertificateError
from model_store.feedback import FeedbackLog
from model_store.watch_states import ALL_CALLERS, DriftStates

N_STEPS = 12
"""Number of values of the evidence that a certificate lists. The reviews are divided into this
number of parts of equal size. Each value includes all reviews up to the end of a part."""

_Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ServedProbabilities(_Strict):
    """The service's probabilities, compared with users' feedback; see `FeedbackSummary`."""

    n: _Count
    probability: float
    share: float


class DrawnReview(_Strict):
    """The review of a match that was drawn at random; see `MatchDraw`."""

    wrong: bool
    predicted: Annotated[float, Field(ge=0, le=1)]
    probability: Annotated[float, Field(gt=0, le=1)]
    least: Annotated[float, Field(gt=0, le=1)]
    n_before: _Count
    predicted_before: Annotated[float, Field(ge=0)]
    squares_before: Annotated[float, Field(ge=0)]

    @classmethod
    def of(cls, review: MatchReview) -> DrawnReview:
        """Convert a review for the certificate."""
        return cls(wrong=review.wrong, **asdict(review.draw))

    def read(self) -> MatchReview:
        """Convert back to a review."""
        return MatchReview(self.wrong, MatchDraw(**self.model_dump(exclude={"wrong"})))


class Drift(_Strict):
    """The drift test over all queries, as last saved by the service.

    Attributes
    ----------
    n_served : number of queries in the current period of the drift test.
    log_capital : evidence that these queries differ from the calibration queries, in nats.
    alarmed : whether drift is currently reported.
    """

    n_served: _Count
    log_capital: float
    alarmed: bool


class Observed(_Strict):
    """Records of a service, from which the section ``since`` is computed.

    Attributes
    ----------
    n_asked : number of matches drawn at random for review.
    reviews : the reviewed matches, oldest first.
    said : summary of the feedback; None without feedback.
    drift : state of the drift test; None if none was saved.
    """

    n_asked: _Count
    reviews: list[DrawnReview]
    said: ServedProbabilities | None
    drift: Drift | None


def observed(feedback: Path, bundle_id: str, calibration: Calibration) -> Observed:
    """Read the records of a bundle from the service's ``feedback`` file.

    Raises
    ------
    CertificateError : the file does not exist, or is not a feedback file.
    """
    if not feedback.is_file():
        raise CertificateError(
            f"The feedback file {feedback} does not exist. Name the file of the service's setting "
            "VOUCH_FEEDBACK, or certify without --feedback."
        )
    log = FeedbackLog(feedback)
    try:
        reviews, said = log.reviews(bundle_id), log.summary(bundle_id)
        saved = {one.caller: one.test for one in DriftStates(feedback).load(bundle_id)}
    except sqlite3.Error as error:
        raise CertificateError(f"{feedback} is not a feedback file ({error}).") from error
    drift = None
    test = DriftTest.of(calibration)
    if ALL_CALLERS in saved and test is not None:
        test.restore(saved[ALL_CALLERS])
        drift = Drift(n_served=test.n_served, log_capital=test.log_capital, alarmed=test.drifted)
    return Observed(
        n_asked=reviews.n_asked,
        reviews=[DrawnReview.of(one) for one in reviews.matches],
        said=None
        if said is None
        else ServedProbabilities(n=said.n, probability=said.probability, share=said.share),
        drift=drift,
    )


def since(seen: Observed, max_error: float) -> dict[str, Any]:
    """Return the records, and the results of a sequential test of the matches' error."""
    test = ErrorTest(max_error)
    reviews = [one.read() for one in seen.reviews]
    n, estimate = len(reviews), estimate_error(reviews)
    recorded = {round(step * n / N_STEPS) for step in range(1, N_STEPS + 1)}
    course = []
    for review in reviews:
        test.observe(review)
        if test.n in recorded:
            course.append({"n": test.n, "n_wrong": test.n_wrong, "log_evidence": test.log_evidence})
    return {
        "observed": seen.model_dump(mode="json"),
        "errors": {
            "max_error": max_error,
            "n": n,
            "n_wrong": test.n_wrong,
            "rate": estimate.rate,
            "interval": list(estimate.interval),
            "log_evidence": test.log_evidence,
            "alarmed": test.alarmed,
            "course": course,
        },
    }
