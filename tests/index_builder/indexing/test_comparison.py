"""Answers of two bundles to the same queries, and which of them are right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from index_builder.calibration.evaluate import Evaluation
from index_builder.indexing.comparison import Side
from model_store.answers import Said


def side_of(monkeypatch: pytest.MonkeyPatch, verdict: str, **known: bool) -> Side:
    """Return a bundle that has answered one query, of which it is known whether it has a match."""
    monkeypatch.setattr(Said, "of", lambda answer: answer)
    answered: dict[str, Any] = {name: [value] for name, value in known.items()}
    answered["answers"] = [SimpleNamespace(verdict=verdict)]
    nothing = cast("Any", None)
    return Side("one", cast("Evaluation", SimpleNamespace(**answered)), nothing, nothing)


@pytest.mark.parametrize(
    ("verdict", "absent", "correct", "is_right"),
    [
        ("match", False, True, True),
        ("match", False, False, False),
        ("ambiguous", False, True, False),
        ("no_match", False, False, False),
        ("match", True, False, False),
        ("no_match", True, False, True),
    ],
)
def test_only_what_is_named_and_true_or_denied_and_absent_is_right(
    monkeypatch: pytest.MonkeyPatch, verdict: str, *, absent: bool, correct: bool, is_right: bool
) -> None:
    assert side_of(monkeypatch, verdict, absent=absent, correct=correct).right(0) is is_right
