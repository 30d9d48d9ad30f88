"""What would fail after hours of embedding is refused before; which images are put aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
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
    note_groups,
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
    with pytest.raises(CalibrationError, match="There are 3 queries to calibrate with"):
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


@pytest.mark.parametrize("of_images", [True, False])
@pytest.mark.parametrize(
    ("labels", "groups", "said"),
    [
        ([0, 1] * 25, range(50), None),
        ([0, 1] * 25, [0, *range(49)], None),  # two items of one group, with different labels
        ([0, 1] * 24, range(48), "There are 48 queries"),
        ([0, 1] * 30, [0, 1] * 30, "There are 0 queries"),  # copies only
        ([0, 1] * 25 + [-1], [*range(50), 0], "There are 49 queries"),
        ([0] * 1_000, range(1_000), "has 1 label; at least two"),
        ([0] * 999 + [1], range(1_000), "0 calibration queries without a match"),
    ],
)
def test_there_are_enough_queries_or_the_reason_is_named(
    labels: list[int], groups: Sequence[int], said: str | None, *, of_images: bool
) -> None:
    found: Any = SimpleNamespace(
        contents=Contents(len(labels), len(labels), 2, 0, 0),
        labels_and_groups=lambda: (np.array(labels), np.array(groups)),
        largest_label=lambda: "owl",
    )
    if said is None:
        plan = plan_of(cast("Catalogue", found), PROMISES, of_images=of_images)
        assert plan.n_matched == (50, 0)
    else:
        with pytest.raises(CalibrationError, match=said) as refused:
            plan_of(cast("Catalogue", found), PROMISES, of_images=of_images)
        assert str(refused.value).endswith("Or index without --calibrate.")
        assert of_images or "--no-labels" not in str(refused.value), "it is refused for vectors"


@pytest.mark.parametrize(
    ("n_different", "of_images", "said"),
    [
        (MIN_QUERIES, True, None),
        (MIN_QUERIES - 1, True, rf"There are {MIN_QUERIES - 1} queries"),
        (1_000, False, "Vectors without labels"),
    ],
)
def test_images_without_labels_give_views(
    n_different: int, said: str | None, *, of_images: bool
) -> None:
    contents = Contents(1_000, 0, 0, 0, 0)
    found: Any = SimpleNamespace(contents=contents, n_different=lambda: n_different)
    if said is None:
        plan = plan_of(cast("Catalogue", found), PROMISES, of_images=of_images)
        assert plan.lines()[1] == "queries with a match: 50 to calibrate (augmented views of items)"
    else:
        with pytest.raises(CalibrationError, match=said):
            plan_of(cast("Catalogue", found), PROMISES, of_images=of_images)


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
def embedded(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Fifty images of two labels in groups of two, of which the last could not be embedded."""
    path = tmp_path / "catalogue.sqlite"
    given = [Entry(f"{n:02d}", PLACE, "ab"[n % 4 // 2], group=f"g{n // 2:02d}") for n in range(50)]
    Catalogue(path, given).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE embedded (id TEXT PRIMARY KEY, hash TEXT)")
        hashes = [(f"{n:02d}", f"hash {n:02d}") for n in range(49)]
        hashes[5] = ("05", "hash 20")  # the same picture, in another group
        connection.executemany("INSERT INTO embedded VALUES (?, ?)", hashes)
        yield connection


def test_groups_are_those_of_the_manifest_joined_by_copies(
    embedded: sqlite3.Connection, tmp_path: Path
) -> None:
    note_groups(embedded, ShardStore(tmp_path), 0)
    found = embedded.execute("SELECT position, number FROM groups").fetchall()
    assert [position for position, _ in found] == list(range(49))
    groups: dict[int, list[int]] = {}
    for position, number in found:
        groups.setdefault(number, []).append(position)
    assert sorted(groups.values()) == sorted(
        [[4, 5, 20, 21], *([n, n + 1] for n in range(0, 48, 2) if n not in {4, 20}), [48]]
    )


def test_pictures_are_compared_also_where_groups_are_named(
    embedded: sqlite3.Connection, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        note_groups(embedded, ShardStore(tmp_path), 1)  # the pictures are in the shards
