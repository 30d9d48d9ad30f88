"""Shards: whole, or made again."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index_builder.indexing.blocks import Block, Failure, Place
from index_builder.indexing.workdir import Shard, ShardStore
from model_store.gallery import Thumbnail

BLOCK = Block(3, ("a", "ü", "c"), tuple(Place(f"/{n}.png", None, n, 7) for n in range(3)))
DIGEST = BLOCK.digest("recipe")


def shard(**failures: Failure) -> Shard:
    values = np.random.default_rng(0).standard_normal((2, 2, 5)).astype(np.float32)
    thumbnails = (Thumbnail(b"first", "image/png"), Thumbnail(b"", "image/jpeg"))
    hashes, previews = ("h1", "h2"), (b"", b"large")
    return Shard(
        3,
        DIGEST,
        ("a", "ü"),
        values[0],
        values[1],
        thumbnails,
        hashes,
        failures,
        previews,
        losses={"ü": ["a page is missing"]},
    )


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    return ShardStore(tmp_path)


def test_what_was_written_is_read(store: ShardStore) -> None:
    wanted = shard(c=Failure("CorruptImage", "It is damaged."))
    store.write(wanted)
    found = store.find(BLOCK, DIGEST)
    assert found is not None
    assert (found.ids, found.thumbnails, found.hashes, found.previews) == (
        wanted.ids,
        wanted.thumbnails,
        wanted.hashes,
        wanted.previews,
    )
    np.testing.assert_array_equal(found.mean, wanted.mean)
    np.testing.assert_array_equal(found.variance, wanted.variance)
    assert found.failures == wanted.failures
    assert found.losses == wanted.losses
    mean, variance, pictures = store.gather(found.positions[::-1], wanted.mean.shape[1])
    np.testing.assert_array_equal(mean, wanted.mean[::-1])
    np.testing.assert_array_equal(variance, wanted.variance[::-1])
    assert pictures == [(b"", b"large"), (b"first", b"")]


def test_the_same_content_is_the_same_bytes() -> None:
    one, other = (
        Failure("CorruptImage", reason) for reason in ("It is damaged.", "It is cut off.")
    )
    assert shard(c=one, d=other).to_bytes() == shard(d=other, c=one).to_bytes()


def test_a_shard_of_before_there_were_previews_is_read() -> None:
    content = shard().to_bytes()[32:]
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    del header["preview_sizes"]
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + content[8 + length :].removesuffix(b"large")
    found = Shard.from_bytes(hashlib.sha256(content).digest() + content)
    assert found.previews == (b"", b"")
    assert all(one.preview == one.preview_end for one in found.positions)
    assert found.thumbnails == shard().thumbnails


def test_every_byte_counts(store: ShardStore, tmp_path: Path) -> None:
    store.write(shard())
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        assert store.find(BLOCK, DIGEST) is None
    for length in (0, 10, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert store.find(BLOCK, DIGEST) is None


@pytest.mark.parametrize(
    "other",
    [
        Block(3, ("a", "ü", "d"), BLOCK.places),
        Block(3, BLOCK.ids, (*BLOCK.places[:2], Place("/2.png", None, 2, 8))),
        Block(3, BLOCK.ids, (*BLOCK.places[:2], Place("/2.png", None, 1, 7))),
        Block(3, BLOCK.ids, (*BLOCK.places[:2], Place("/2.png", 5, 2, 7))),
        replace(BLOCK, failures={"a": Failure("InvalidLabel", "The label has a line break.")}),
    ],
)
def test_other_images_have_another_shard(store: ShardStore, other: Block) -> None:
    store.write(shard())
    assert store.find(other, other.digest("recipe")) is None
    assert store.find(BLOCK, BLOCK.digest("other recipe")) is None


def test_an_image_of_the_web_is_known_by_its_version_or_else_its_url() -> None:
    url = "https://shop.example/1.png"
    known = Place(url, None, 0, 0).identity()
    assert Place(f"{url}?X-Amz-Signature=1", None, 0, 0).identity() == known
    assert Place(url.replace("1", "2"), None, 0, 0).identity() != known
    versions = [Place(one, None, 0, 0, None, "v1").identity() for one in (url, "s3://a/1.png")]
    assert versions[0] == versions[1] != known


def test_a_moved_collection_is_the_same(store: ShardStore) -> None:
    moved = Block(3, BLOCK.ids, tuple(Place("/to" + p.path, None, p.size, 7) for p in BLOCK.places))
    store.write(shard())
    assert store.find(moved, moved.digest("recipe")) is not None


def test_what_could_not_be_read_for_once_is_tried_again(store: ShardStore) -> None:
    store.write(shard(c=Failure("Unreadable", "Stale file handle.", passing=True)))
    assert store.find(BLOCK, DIGEST) is None
