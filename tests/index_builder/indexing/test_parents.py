"""Parents of labels, as somebody writes them, and a gallery that rolls up to them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from index_builder.indexing.collection import Indexing, index_collection
from index_builder.indexing.parents import Parents, read_parents
from index_builder.indexing.sources import open_source
from model_store.bundles.bundle import open_bundle
from model_store.errors import DatasetError
from model_store.gallery import Item
from tests.support.collection_files import write_drawings
from tests.support.narrowing import not_none

KIND = {"0": "round", "6": "round", "8": "round", "9": "round", "1": "straight", "7": "straight"}


def table(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "parent"), *rows])
    return path


def test_parents_of_parents_stand_a_level_above_all_that_is_below_them(tmp_path: Path) -> None:
    """The wolf has no genus here, and is of a family like the cats, whose genera are named."""
    rows = [("lion", "Panthera"), ("Panthera", "Felidae"), ("lynx", "Lynx"), ("Lynx", "Felidae")]
    hierarchy = read_parents(table(tmp_path / "of.csv", [*rows, ("cat", "Felidae")]))
    assert list(hierarchy.levels) == ["1", "2"]
    named = {
        label: [
            None if place < 0 else hierarchy.parents[level][place]
            for level, place in enumerate(hierarchy.of_labels([label])[0])
        ]
        for label in ("lion", "cat", "Panthera", "Felidae", "nobody")
    }
    assert named == {
        "lion": ["Panthera", "Felidae"],
        "cat": [None, "Felidae"],
        "Panthera": ["Panthera", "Felidae"],  # of which nothing finer is known
        "Felidae": [None, "Felidae"],
        "nobody": [None, None],
    }


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", "b"), ("b", "a")], "is its own ancestor"),
        ([("a", "b"), ("a", "c")], "'a' has the parent 'c', but 'b' on an earlier line"),
        ([("a", "")], "line 2: wanted a label and its parent"),
    ],
)
def test_what_is_no_hierarchy_is_refused(
    tmp_path: Path, rows: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(DatasetError, match=said):
        read_parents(table(tmp_path / "of.csv", rows))


def test_a_field_may_hold_a_list() -> None:
    item = Item("1", "lion", {"genus": ["Panthera"]})
    gallery = Mock(rows=lambda: [0], labels=("lion",), items=lambda _: [item])
    assert not_none(Parents(fields=("genus",)).of(gallery)).of_labels(["lion"]).tolist() == [[0]]


def test_an_empty_table_has_no_levels(tmp_path: Path) -> None:
    assert list(read_parents(table(tmp_path / "of.csv", [])).levels) == []


@pytest.mark.process
def test_an_indexed_gallery_rolls_up(indexing: Indexing, tmp_path: Path) -> None:
    source = tmp_path / "more"
    source.mkdir()
    write_drawings(source, 300)
    indexing = replace(indexing, source=open_source(source))
    parents = Parents(table(tmp_path / "of.csv", list(KIND.items())))
    outcome = index_collection(replace(indexing, calibrate=True, parents=parents))
    calibration = not_none(outcome.calibration)
    (level,) = calibration.report["cross_fitted"]["levels"]
    assert level["accuracy"] > 0.5
    retriever = open_bundle(indexing.bundles, "cpu", threads=1).retriever
    known = not_none(not_none(retriever.calibration).hierarchy)
    assert known.of_labels(["8", "2"]).tolist() == [[0], [-1]]
    levels = not_none(calibration.evidence.levels)
    assert np.isfinite(levels.probabilities).all()
    with pytest.raises(DatasetError, match="no label of the gallery has a parent"):
        Parents(table(tmp_path / "other.csv", [("lion", "cat")])).of(retriever.gallery)
    with pytest.raises(DatasetError, match="--levels genus: no label of the gallery"):
        Parents(fields=("genus",)).of(retriever.gallery)
