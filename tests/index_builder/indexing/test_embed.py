"""A block of images becomes a shard: in full batches, without those that have no embedding."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.indexing.blocks import Failure, PreparedBlock
from index_builder.indexing.engines import embed
from index_builder.vectors.encoder import batch_size
from model_store.encoder.contract import Embeddings
from tests.support.fakes import FakeEncoder

SIDE = 5


def block_of(
    images: NDArray[np.uint8], failures: dict[str, Failure] | None = None
) -> PreparedBlock:
    names = tuple(f"image {number}" for number in range(len(images)))
    nothing = (None,) * len(images)
    return PreparedBlock(0, names, images, nothing, names, failures or {}, (b"",) * len(images))


def some_images(n: int) -> NDArray[np.uint8]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8)


def test_an_image_has_its_own_embedding_whatever_its_batch_is_filled_up_with() -> None:
    encoder = FakeEncoder(side=SIDE)
    images = some_images(batch_size(encoder) + 2)
    shard, alone = embed(block_of(images), encoder, "digest"), encoder.encode(images)
    np.testing.assert_array_equal(shard.mean, alone.mean)
    np.testing.assert_array_equal(shard.variance, alone.variance)


class Noted(FakeEncoder):
    """Notes how many images it was given at a time."""

    def __init__(self) -> None:
        super().__init__(side=SIDE)
        self.sizes: list[int] = []

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        self.sizes.append(len(images))
        assert images.dtype == np.uint8
        return super().encode(images, at_once)


def test_every_batch_is_of_one_size() -> None:
    encoder = Noted()
    size = batch_size(encoder)
    embed(block_of(some_images(2 * size + 1)), encoder, "digest")
    assert encoder.sizes == [size] * 3


@pytest.mark.parametrize(
    ("mean", "variance", "is_sound"),
    [
        ([0, 1, 0], [1, 1, 1], True),
        ([1, 1, 1], [1, 1, 1], True),
        ([0, 0, 0], [1, 1, 1], False),
        ([np.nan, 1, 1], [1, 1, 1], False),
        ([1, 1, np.inf], [1, 1, 1], False),
        ([1, 1, 1], [1, np.nan, 1], False),
    ],
)
def test_each_number_of_an_embedding_is_finite_and_its_mean_has_a_length(
    mean: list[float], variance: list[float], *, is_sound: bool
) -> None:
    given = Embeddings(
        np.array([mean], np.float32), np.array([variance], np.float32), np.zeros((1, 1), np.float32)
    )
    shard = embed(block_of(some_images(1)), FakeEncoder(side=SIDE), "digest", lambda _: given)
    assert bool(shard.ids) == is_sound
    assert bool(shard.failures) != is_sound


class Spoilt(FakeEncoder):
    """Has no embedding for the second and the third image, of which one could not be read."""

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        found = super().encode(images, at_once)
        found.mean[1:3] = np.nan
        return found


def test_an_image_without_an_embedding_is_left_out_and_named() -> None:
    unread = Failure("CorruptImage", "It is damaged.")
    block = block_of(some_images(4), {"image 2": unread})
    shard = embed(block, Spoilt(side=SIDE), "digest")
    assert shard.ids == ("image 0", "image 3")
    assert len(shard.mean) == len(shard.variance) == 2
    assert shard.failures["image 1"].error == "EncodingFailed"
    assert shard.failures["image 2"] == unread
