"""A table of vectors as a source: its rows in a file, and what is known of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import Entry
from index_builder.indexing.prepare import read_vector, require_direction
from index_builder.indexing.sources.opening import open_vectors
from model_store.errors import CorruptImage, DatasetError

ROWS = np.array([[1, 2], [3, 4], [0, 0], [1, 2]], np.float64)
ITEMS: list[dict[str, Any]] = [
    {"id": "a", "label": "owl", "group": "g", "price": 3},
    {"id": "b", "label": "fox", "source": "camera"},
    {"id": "c", "label": "owl"},
    {"id": "d", "label": "owl"},
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "vectors.npy", ROWS)
    return tmp_path / "vectors.npy"


def items(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.with_name("items.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path.with_name("items.jsonl")


def entries(table: Path, known: Path | None, *, labelled: bool = True) -> list[Entry]:
    source = open_vectors(table, known, labelled=labelled)
    return list(source.entries(table.parent, LeftOut()))


def test_a_row_is_an_entry(table: Path) -> None:
    found = entries(table, None)
    assert [one.id for one in found] == ["0", "1", "2", "3"]
    assert [one.origin for one in found] == [f"vectors.npy, row {n}" for n in (1, 2, 3, 4)]
    assert [(one.place.offset, one.place.size) for one in found] == [(8 * n, 8) for n in range(4)]
    assert {one.place.changed_ns for one in found} == {table.stat().st_mtime_ns}
    for one, row in zip(found, ROWS, strict=True):
        np.testing.assert_array_equal(read_vector(one.place), row.astype(np.float32))


def test_a_row_can_be_read_as_soon_as_it_is_named(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    source = open_vectors(Path(table.name), None)
    assert source.table.path == table
    found = source.entries(table.parent, LeftOut())
    first = next(found)  # while others are still to be written
    np.testing.assert_array_equal(read_vector(first.place), ROWS[0])


def test_a_line_says_what_a_row_is(table: Path) -> None:
    known = items(table, ITEMS)
    found = entries(table, known)
    assert [(one.id, one.label, one.group, one.source) for one in found[:2]] == [
        ("a", "owl", "g", None),
        ("b", "fox", None, "camera"),
    ]
    assert found[0].metadata == {"price": 3}
    assert found[1].origin == "items.jsonl, line 2"
    unlabelled = entries(table, known, labelled=False)
    assert [one.label for one in unlabelled] == [None] * 4
    assert unlabelled[0].metadata == {"label": "owl", "price": 3}


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (3, r"items\.jsonl has 3 lines, but vectors\.npy has more rows"),
        (5, r"items\.jsonl has more lines than vectors\.npy has rows \(4\)"),
    ],
)
def test_lines_and_rows_are_as_many(table: Path, n: int, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        entries(table, items(table, [{"id": str(number)} for number in range(n)]))


def test_rows_with_labels_are_learned_from(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that points nowhere is left out, and equal rows share a group."""
    found = open_vectors(table, items(table, ITEMS)).labelled_vectors()
    assert (found.ids, found.labels) == (("a", "b", "d"), ("owl", "fox", "owl"))
    for row, number in enumerate((0, 1, 3)):
        np.testing.assert_array_equal(found.pixels(row), ROWS[number])
    assert found.sources == ("", "camera", "")
    assert found.metadata == ({"price": 3}, {}, {})
    assert found.groups is None  # of the two equal rows one has a group by name
    assert "left out: c: The vector has" in capsys.readouterr().err
    bare = [{name: one[name] for name in ("id", "label")} for one in ITEMS]
    found = open_vectors(table, items(table, bare)).labelled_vectors()
    assert found.groups is not None
    assert found.groups[0] == found.groups[2] != found.groups[1]
    assert found.sources is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": None}, r"items\.jsonl, line 2: there is no label"),
        (
            {"id": "a"},
            r"'a' is the id of two items: .* line 1, and items\.jsonl, line 2",
        ),
    ],
)
def test_an_item_has_an_id_of_its_own_and_a_label(
    table: Path, change: dict[str, Any], said: str
) -> None:
    known = items(table, [ITEMS[0], {**ITEMS[1], **change}, *ITEMS[2:]])
    with pytest.raises(DatasetError, match=said):
        open_vectors(table, known).labelled_vectors()


def test_fields_of_images_are_not_dropped_without_a_word(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries(table, items(table, ITEMS))
    assert capsys.readouterr().err == ""
    entries(table, items(table, [{**one, "path": "owls/1.jpg"} for one in ITEMS]))
    said = "items.jsonl: path is not used, because the source has vectors and no images.\n"
    assert capsys.readouterr().err == said


def test_a_row_is_left_out_if_it_is_far_longer_than_the_others(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be all that a covariance shows."""
    np.save(table, np.array([[3, 4], [4, 3], [3, -4], [5e9, 0]]))
    source = open_vectors(table, items(table, ITEMS))
    assert source.labelled_vectors().ids == ("a", "b", "c")
    said = "left out: d: The norm of the vector is 5.0e+09, but the median norm of all vectors is"
    assert f"{said} 5.0e+00." in capsys.readouterr().err


def test_a_row_is_left_out_if_products_of_it_overflow(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(table, ROWS * [[1e30], [1], [1], [1e14]])
    source = open_vectors(table, items(table, ITEMS))
    assert source.labelled_vectors().ids == ("b", "d")
    said = capsys.readouterr().err
    assert "left out: a: The norm of the vector is 2.2e+30; at most 1e+15 is accepted." in said
    large = np.array([1e30, 1], np.float32)
    with pytest.raises(CorruptImage, match=r"at most 1e\+15"):
        require_direction(large, 2)
