"""Outcomes of verdicts on a stream with absent queries."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index_builder.calibration.evaluate import CONFIDENCE, Outcomes
from model_store.decision.operating import exact_interval


def described(
    probabilities: np.ndarray,
    correct: np.ndarray,
    absent: np.ndarray,
    labels: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
) -> dict[str, Any]:
    answers = [
        SimpleNamespace(
            decision=SimpleNamespace(verdict="match", roll_up=None),
            matches=[SimpleNamespace(match_probability=probability)],
        )
        for probability in probabilities.tolist()
    ]
    promises = SimpleNamespace(gives_matches=True, point=SimpleNamespace(error_bound=0.09))
    calibration = SimpleNamespace(
        default_share=0.2, hierarchy=None, max_error=0.1, promises=lambda: promises
    )
    names = [""] * len(answers)
    ids = [f"query {row}" for row in range(len(answers))]
    queries = SimpleNamespace(
        ids=ids,
        labels=labels or names,
        groups=groups or ids,
        sources=names,
        contents=lambda: [bytes([row % 50]) for row in range(len(answers))],
    )
    given: Any = calibration, answers, correct, absent, queries
    outcomes = Outcomes(*given)
    return outcomes.described()


def test_queries_that_are_equally_sure_have_no_order() -> None:
    generator = np.random.default_rng(0)
    probabilities, absent = generator.integers(0, 3, 60) / 2, np.arange(60) % 4 == 0
    correct = (generator.random(60) < 0.6) & ~absent
    order = generator.permutation(60)
    first = described(probabilities, correct, absent)
    again = described(probabilities[order], correct[order], absent[order])
    for name in ("ece", "risk_coverage"):
        np.testing.assert_allclose(again[name], first[name])
    seen = {"coverage": first["coverage"], "error": first["error"]}
    assert (first["point"], first["max_error"]) == ({**seen, "error_bound": 0.09}, 0.1)
    # All are as sure as each other: the surest are as often wrong as all.
    alike = described(np.ones(60), np.arange(60) < 30, np.zeros(60, dtype=bool))
    assert [error for _, error in alike["risk_coverage"]] == pytest.approx([0.5] * 60)


def test_absent_queries_of_one_label_count_once() -> None:
    absent = np.arange(60) < 40
    labels = [f"label {row % 8}" for row in range(60)]
    report = described(np.ones(60), ~absent, absent, labels)
    assert report["fpir"] == {
        "n": 40,
        "share": 1.0,
        "interval": list(exact_interval(1.0, 8, CONFIDENCE)),
    }
    assert report["fnir"]["interval"] == list(exact_interval(0.0, 20, CONFIDENCE))


def test_copies_have_the_name_of_the_first_and_named_groups_their_own() -> None:
    groups = [bytes([row % 50]).hex() for row in range(58)] + ["night", "night"]
    never = np.zeros(60, dtype=bool)
    found = described(np.ones(60), np.arange(60) % 50 > 7, never, groups=groups)["groups"]
    assert found["n"] == 51
    assert found["worst"]["query 7"] == {"n": 2, "wrong_matches": 2}
    assert "night" not in found["worst"]
    found = described(np.ones(60), never, never, groups=groups)["groups"]
    assert found["worst"]["night"] == {"n": 2, "wrong_matches": 2}
