"""Images become the encoder's input: which bytes are read, and what is known of each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from index_builder.datasets.images import Pixels
from index_builder.indexing.blocks import Block, Failure, Place
from index_builder.indexing.prepare import (
    BUDGET,
    budget_for,
    bytes_of,
    prepare_files,
    prepare_pixels,
    prepare_vectors,
    read_again,
    read_vector,
)
from model_store.encoder.contract import VectorInput
from model_store.errors import ImageTooLarge
from model_store.images import ImageLimits, Preprocessing
from tests.support.image_files import encoded, picture

PREPROCESSING = Preprocessing(8, 8)


def test_one_byte_more_than_allowed_is_refused(tmp_path: Path) -> None:
    """As a file, and as a part of one."""
    path = tmp_path / "a.png"
    path.write_bytes(b"0123456789")
    for place in (Place(str(path), None, 10, 0), Place(str(path), 0, 10, 0)):
        assert bytes_of(place, ImageLimits(max_bytes=10)) == b"0123456789"
        with pytest.raises(ImageTooLarge):
            bytes_of(place, ImageLimits(max_bytes=9))
    assert bytes_of(Place(str(path), 2, 3, 0), ImageLimits(max_bytes=3)) == b"234"


def test_a_pipe_that_is_called_as_images_are_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")  # a read would wait for somebody who writes
    found = prepare_files(
        Block(0, ("a",), (Place(str(tmp_path / "a.png"), None, -1, 0),)), PREPROCESSING
    )
    assert "empty" in found.failures["a"].reason


def test_an_image_is_read_again_from_where_it_lies(tmp_path: Path) -> None:
    path, other = tmp_path / "both", tmp_path / "one"
    first, second = encoded(picture(seed=1), "PNG"), encoded(picture(seed=2), "PNG")
    path.write_bytes(first + second + b"and more")
    other.write_bytes(second)
    part, whole = Place(str(path), len(first), len(second), 0), Place(str(other), None, 0, 0)
    np.testing.assert_array_equal(read_again(part, None), read_again(whole, None))


def test_all_that_an_image_may_cost_grows_with_its_pixels() -> None:
    double = budget_for(ImageLimits(max_pixels=2 * ImageLimits().max_pixels))
    assert double.clock_s == 2 * BUDGET.clock_s


def numbered(position: int, _smallest_side: int | None) -> Pixels:
    return np.full((8, 8, 3), position, np.uint8)


def test_pixels_are_read_by_their_place_in_the_collection() -> None:
    found = prepare_pixels(Block(2, ("a", "b", "c")), numbered, 128, PREPROCESSING)
    assert found.images[:, 0, 0, 0].tolist() == [128, 129, 130]
    assert found.images.dtype == np.uint8
    assert len(set(found.hashes)) == 3
    assert all(one and one[0] for one in found.thumbnails)
    assert found.previews == (b"",) * 3
    encoded = prepare_pixels(
        Block(2, ("a", "b", "c")), numbered, 128, PREPROCESSING, is_encoded=True
    )
    assert not encoded.images.any()
    assert (encoded.hashes, encoded.thumbnails) == (found.hashes, found.thumbnails)

    def large(_: int, _smallest_side: int | None) -> Pixels:
        return picture(400, 400)

    assert all(prepare_pixels(Block(0, ("a",)), large, 0, PREPROCESSING, 300).previews)


def test_a_variance_is_not_negative(tmp_path: Path) -> None:
    rows = np.array([[1, 2, 0, 0.5], [1, 2, -0.1, 0.5], [-1, -2, 0, 0.5]], np.float32)
    (tmp_path / "rows").write_bytes(rows.tobytes())
    places = tuple(Place(str(tmp_path / "rows"), 16 * row, 16, 0) for row in range(3))
    found = prepare_vectors(Block(0, ("a", "b", "c"), places), VectorInput("it", 2, True))
    assert list(found.failures) == ["b"]
    assert "variance has negative numbers" in found.failures["b"].reason


def test_vectors_have_no_picture() -> None:
    rows = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    found = prepare_pixels(
        Block(0, ("a", "b")), lambda row, _: rows[row], 0, VectorInput("made by", 4)
    )
    np.testing.assert_array_equal(found.images, rows)
    assert found.thumbnails == ((b"", ""),) * 2


@pytest.mark.parametrize(
    ("row", "is_sound"),
    [
        ([0, 1, 0, 0], True),
        ([0, 0, 1, 1], False),  # a mean of zeros
        ([1, np.nan, 1, 1], False),
        ([1, 1, 1, np.inf], False),  # the variance counts too
    ],
)
def test_a_row_points_somewhere(tmp_path: Path, row: list[float], *, is_sound: bool) -> None:
    path = tmp_path / "rows"
    np.array([[9] * 4, row], "<f4").tofile(path)
    places = (Place(str(path), 0, 16, 0), Place(str(path), 16, 16, 0))
    expected = VectorInput("made by", 2, with_variance=True)
    found = prepare_vectors(Block(0, ("first", "second"), places), expected)
    assert set(found.failures) == (set() if is_sound else {"second"})
    np.testing.assert_array_equal(found.images[0], [9] * 4)
    np.testing.assert_array_equal(found.images[1], row if is_sound else [0] * 4)
    np.testing.assert_array_equal(read_vector(places[1]), row)


def test_what_could_not_be_fetched_is_not_read(tmp_path: Path) -> None:
    """And a file that is too large may be read by another run, one that is damaged may not."""
    whole, limits = encoded(picture()), ImageLimits(max_bytes=2_000)
    contents = {"lost": whole, "damaged": whole[:300], "large": whole + b"\0" * 2_000}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    places = tuple(Place(str(tmp_path / name), None, 1, 0) for name in contents)
    lost = Failure("NotFetched", "It is not there.", passing=True)
    found = prepare_files(
        Block(0, tuple(contents), places, {"lost": lost}), PREPROCESSING, limits=limits
    )
    assert found.failures["lost"] is lost
    assert [why.passing for why in found.failures.values()] == [True, False, True]
    assert not found.images.any()
