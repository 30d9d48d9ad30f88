from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from index_builder.datasets.corruption import corrupted, views
from index_builder.datasets.images import LabelledImages, Pixels, from_files, joined
from index_builder.datasets.small_images import digits
from index_builder.vectors.images import AT_ONCE, ImageVectors, Vector, VectorFile
from model_store.errors import OutputError
from model_store.images import Preprocessing

PREPROCESSING = Preprocessing(6, 5)


class Network:
    """Counts images that are not black, and mixes their pixels."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.n_images = 0
        self._lock = threading.Lock()

    def __call__(self, images: Pixels) -> Vector:
        with self._lock:
            self.batches.append(len(images))
            self.n_images += int(images.any(axis=(1, 2, 3)).sum())
        weights = np.random.default_rng(1).standard_normal((6 * 5 * 3, 4)).astype(np.float32)
        return np.stack([image.reshape(-1) @ weights for image in images.astype(np.float32)])


def of(vectors: ImageVectors, images: LabelledImages) -> Vector:
    found = list(vectors.of(images, "test"))
    np.testing.assert_array_equal(
        np.concatenate([positions for positions, _ in found]), np.arange(len(images))
    )
    return np.concatenate([some for _, some in found])


def vectors_of(network: Network, path: Path | None = None, batch: int = 8) -> ImageVectors:
    known = None if path is None else VectorFile(path)
    return ImageVectors(network, "network", PREPROCESSING, batch, known)


def test_an_image_is_computed_once_whoever_asks_and_in_whatever_order(tmp_path: Path) -> None:
    images, network = digits().at(range(AT_ONCE + 75)), Network()
    expected = network(images.prepared(PREPROCESSING))
    once = Network()
    vectors = vectors_of(once, tmp_path / "vectors.sqlite")
    np.testing.assert_array_equal(of(vectors, images), expected)
    assert once.n_images == len(images)
    assert set(once.batches) == {8}  # the last ones filled up
    order = np.random.default_rng(0).permutation(len(images))
    again = vectors_of(once, tmp_path / "vectors.sqlite")
    np.testing.assert_array_equal(of(again, images.at(order)), expected[order])
    contents = images.at(order[:20]).contents()
    prepared = np.zeros((20, 6, 5, 3), np.uint8)  # nobody looks at it
    np.testing.assert_array_equal(again.of_prepared(prepared, contents), expected[order[:20]])
    assert once.n_images == len(images)


def test_only_what_is_not_known_is_decoded(tmp_path: Path) -> None:
    network, decoded = Network(), []
    vectors = vectors_of(network, tmp_path / "vectors.sqlite")
    of(vectors, digits().at(range(0, 40, 2)))
    some = digits().at(range(40))
    list(vectors.of(some, "test", lambda position, _: decoded.append(position)))
    assert sorted(decoded) == list(range(1, 40, 2))


def test_without_contents_or_a_file_everything_is_computed(tmp_path: Path) -> None:
    images, network = digits().at(range(30)), Network()
    unnamed = replace(images, content=None)
    vectors = vectors_of(network, tmp_path / "vectors.sqlite")
    first, second = of(vectors, unnamed), of(vectors, unnamed)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(of(vectors_of(network), images), first)
    assert network.n_images == 90


def test_nothing_to_embed_gives_nothing() -> None:
    assert list(vectors_of(Network()).of(digits().at([]), "test")) == []


@pytest.fixture
def files(tmp_path: Path) -> LabelledImages:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 8, 3), dtype=np.uint8)
    names = ["a.png", "b.png", "copy-of-a.png"]
    for name, image in zip(names, [pixels[0], pixels[1], pixels[0]], strict=True):
        Image.fromarray(image).save(tmp_path / name)
    return from_files(tmp_path, names, names)


def contents(images: LabelledImages) -> Sequence[bytes]:
    found = images.contents()
    assert found is not None
    return found


def test_copies_are_the_same_image_and_others_are_not(files: LabelledImages) -> None:
    a, b, copy = contents(files)
    assert a == copy != b
    assert contents(files.at([2, 1])) == [copy, b]
    assert contents(joined(files.at([1]), digits().at([4, 3]), files))[0] == b
    assert contents(joined(digits(), files))[-3:] == [a, b, copy]
    assert len(set(contents(digits()))) > 1700


def test_what_was_made_of_an_image_is_another_image(files: LabelledImages) -> None:
    made = [views(files, 1), views(files, 2), corrupted(files, 1), corrupted(files, 2)]
    named = [one for images in made for one in contents(images)]
    assert len({*named, *contents(files)}) == len(named) + 2
    again = contents(views(files, 1).at([2, 0]))
    assert again == [contents(made[0])[2], contents(made[0])[0]]
    for images in made:  # equal contents, equal pixels
        for position, name in enumerate(contents(images)):
            same = named.index(name)
            one, other = images.pixels(position), made[same // 3].pixels(same % 3)
            np.testing.assert_array_equal(one, other)


class FullAtCommit(sqlite3.Connection):
    """A connection to a file whose disk is full when a transaction ends."""

    def __exit__(self, *_: object) -> Literal[False]:
        self.rollback()
        raise sqlite3.OperationalError("database or disk is full")


def test_a_disk_that_is_full_at_the_end_of_a_transaction_names_the_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullAtCommit))
    file = VectorFile(tmp_path / "vectors.sqlite")
    with pytest.raises(OutputError, match=r"Cannot write the vectors in .*disk is full"):
        file.write("network", [b"1"], np.zeros((1, 3), np.float32))
    file.close()
