"""The reports of a run, and what a dry run says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing import dry_run
from index_builder.indexing.blocks import Block, Entry, Failure, Place, PreparedBlock
from index_builder.indexing.catalogue import Catalogue, Contents
from index_builder.indexing.collection import (
    IndexingResult,
    write_duplicates,
    write_quarantine,
    write_summary,
)
from index_builder.indexing.dry_run import DryRun
from index_builder.indexing.workdir import Work
from index_builder.vectors.encoder import batch_size
from model_store.encoder.contract import Embeddings
from tests.support.collection_files import lines
from tests.support.fakes import FakeEncoder


def catalogue_of(path: Path, n: int, block: int = 64) -> Catalogue:
    place = Place("/a.png", None, 1, 0)
    return Catalogue(
        path, (Entry(f"{n - row:04d}", place, origin=f"line {row}") for row in range(n)), block
    )


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A run over four images, two of them copies of a third."""
    work = Work(tmp_path)
    with closing(catalogue_of(work.catalogue, 4)) as catalogue:
        connection = catalogue._connection
        connection.executescript(
            "CREATE TABLE embedded (id TEXT, hash TEXT); INSERT INTO embedded"
            " VALUES ('0004', 'h1'), ('0003', 'h1'), ('0002', 'h2'), ('0001', 'h1');"
        )
        yield work


def left_out(name: str) -> LeftOut:
    found = LeftOut()
    assert not found.takes(name, bytes)
    return found


def test_images_that_are_left_out_stand_in_the_order_of_the_source(work: Work) -> None:
    failures = {name: Failure("CorruptImage", f"why {name}") for name in ("0001", "0004", "0002")}
    write_quarantine(work, failures)
    assert {line["error"] for line in lines(work.quarantine)} == {"CorruptImage"}
    assert [(line["id"], line["source"], line["reason"]) for line in lines(work.quarantine)] == [
        ("0004", "line 0", "why 0004"),
        ("0002", "line 2", "why 0002"),
        ("0001", "line 3", "why 0001"),
    ]
    write_quarantine(work, {}, left_out("ü.heic"))
    [line] = lines(work.quarantine)
    assert (line["id"], line["source"], line["error"]) == ("ü.heic", "ü.heic", "UnsupportedImage")
    assert line["reason"].startswith("Vouch reads JPEG, PNG")
    assert "ü.heic" in work.quarantine.read_text(encoding="utf-8")


def test_copies_are_listed_and_counted(work: Work) -> None:
    assert write_duplicates(work) == 2
    assert lines(work.duplicates) == [{"sha256": "h1", "ids": ["0001", "0003", "0004"]}]
    write_summary(work, {"state": "published"})
    assert json.loads(work.summary.read_text(encoding="utf-8")) == {"state": "published"}


def test_an_outcome_names_the_reports_that_say_something(tmp_path: Path) -> None:
    nothing = dict(IndexingResult(tmp_path, 1_000, 0, 0, 0, LeftOut()).rows(tmp_path))
    assert nothing["items"] == "1,000"
    for name in ("unreadable", "of other formats", "copies of others"):
        assert nothing[name] == "0"
    some = dict(IndexingResult(tmp_path, 1, 7, 2, 3, left_out("a.heic")).rows(tmp_path))
    assert some["embedded by an earlier run"] == "7"
    assert some["unreadable"] == f"2: {Work(tmp_path).quarantine}"
    failures = {"a": Failure("CorruptImage", ""), "b": Failure("UnsupportedImage", "")}
    bad = dict(IndexingResult(tmp_path, 1, 7, 2, 3, LeftOut(), failures=failures).rows(tmp_path))
    assert bad["unreadable"].startswith("2 (1 CorruptImage, 1 UnsupportedImage): ")
    assert some["of other formats"] == f"1: 1 .heic; see {Work(tmp_path).quarantine}"
    assert some["copies of others"] == f"3: {Work(tmp_path).duplicates}"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 min 00 s"),
        (59.6, "1 min 00 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h 00 min"),
        (7_380, "2 h 03 min"),
    ],
)
def test_a_dry_run_says_how_long_it_takes(seconds: float, said: str) -> None:
    contents = Contents(2_000, 1_500, 12, 3, 3 * 2**20)
    unreadable = Counter({"CorruptImage": 1, "ImageTooLarge": 2})
    found = DryRun(contents, LeftOut(), 64, unreadable, seconds, 2**20, 5 * 2**20)
    assert found.rows() == [
        ("images", "2,000 (3.0 MiB)"),
        ("labelled", "1,500, 12 labels"),
        ("of other formats", "0"),
        ("missing", "3"),
        ("unreadable, of 64 tried", "2 ImageTooLarge, 1 CorruptImage"),
        ("time, about", said),
        ("written, about", "1.0 MiB"),
        ("free on the disk", "5.0 MiB"),
    ]
    sound = DryRun(contents, left_out("a.heic"), 9, Counter(), 1, 1, 1)
    assert dict(sound.rows())["unreadable, of 9 tried"] == "none"
    assert dict(sound.rows())["of other formats"] == "1: 1 .heic"


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 127, 128, 129, 200, 1000])
@pytest.mark.parametrize("block", [64, 50])
def test_the_images_that_it_tries_are_evenly_spread(tmp_path: Path, n: int, block: int) -> None:
    with closing(catalogue_of(tmp_path / "catalogue.sqlite", n, block)) as catalogue:
        found = dry_run._sample(catalogue)
    rows = list(range(0, n, max(1, n // 64)))[:64]
    assert found.ids == tuple(f"{n - row:04d}" for row in rows)
    assert len(found.places) == len(found.ids)
    assert found.number == 0


@pytest.mark.parametrize("n", [3, 100])
def test_the_faster_of_two_batches_tells_how_long_an_image_takes(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    times, encoder, sizes = iter([10.0, 18.0, 20.0, 26.0]), FakeEncoder(), []
    monkeypatch.setattr("index_builder.indexing.dry_run.time.perf_counter", lambda: next(times))

    def encode(images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        sizes.append(len(images))
        return FakeEncoder.encode(encoder, images, at_once)

    monkeypatch.setattr(encoder, "encode", encode)
    images, nothing = np.zeros((n, 5, 5, 3), np.uint8), (("",) * n)
    prepared = PreparedBlock(
        0, tuple(map(str, range(n))), images, ((b"", ""),) * n, nothing, {}, (b"",) * n
    )
    assert dry_run._seconds_of_encoding(prepared, encoder) == 6 / batch_size(encoder)
    assert sizes == [batch_size(encoder)] * 2


def test_the_room_is_that_of_the_nearest_directory_that_is_there(tmp_path: Path) -> None:
    assert dry_run._existing(tmp_path / "not" / "there") == tmp_path
    assert dry_run._existing(tmp_path) == tmp_path
    assert dry_run._existing(Path("not there")) == Path()


def test_a_block_is_cut_into_images(tmp_path: Path) -> None:
    places, why = tuple(Place(f"/{name}", None, 1, 0) for name in "ab"), Failure("a", "b")
    first, second = Block(4, ("a", "b"), places, {"b": why}).singles()
    assert (first.number, first.ids, first.places, first.failures) == (4, ("a",), places[:1], {})
    assert (second.ids, second.failures) == (("b",), {"b": why})
