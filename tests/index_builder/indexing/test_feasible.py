"""What would fail after hours of embedding is refused before; which images are put aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from index_builder.calibration.fit import MIN_QUERIES
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets.image_files import LeftOut, LeftOutFile, Reason
from index_builder.indexing.blocks import BLOCK, BLOCK_OF_VECTORS, NONE, Entry, Place
from index_builder.indexing.calibrate import _images, plan_of
from index_builder.indexing.catalogue import (
    Catalogue,
    Contents,
    held_out,
    note_groups,
    note_held_out,
)
from index_builder.indexing.collection import Indexing, _require_writable
from index_builder.indexing.own_queries import _truth
from index_builder.indexing.parents import Parents
from index_builder.indexing.sources.opening import open_vectors
from index_builder.indexing.sources.places import Source
from index_builder.indexing.workdir import ShardStore
from model_store.errors import CalibrationError, ConfigError, DatasetError, OutputError
from model_store.gallery import Gallery, IndexSettings

PLACE = Place("/a.png", None, 1, 0)

PROMISES = CalibrationConfig()


class Listed:
    """A source of so many images."""

    def __init__(self, n: int) -> None:
        self.n = n

    def entries(self, _scratch: Path, _left_out: LeftOut, /) -> Iterator[Entry]:
        return (Entry(str(number), PLACE) for number in range(self.n))


def indexing(path: Path, source: Source) -> Indexing:
    return Indexing(
        source, path / "encoder.onnx", "a", "b", path / "run", path / "bundles", NONE,
        resume=True, n_workers=1,
    )  # fmt: skip


@pytest.fixture
def vectors(tmp_path: Path) -> Indexing:
    np.save(tmp_path / "vectors.npy", np.ones((3, 2), np.float32))
    return indexing(tmp_path, open_vectors(tmp_path / "vectors.npy", None))


@pytest.fixture
def images(tmp_path: Path) -> Indexing:
    return indexing(tmp_path, Listed(3))


def require(run: Indexing, **changes: Any) -> None:
    contents = Contents(3, 0, 0, 0, 0)
    catalogue = cast("Catalogue", SimpleNamespace(contents=contents, n_different=lambda: 3))
    replace(run, **changes).require_feasible(catalogue, 2)


def test_vectors_and_milvus_take_no_previews(images: Indexing, vectors: Indexing) -> None:
    previews = IndexSettings(preview_side=500)
    require(images, index=previews)
    require(images, database_uri="http://milvus.example")
    require(vectors)
    require(images, engine="ray")
    with pytest.raises(ConfigError, match="needs images, not vectors"):
        require(vectors, index=previews)
    with pytest.raises(ConfigError, match="Milvus stores no previews"):
        require(images, index=previews, database_uri="http://milvus.example")
    with pytest.raises(ConfigError, match="takes images, and the source holds vectors"):
        require(vectors, engine="ray")


def test_an_index_and_parents_and_queries_are_looked_at_before(
    images: Indexing, vectors: Indexing, tmp_path: Path
) -> None:
    small = IndexSettings("flat", 1)
    with pytest.raises(ConfigError):
        require(images, index=small)
    require(images, index=small, database_uri="http://milvus.example")  # which plans it itself
    with pytest.raises(DatasetError, match="does not exist"):
        require(images, parents=Parents(tmp_path / "gone.csv"))
    with pytest.raises(CalibrationError, match="and the collection has 3"):
        require(images, calibrate=True)
    with pytest.raises(CalibrationError, match="Vectors without labels"):
        require(vectors, calibrate=True)


@pytest.mark.parametrize(
    ("others", "said"), [([], r"add images\.$"), (["a.heic"], r"1: 1 \.heic \(a\.heic")]
)
def test_a_source_of_nothing_is_refused(tmp_path: Path, others: list[str], said: str) -> None:
    run = indexing(tmp_path, Listed(0))
    files = [LeftOutFile(name, Reason.other_format, ".heic") for name in others]
    with pytest.raises(DatasetError, match=said):
        run.catalogued(tmp_path / "catalogue.sqlite", tmp_path, LeftOut(files))


def test_vectors_come_in_larger_blocks(images: Indexing, vectors: Indexing, tmp_path: Path) -> None:
    for run, block in ((images, BLOCK), (vectors, BLOCK_OF_VECTORS)):
        with closing(run.catalogued(tmp_path / "c.sqlite", tmp_path, LeftOut())) as catalogue:
            assert (catalogue.block, catalogue.contents.n_images) == (block, 3)


def test_a_directory_is_tried_before_anything_is_embedded(tmp_path: Path) -> None:
    for _ in range(2):
        _require_writable(tmp_path / "new" / "bundles")
    assert not list((tmp_path / "new" / "bundles").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="the directory of bundles"):
        _require_writable(tmp_path / "file" / "bundles")


@pytest.mark.parametrize(
    ("contents", "held_out", "of_images", "said"),
    [
        ((MIN_QUERIES, 0, 0, 0), (0, 0), True, None),
        ((MIN_QUERIES, 0, 0, 1), (0, 0), True, rf"and the collection has {MIN_QUERIES - 1}"),
        ((MIN_QUERIES - 1, 0, 0, 0), (0, 0), True, rf"and the collection has {MIN_QUERIES - 1}"),
        ((1_000, 0, 0, 0), (0, 0), False, "Vectors without labels"),
        ((1_000, 7, 1, 0), (1_000, 1), True, "All 7 labelled images have the same label"),
        ((1_000, 1_000, 2, 0), (MIN_QUERIES, 2), True, None),
        ((1_000, 1_000, 2, 0), (MIN_QUERIES, 2), False, None),
        ((1_000, 1_000, 2, 0), (MIN_QUERIES - 1, 2), True, rf"is {MIN_QUERIES - 1} queries"),
        ((1_000, 1_000, 2, 0), (MIN_QUERIES, 1), True, "queries would have the same label"),
        ((1_000, 7, 1, 0), (1_000, 1), False, "All 7 labelled images have the same label"),
        ((1_000, 1_000, 2, 0), (MIN_QUERIES - 1, 2), False, rf"is {MIN_QUERIES - 1} queries"),
        ((1_000, 1_000, 2, 0), (MIN_QUERIES, 1), False, "queries would have the same label"),
    ],
)
def test_there_are_enough_queries(
    contents: tuple[int, int, int, int],
    held_out: tuple[int, int],
    said: str | None,
    *,
    of_images: bool,
) -> None:
    found: Any = SimpleNamespace(
        contents=Contents(*contents, 0),
        n_to_hold_out=lambda: held_out[0],
        n_labels_to_hold_out=lambda: held_out[1],
        n_different=lambda: contents[0] - contents[3],
    )
    if said is None:
        plan_of(cast("Catalogue", found), PROMISES, of_images=of_images)
    else:
        with pytest.raises(CalibrationError, match=said) as refused:
            plan_of(cast("Catalogue", found), PROMISES, of_images=of_images)
        assert of_images or "--no-labels" not in str(refused.value), "it is refused for vectors"


def test_images_of_a_catalogue_are_read_where_they_lie() -> None:
    rows = [
        ("a", "owl", 3, "camera", "00ff", "/a.png", None, 1, 2, None, ""),
        ("b", None, 4, None, "11ee", "/b.png", 5, 6, 7, "[1, 2, 3, 4]", "v1"),
    ]
    asked = []

    def read(place: Place, smallest_side: int | None) -> Any:
        asked.append((place, smallest_side))
        if place.path == "/b.png":
            raise FileNotFoundError(2, "No such file")
        return np.ones(3)

    found = _images(rows, read)
    assert (found.ids, found.labels, found.groups) == (("a", "b"), ("owl", "b"), ("3", "4"))
    assert found.sources == ("camera", "")
    assert found.contents() == [b"\x00\xff", b"\x11\xee"]
    assert found.pixels(0, 7).tolist() == [1, 1, 1]
    with pytest.raises(DatasetError, match=r"'b' was indexed.*\(No such file\)"):
        found.pixels(1)
    assert asked == [
        (Place("/a.png", None, 1, 2), 7),
        (Place("/b.png", 5, 6, 7, (1, 2, 3, 4), "v1"), None),
    ]
    assert _images([rows[1]], read).sources is None


def test_the_truth_of_a_query_is_its_item_or_its_label() -> None:
    items = {"i": SimpleNamespace(id="i", label="owl")}
    gallery: Any = SimpleNamespace(labels=["owl"], item=items.__getitem__)
    for entry, label in (
        (Entry("q", PLACE, "fox", {"item": "i"}), "owl"),
        (Entry("q", PLACE, "fox"), "fox"),
        (Entry("q", PLACE), "\0"),
    ):
        assert _truth(entry, cast("Gallery", gallery)) == label
    items["bare"] = SimpleNamespace(id="bare", label=None)
    shows = Entry("q", PLACE, None, {"item": "bare"}, "line 3")
    with pytest.raises(DatasetError, match=r"line 3: the query shows the item 'bare', which has"):
        _truth(shows, cast("Gallery", gallery))
    gallery.labels = []
    assert _truth(shows, cast("Gallery", gallery)) == "bare"


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """Fifty images of two labels in groups of two, of which the last could not be embedded."""
    path = tmp_path / "catalogue.sqlite"
    given = [Entry(f"{n:02d}", PLACE, "ab"[n % 4 // 2], group=f"g{n // 2:02d}") for n in range(50)]
    Catalogue(path, given).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE embedded (id TEXT PRIMARY KEY, hash TEXT)")
        hashes = [(f"{n:02d}", f"hash {n:02d}") for n in range(49)]
        hashes[5] = ("05", "hash 20")  # the same picture, in another group
        connection.executemany("INSERT INTO embedded VALUES (?, ?)", hashes)
        yield path, connection


def test_whole_groups_are_put_aside_up_to_a_number(
    embedded: tuple[Path, sqlite3.Connection], tmp_path: Path
) -> None:
    path, connection = embedded
    note_groups(connection, ShardStore(tmp_path), 1)  # where there are groups no picture is read
    found = connection.execute("SELECT position, number FROM groups").fetchall()
    assert [position for position, _ in found] == list(range(49))
    groups: dict[int, list[int]] = {}
    for position, number in found:
        groups.setdefault(number, []).append(position)
    assert sorted(groups.values()) == sorted(
        [[4, 5, 20, 21], *([n, n + 1] for n in range(0, 48, 2) if n not in {4, 20}), [48]]
    )
    for n_most, n_taken in ((100, 11), (11, 11), (10, 10), (9, 9), (2, 2), (1, 1), (0, 0)):
        note_held_out(connection, n_most)
        connection.commit()
        names = held_out(path)
        assert names == sorted(names)
        assert len(names) == n_taken
        taken = {int(name) for name in names}
        assert all(taken >= set(group) or not taken & set(group) for group in groups.values())


def test_pictures_are_compared_where_nobody_names_a_group(
    embedded: tuple[Path, sqlite3.Connection], tmp_path: Path
) -> None:
    _, connection = embedded
    connection.execute("UPDATE entries SET group_name = NULL WHERE id > '00'")
    note_groups(connection, ShardStore(tmp_path), 1)  # one is named
    connection.execute("UPDATE entries SET group_name = NULL")
    with pytest.raises(FileNotFoundError):
        note_groups(connection, ShardStore(tmp_path), 1)


def test_images_are_put_aside_by_their_hashes(
    embedded: tuple[Path, sqlite3.Connection], tmp_path: Path
) -> None:
    """A fifth of each label's, of the last hashes; of these only so many, the first of them."""
    path, connection = embedded
    connection.execute("UPDATE entries SET group_name = id, label = iif(id < '25', 'a', 'b')")
    connection.execute("UPDATE embedded SET hash = id")
    note_groups(connection, ShardStore(tmp_path), 0)
    chosen = [f"{n:02d}" for n in (*range(20, 25), *range(44, 49))]
    for n_most in (100, 10, 7, 1):
        note_held_out(connection, n_most)
        connection.commit()
        assert held_out(path) == chosen[:n_most]
