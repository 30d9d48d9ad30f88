"""Pages of an evaluation and of unknown queries: which queries are drawn, and how."""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from index_builder.calibration.evaluate import Evaluation
from index_builder.datasets.images import from_arrays
from index_builder.indexing import evaluation_page
from index_builder.indexing.comparison import Side, _rows_of_both, _thresholds, changes_of
from index_builder.indexing.evaluation_page import _error, picture_of, thumbnail_of
from index_builder.indexing.unknown import UnknownGrouping
from model_store.answers import Said
from model_store.gallery import Gallery, Thumbnail
from model_store.identities import Group, group_id

IMAGES = from_arrays("q", np.arange(5 * 40 * 20, dtype=np.uint8).reshape(5, 40, 20), list("abcde"))


def decoded(uri: str) -> Image.Image:
    kind, _, data = uri.partition(",")
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_query_is_drawn_no_larger_than_an_item() -> None:
    large = from_arrays("q", np.zeros((1, 400, 100, 3), np.uint8), ["a"])
    assert decoded(picture_of(large, 0) or "").size == (40, 160)
    assert decoded(picture_of(IMAGES, 0) or "").size == (20, 40)
    vectors: Any = SimpleNamespace(pixels=lambda _row, _side: np.zeros(4, np.float32))
    assert picture_of(vectors, 0) is None


class Pictures:
    """A gallery of two items, of which one came as a vector."""

    def thumbnail(self, item_id: str) -> Thumbnail:
        return Thumbnail(b"" if item_id == "vector" else b"data", "image/<x>")


PICTURES = cast("Gallery", Pictures())


def test_an_item_is_drawn_if_it_has_a_picture() -> None:
    assert thumbnail_of(PICTURES, "vector") is None
    assert thumbnail_of(PICTURES, "a") == "data:image/&lt;x&gt;;base64,ZGF0YQ=="


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("label", [None, "owl"])
def test_an_error_is_described(*, absent: bool, label: str | None) -> None:
    first = SimpleNamespace(id="i", label=label, match_probability=0.9)
    answer = SimpleNamespace(
        matches=[first, None], decision=SimpleNamespace(verdict="match", roll_up=None)
    )
    evaluation: Any = SimpleNamespace(answers=[None, answer], queries=IMAGES, absent=[None, absent])
    found = _error(cast("Evaluation", evaluation), PICTURES, 1)
    assert (found.pop("picture"), found.pop("found_picture")) == (
        picture_of(IMAGES, 1),
        thumbnail_of(PICTURES, "i"),
    )
    assert found == {
        "id": "q-1",
        "truth": "nothing in the gallery" if absent else "b",
        "found": label or "i",
        "probability": 0.9,
        "verdict": "match",
        "roll_up": None,
    }


@pytest.fixture
def unknown() -> UnknownGrouping:
    """Of five queries three match nothing, and two of these show one identity."""
    group = Group(np.array([0, 2]), np.array([0.9, 0.8]), 0.85, 2)
    return UnknownGrouping("shoes", IMAGES, {"match": 2, "no_match": 3}, [1, 2, 4], [group], 0.95)


def test_unknown_queries_are_reported(unknown: UnknownGrouping) -> None:
    assert unknown.report() == {
        "gallery": "shoes",
        "n_queries": 5,
        "verdicts": {"match": 2, "no_match": 3},
        "n_unknown": 3,
        "n_grouped": 2,
        "precision": 0.95,
        "groups": [
            {
                "id": group_id(["q-1", "q-4"]),
                "p_same": 0.85,
                "medoid": "q-4",
                "members": [{"id": "q-1", "p_same": 0.9}, {"id": "q-4", "p_same": 0.8}],
            }
        ],
        "ungrouped": ["q-2"],
    }
    assert "\r" not in unknown.table()
    rows = list(csv.reader(io.StringIO(unknown.table())))
    name = group_id(["q-1", "q-4"])
    assert rows == [
        ["id", "group", "p_same", "medoid"],
        ["q-1", name, "0.9000", "0"],
        ["q-4", name, "0.8000", "1"],
    ]


def test_a_page_of_unknown_queries_shows_the_medoid_first(
    unknown: UnknownGrouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, Any] = {}
    monkeypatch.setattr("index_builder.indexing.unknown.rendered",
                        lambda template, **content: shown.update(content) or template)  # fmt: skip
    monkeypatch.setattr("index_builder.indexing.unknown.N_SHOWN", 1)
    two = replace(unknown, groups=[*unknown.groups, *unknown.groups])
    assert two.page() == "unknown.html.jinja"
    [group] = shown["groups"]
    assert (group["n"], group["shown"]) == (2, [("q-4", picture_of(IMAGES, 4))])
    assert group["id"] == group_id(["q-1", "q-4"])
    assert shown["report"] == two.report()
    monkeypatch.setattr("index_builder.indexing.unknown.N_SHOWN", 2)
    two.page()
    assert [[name for name, _ in one["shown"]] for one in shown["groups"]] == [["q-4", "q-1"]] * 2


def side(ids: list[str], said: list[Said], right: list[bool], thresholds: list[float]) -> Side:
    evaluation: Any = SimpleNamespace(
        queries=SimpleNamespace(ids=ids), answers=said, absent=[False] * len(ids), correct=right
    )
    points = [
        SimpleNamespace(size_class=name, point=None if at is None else at, threshold=at)
        for name, at in zip(("one", "few"), thresholds, strict=True)
    ]
    calibration: Any = SimpleNamespace(promises=lambda: SimpleNamespace(matches=points))
    return Side("side", cast("Evaluation", evaluation), calibration, PICTURES)


def test_answers_that_differ_are_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Said, "of", lambda answer: answer)
    match, other = (Said("match", one, one, 0.9, False, False) for one in "ab")
    unsure = replace(match, verdict="ambiguous")
    old = side(["gone", "1", "2", "3", "4"], [match, match, unsure, unsure, match],
               [True, True, True, True, True], [0.5, 0.6])  # fmt: skip
    new = side(["4", "3", "2", "1", "new"], [match, replace(unsure, name="c"), match, other, match],
               [True, False, True, False, True], [0.7, 0.8])  # fmt: skip
    assert list(_rows_of_both(old, new)) == [(4, 0), (3, 1), (2, 2), (1, 3)]
    assert [(one.kind, one.old, one.new) for one in changes_of(old, new)] == [
        ("changed", 3, 1),
        ("fixed", 2, 2),
        ("broken", 1, 3),
    ]
    assert _thresholds(old, new) == {"one": [0.5, 0.7], "few": [0.6, 0.8]}


@pytest.mark.parametrize("n_absent", [0, 2])
def test_curves_and_the_surest_errors_are_on_the_page(
    monkeypatch: pytest.MonkeyPatch, n_absent: int
) -> None:
    shown: dict[str, Any] = {}
    monkeypatch.setattr(evaluation_page, "rendered",
                        lambda template, **content: shown.update(content) or template)  # fmt: skip
    monkeypatch.setattr(evaluation_page, "_error", lambda _evaluation, _gallery, row: row)
    stream: dict[str, Any] = {
        "risk_coverage": [[0.5, 0.1], [1.0, 0.2]],
        "reliability": [{"n": 8, "probability": 0.25, "share": 0.5, "weight": 0.25}],
        "point": {"coverage": 0.5, "error": 0.1, "error_bound": 0.125},
        "max_error": 0.15,
    }
    answers = [
        SimpleNamespace(
            decision=SimpleNamespace(no_match_probability=number / 4),
            matches=[SimpleNamespace(similarity=1 - number / 4)],
        )
        for number in range(4)
    ]
    evaluation: Any = SimpleNamespace(
        report={"stream": stream},
        surest_errors=np.arange(evaluation_page.N_SHOWN + 1),
        absent=np.arange(4) >= 4 - n_absent,
        answers=answers,
    )
    assert evaluation_page.page(evaluation, PICTURES, "shoes") == "evaluation.html.jinja"
    assert shown["errors"] == list(range(evaluation_page.N_SHOWN))
    assert shown["n_errors"] == evaluation_page.N_SHOWN + 1
    assert (shown["name"], shown["stream"]) == ("shoes", stream)
    assert shown["report"] is evaluation.report
    drawn = [svg for _, svg in shown["charts"]]
    assert len(drawn) == (3 if n_absent else 2)
    wanted = ("calibration error 0.062", "match: 50% of queries, error ≤ 12.5%", "AUROC 1.000")
    assert all(text in svg for text, svg in zip(wanted, drawn, strict=False))
