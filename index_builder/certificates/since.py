"""The history of a bundle since its calibration, from the records of its service."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from model_store.decision import Calibration, DriftTest, ErrorTest, error_interval
from model_store.drift_states import ALL_CALLERS, DriftStates
from model_store.errors import CertificateError
from model_store.feedback import FeedbackLog

N_STEPS = 12
"""Moments at which the evidence of errors is told, the last one included."""

_Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Said(_Strict):
    """The served probabilities compared with users' feedback on them, see `FeedbackSummary`."""

    n: _Count
    probability: float
    share: float


class Drift(_Strict):
    """The drift test of all queries of the service that saved it last.

    Attributes
    ----------
    n_served : queries of its present period.
    log_capital : evidence that they differ from the calibration queries, in nats.
    alarmed : whether an alarm lasts.
    """

    n_served: _Count
    log_capital: float
    alarmed: bool


class Observed(_Strict):
    """The records of a service; the rest of the section is computed from them.

    Attributes
    ----------
    n_asked : matches drawn at random for review.
    reviews : of each reviewed match 1 where it is wrong, else 0, oldest first.
    said : None where nobody gave feedback.
    drift : None where none was kept.
    """

    n_asked: _Count
    reviews: Annotated[str, Field(pattern="^[01]*$")]
    said: Said | None
    drift: Drift | None


def observed(feedback: Path, bundle_id: str, calibration: Calibration) -> Observed:
    """Read what a service kept of a bundle in its ``feedback`` file.

    Raises
    ------
    CertificateError : there is no such file, or it is none of a service.
    """
    if not feedback.is_file():
        raise CertificateError(
            f"There is no feedback in {feedback}. Name the file that the service was started with "
            "(VOUCH_FEEDBACK), or certify without --feedback."
        )
    log = FeedbackLog(feedback)
    try:
        reviews, said = log.reviews(bundle_id), log.summary(bundle_id)
        saved = {one.caller: one.test for one in DriftStates(feedback).load(bundle_id)}
    except sqlite3.Error as error:
        raise CertificateError(f"{feedback} is no file of feedback ({error}).") from error
    drift = None
    test = DriftTest.of(calibration)
    if ALL_CALLERS in saved and test is not None:
        test.restore(saved[ALL_CALLERS])
        drift = Drift(n_served=test.n_served, log_capital=test.log_capital, alarmed=test.drifted)
    return Observed(
        n_asked=reviews.n_asked,
        reviews="".join("1" if wrong else "0" for wrong in reviews.wrong),
        said=None
        if said is None
        else Said(n=said.n, probability=said.probability, share=said.share),
        drift=drift,
    )


def since(seen: Observed, max_error: float) -> dict[str, Any]:
    """Return what was observed, and the running test of "errors are at most ``max_error``"."""
    test = ErrorTest(max_error)
    n = len(seen.reviews)
    recorded = {round(step * n / N_STEPS) for step in range(1, N_STEPS + 1)}
    course = []
    for wrong in seen.reviews:
        test.observe(wrong=wrong == "1")
        if test.n in recorded:
            course.append({"n": test.n, "n_wrong": test.n_wrong, "log_evidence": test.log_evidence})
    return {
        "observed": seen.model_dump(mode="json"),
        "errors": {
            "max_error": max_error,
            "n": n,
            "n_wrong": test.n_wrong,
            "share": test.n_wrong / n if n else None,
            "interval": list(error_interval(n, test.n_wrong)),
            "log_evidence": test.log_evidence,
            "alarmed": test.alarmed,
            "course": course,
        },
    }
