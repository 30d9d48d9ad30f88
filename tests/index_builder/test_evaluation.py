"""What an evaluation says of probabilities is said of the stream that they are for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from index_builder.calibration.evaluate import _of_first, evaluate
from index_builder.datasets.small_images import digits
from index_builder.datasets.splits import QuerySet
from index_builder.metrics import calibration_error, reliability
from model_store.bundles.bundle import open_bundle
from model_store.retriever import Retriever

RNG = np.random.default_rng(0)
MATCHED = RNG.uniform(0.3, 1, 90)
CORRECT = RNG.uniform(size=90) < MATCHED
ABSENT = RNG.uniform(0, 0.6, 30)


def measured(share: float, absent: np.ndarray | None) -> dict[str, Any]:
    retriever = cast("Retriever", SimpleNamespace(calibration=SimpleNamespace(default_share=share)))
    return _of_first(retriever, MATCHED, CORRECT, absent)


def test_absent_queries_weigh_as_their_expected_share() -> None:
    """One half: each absent query three times beside 90 matched ones."""
    report = measured(0.5, ABSENT)
    probabilities = np.r_[MATCHED, np.repeat(ABSENT, 3)]
    outcomes = np.r_[CORRECT, np.zeros(90, dtype=bool)]
    assert report["top1_brier"] == pytest.approx(np.mean((probabilities - outcomes) ** 2))
    exact = calibration_error(reliability(probabilities, outcomes))
    assert report["top1_ece"] == pytest.approx(exact, abs=0.02)  # bins end elsewhere among ties
    assert report["top1_stream"] == "matched_and_withheld_labels"
    assert report["top1_ece"] > measured(0.01, ABSENT)["top1_ece"]


def test_without_withheld_labels_the_stream_is_of_matches_and_says_so() -> None:
    report = measured(0.05, None)
    assert report["top1_ece"] == pytest.approx(calibration_error(reliability(MATCHED, CORRECT)))
    assert report["top1_stream"] == "matched"


def test_both_orders_stand_beside_each_other(digits_bundle: Path) -> None:
    """Each as lists in that order say, asked for one by one."""
    retriever = open_bundle(digits_bundle, "cpu").retriever
    images = digits()
    known = [label in retriever.gallery.labels for label in images.labels]
    queries = images.at(np.flatnonzero(known)[:120])
    none = queries.at([])
    report = evaluate(retriever, QuerySet(queries, none, None), seed=0)
    assert set(report["orders"]) == {"similarity", "probability"}
    pixels = queries.prepared(retriever.encoder.metadata.preprocessing)
    for order, told in report["orders"].items():
        answers = [retriever.find(one, 10, order=order) for one in retriever.embed(pixels)]
        right = np.array(
            [
                answer.matches[0].label == label
                for answer, label in zip(answers, queries.labels, strict=True)
            ]
        )
        called = np.array([answer.decision.verdict == "match" for answer in answers])
        assert told["recall_at_1"] == right.mean()
        assert told["match_share"] == called.mean()
        first = np.array([answer.matches[0].match_probability for answer in answers], dtype=float)
        assert told["top1_brier"] == pytest.approx(np.mean((first - right) ** 2))
    assert report["orders"]["similarity"]["recall_at_1"] == report["recall_at_1"]
