"""Images that lie elsewhere become files while others are decoded; nothing is connected to here."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from index_builder.indexing.blocks import Block, Place
from index_builder.indexing.fetching import BLOCKS_AT_ONCE, Fetching, reader
from model_store.errors import SourceUnavailable
from model_store.images import ImageLimits
from tests.support.elsewhere import Elsewhere
from tests.support.image_files import encoded, picture

LIMITS = ImageLimits(max_bytes=1_000)
ONE, OTHER, GONE = (f"https://shop.example/{name}.png" for name in ("one", "other", "gone"))
LOCAL = Place("/photos/here.png", None, 7, 8, (0, 0, 1, 1), "local")
PLACES = (
    Place(ONE, None, 5, 9, (0, 0, 2, 2), "v1"),
    LOCAL,
    Place(ONE, None, 5, 9, (2, 0, 2, 2), "v1"),  # another part of the same picture
    Place(ONE, None, 5, 9, None, "v2"),
    Place(OTHER, None, 0, 0),
    Place(GONE, None, 0, 0),
)
BLOCK = Block(3, tuple("abcdef"), PLACES)


def test_what_is_remote_is_fetched_once_and_the_rest_stays(tmp_path: Path) -> None:
    there = Elsewhere({ONE: b"1" * 2_000, OTHER: b"22"})
    directory = tmp_path / "fetched"
    with closing(Fetching(there.as_storage(), directory, LIMITS)) as fetching:
        found = fetching.submit(BLOCK).result()
        assert there.asked == [(ONE, 1_001, "v1"), (ONE, 1_001, "v2"), (OTHER, 1_001, ""),
                               (GONE, 1_001, "")]  # fmt: skip
        assert (found.number, found.ids, found.places[1]) == (3, BLOCK.ids, LOCAL)
        paths = [Path(place.path) for place in found.places]
        assert paths[0] == paths[2] != paths[3]
        assert [len(paths[row].read_bytes()) for row in (0, 3, 4)] == [1_001, 1_001, 2]
        for place, before in zip(found.places, PLACES, strict=True):
            if before is not LOCAL:
                assert place == replace(before, path=place.path, size=0, version="")
        assert list(found.failures) == ["f"]
        failure = found.failures["f"]
        assert (failure.error, failure.passing) == ("NotFetched", True)
        assert failure.reason == "It is not there."
        assert fetching.submit(BLOCK).result() == found  # of a run that is tried again
        other = fetching.submit(replace(BLOCK, number=4)).result()
        fetching.released(BLOCK)
        assert not paths[0].exists()
        assert Path(other.places[0].path).exists()
    assert there.is_closed
    assert not directory.exists()


def test_a_block_of_this_machine_is_given_back(tmp_path: Path) -> None:
    block = Block(0, ("a",), (LOCAL,))
    with closing(Fetching(Elsewhere({}).as_storage(), tmp_path / "fetched", LIMITS)) as fetching:
        assert fetching.submit(block).result() is block
        fetching.released(block)
    assert not (tmp_path / "fetched").exists()


def test_a_source_that_is_lost_is_said_by_the_future(tmp_path: Path) -> None:
    there = Elsewhere({ONE: b"1"}, lost_at=1)
    fetching = Fetching(there.as_storage(), tmp_path / "fetched", LIMITS)
    with closing(fetching), pytest.raises(SourceUnavailable):
        fetching.submit(BLOCK).result()


class Slow(Elsewhere):
    """Gives nothing until it is let go on, and the last picture never."""

    def __init__(self, contents: dict[str, bytes], lost_at: int | None = None) -> None:
        super().__init__(contents, lost_at)
        self.go_on, self.never = threading.Event(), Future[None]()

    def fetch(self, url: str, file: IO[bytes], most: int, version: str = "") -> Future[None]:
        self.go_on.wait()
        return self.never if url == GONE else super().fetch(url, file, most, version)

    def close(self) -> None:
        self.go_on.set()
        super().close()


def test_what_has_not_begun_is_forgotten_at_the_end(tmp_path: Path) -> None:
    there = Slow({ONE: b"1"})
    fetching = Fetching(there.as_storage(), tmp_path / "fetched", LIMITS)
    one = Block(0, ("a",), (PLACES[0],))
    begun = [fetching.submit(replace(one, number=number)) for number in range(BLOCKS_AT_ONCE)]
    waits = fetching.submit(replace(one, number=9))
    late = threading.Timer(20, there.go_on.set)
    late.start()
    fetching.close()
    assert late.is_alive()  # what hangs ends with its storage
    late.cancel()
    assert [future.done() for future in begun] == [True] * BLOCKS_AT_ONCE
    assert waits.cancelled()


def test_what_was_begun_is_given_up_where_the_source_is_lost(tmp_path: Path) -> None:
    there = Slow({ONE: b"1"}, lost_at=2)
    there.go_on.set()
    fetching = Fetching(there.as_storage(), tmp_path / "fetched", LIMITS)
    with closing(fetching), pytest.raises(SourceUnavailable):
        fetching.submit(BLOCK).result()
    assert there.never.cancelled()


def test_images_are_read_again_wherever_they_lie(tmp_path: Path) -> None:
    pixels = picture(40, 30)
    (tmp_path / "a.png").write_bytes(encoded(pixels, "PNG"))
    there = Elsewhere({ONE: encoded(pixels, "PNG")})
    read = reader(there.as_storage(), LIMITS)
    for path in (ONE, str(tmp_path / "a.png")):
        place = Place(path, None, 0, 0, version="v1")
        np.testing.assert_array_equal(read(place, None), pixels)
        part = replace(place, box=(5, 6, 7, 8))
        np.testing.assert_array_equal(read(part, None), pixels[6:14, 5:12])
    assert there.asked == [(ONE, 1_000, "v1")] * 2
