"""Chooses images of a collection to hold out: they become queries instead of gallery items.

Images of a group are held out together, or they all stay in the gallery. The column ``group`` of a
manifest defines groups; exact copies are always in the same group. If this column is missing,
images with similar thumbnails (near-duplicates) form groups. Vectors have no thumbnails and
therefore no such groups. About a fifth of each label's images is held out. For example, if five
labels have two images each, one image is held out from each of two labels. These two images are a
fifth of the ten images. The queries of these labels then have only one match in the gallery. If a
label has only one image or one group, no image is held out, because the gallery would lose the
label.
"""

from __future__ import annotations

import hashlib
import io
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index_builder.datasets.groups import (
    Fingerprint,
    fingerprint,
    held_out_groups,
    pairs_among,
    pairs_of_equal,
    united,
)
from index_builder.indexing.workdir import ShardStore
from index_builder.progress import track
from model_store.gallery import Thumbnail

SHARE = 0.2
"""The share of the images of each label that is held out."""

_GROUPS = """
DROP TABLE IF EXISTS groups;
CREATE TABLE groups (position INTEGER PRIMARY KEY, number INTEGER NOT NULL);
"""

_HELD_OUT = """
DROP TABLE IF EXISTS held_out;
CREATE TABLE held_out (id TEXT PRIMARY KEY) WITHOUT ROWID;
"""

Integers = NDArray[np.int64]


def code_of(column: str) -> str:
    """Return SQL that converts the values of a column to integer codes; −1 for NULL."""
    return (
        f"CASE WHEN {column} IS NULL THEN -1"
        f" ELSE dense_rank() OVER (ORDER BY {column} NULLS FIRST) END"
    )


def chosen(
    labels: Integers, groups: Integers, contents: Integers, order: Integers
) -> NDArray[np.bool_]:
    """Return a mask (N,) of the images to hold out.

    The mask selects whole groups, and about a fifth of each label's images. A group with an
    unlabelled image is never held out. A group that consists of exact copies is not held out,
    because the copies would be the same query.

    Parameters
    ----------
    labels : (N,) label codes; −1 for an image without a label.
    groups : (N,) group codes: 0, 1, 2, … without gaps.
    contents : (N,) content codes; exact copies have the same code.
    order : (N,) indices of the images; groups are considered in this order. The place of a group in
        this order is the place of its first image.
    """
    n_images = np.bincount(groups)
    n_codes = int(contents.max(initial=0)) + 1
    n_contents = np.bincount(np.unique(groups * n_codes + contents) // n_codes)
    unlabelled = np.bincount(groups[labels < 0], minlength=len(n_images)) > 0
    eligible = ~unlabelled & ((n_contents > 1) | (n_images == 1))
    some = np.flatnonzero(eligible[groups])
    names, of_some = np.unique(labels[some], return_inverse=True)
    known, groups_of_some = np.unique(groups[some], return_inverse=True)
    n_some = np.bincount(of_some)
    n_all = np.bincount(np.searchsorted(names, labels[np.isin(labels, names)]))
    visits = groups[order][eligible[groups[order]]]
    visited, starts = np.unique(visits, return_index=True)
    taken = held_out_groups(
        of_some.astype(np.int64),
        groups_of_some.astype(np.int64),
        np.searchsorted(known, visited[np.argsort(starts)]),
        SHARE,
        n_some - np.rint((1 - SHARE) * n_some).astype(np.int64),
        n_all - 1,
    )
    result = np.zeros(len(labels), dtype=bool)
    result[some] = taken[groups_of_some]
    return result


def note_groups(connection: sqlite3.Connection, store: ShardStore, n_blocks: int) -> None:
    """Write the table ``groups``: the position and the group number of each embedded image."""
    found = connection.execute(
        f"SELECT position, {code_of('hash')}, {code_of('group_name')}"  # noqa: S608 - no value in it
        " FROM entries JOIN embedded USING (id) ORDER BY position"
    )
    positions, contents, named = np.fromiter(found, dtype=(np.int64, 3)).T
    pairs = [pairs_of_equal(contents), pairs_of_equal(named)]
    if not (named >= 0).any():
        pairs += _alike(connection, store, n_blocks, positions)
    numbers = united(len(positions), pairs)
    connection.executescript(_GROUPS)
    connection.executemany(
        "INSERT INTO groups VALUES (?, ?)", zip(positions.tolist(), numbers.tolist(), strict=True)
    )


def note_held_out(connection: sqlite3.Connection, n_most: int) -> None:
    """Write the table ``held_out``: ids of at most ``n_most`` images. Needs `note_groups`."""
    connection.executescript(_HELD_OUT)
    if not n_most:
        return
    found = connection.execute(
        f"SELECT position, {code_of('label')}, number, {code_of('hash')}"  # noqa: S608 - no value in it
        " FROM entries JOIN embedded USING (id) JOIN groups USING (position) ORDER BY position"
    )
    positions, labels, groups, contents = np.fromiter(found, dtype=(np.int64, 4)).T
    # The order of hashes is random, but the same in each run.
    order = np.argsort(contents, kind="stable")
    mask = chosen(labels, groups, contents, order[::-1])
    sizes = np.bincount(groups).tolist()
    n_taken, kept = 0, []
    for group in dict.fromkeys(groups[order][mask[order]].tolist()):
        if n_taken + sizes[group] <= n_most:
            n_taken += sizes[group]
            kept.append(group)
    taken = np.isin(groups, kept)
    connection.executemany(
        "INSERT INTO held_out SELECT id FROM entries WHERE position = ?",
        ((position,) for position in positions[taken].tolist()),
    )


def held_out(catalogue: Path) -> list[str]:
    """Return the sorted ids of the held-out images; call this after `assemble`."""
    with closing(sqlite3.connect(catalogue)) as connection:
        return [name for (name,) in connection.execute("SELECT id FROM held_out ORDER BY id")]


def _alike(
    connection: sqlite3.Connection, store: ShardStore, n_blocks: int, positions: Integers
) -> Sequence[Integers]:
    """Return pairs of images with equal thumbnails, and pairs of near-duplicates."""
    known: list[Fingerprint | None] = [None] * len(positions)
    pixels = np.full(len(positions), -1, dtype=np.int64)
    codes: dict[bytes, int] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow releases the GIL
        for shard in track(store.all(n_blocks), "near-duplicates", n_blocks):
            marks = ",".join("?" * len(shard.ids))
            rows = connection.execute(
                f"SELECT id, position FROM entries WHERE id IN ({marks})",  # noqa: S608
                shard.ids,
            )
            position_of = dict(rows.fetchall())
            places = np.searchsorted(positions, [position_of[name] for name in shard.ids]).tolist()
            made = pool.map(_fingerprint, shard.thumbnails)
            for place, thumbnail, one in zip(places, shard.thumbnails, made, strict=True):
                if one is None:
                    continue
                known[place] = one
                # The thumbnail of a small picture is lossless, so equal thumbnails mean equal
                # pictures.
                pixels[place] = codes.setdefault(
                    hashlib.sha256(thumbnail.data).digest(), len(codes)
                )
    return [pairs_of_equal(pixels), pairs_among(known)]


def _fingerprint(thumbnail: Thumbnail) -> Fingerprint | None:
    """Return the fingerprint of a thumbnail; None for an empty thumbnail."""
    if not thumbnail.data:
        return None
    with Image.open(io.BytesIO(thumbnail.data)) as image:
        return fingerprint(np.asarray(image.convert("RGB")))
