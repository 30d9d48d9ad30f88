"""Shards to gallery files: sorted by id, with one block of images in memory at a time."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from index_builder.configuration.milvus import milvus_access
from index_builder.indexing.holding_out import note_groups, note_held_out
from index_builder.indexing.shards import ShardStore
from index_builder.indexing.workdir import Work
from index_builder.progress import track
from model_store.encoder.contract import Embeddings
from model_store.errors import DatasetError
from model_store.gallery import (
    IndexSettings,
    NewItem,
    Thumbnail,
    write_faiss_gallery,
    write_milvus_gallery,
)

_SCHEMA = """
CREATE TABLE embedded (
  id TEXT PRIMARY KEY, shard INTEGER NOT NULL, place INTEGER NOT NULL, hash TEXT NOT NULL,
  media_type TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE items (
  row INTEGER PRIMARY KEY, id TEXT NOT NULL, label TEXT, metadata TEXT NOT NULL,
  shard INTEGER NOT NULL, place INTEGER NOT NULL, media_type TEXT NOT NULL,
  start INTEGER NOT NULL, stop INTEGER NOT NULL
);
"""

_SORTED = """
INSERT INTO items
SELECT row_number() OVER (ORDER BY id) - 1, id, label, metadata, shard, place, media_type,
  start, stop
FROM entries JOIN embedded USING (id) WHERE id NOT IN (SELECT id FROM held_out) ORDER BY id
"""

_CHUNK = 256
"""Items that are fetched together by who reads them in order."""


def assemble(
    work: Work,
    n_blocks: int,
    dim: int,
    fingerprint: str,
    settings: IndexSettings,
    milvus_uri: str | None = None,
    n_held_out: int = 0,
) -> int:
    """Write the gallery of all shards into ``work.bundle``; returns the number of its items.

    Parameters
    ----------
    dim : D, of the encoder.
    fingerprint : of the encoder.
    settings : of the index.
    milvus_uri : of the Milvus to put the gallery into; None for files.
    n_held_out : images with a label that are kept out of it at most, about a fifth of each label's,
        see `index_builder.indexing.holding_out`.

    Raises
    ------
    DatasetError : no image could be embedded, or one is more than Milvus takes.
    GalleryUnavailable : Milvus does not answer.
    """
    for directory in (work.assembly, work.bundle):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    connection = sqlite3.connect(work.catalogue)
    try:
        n_items = _sorted_items(connection, work.store, n_blocks, n_held_out)
        if n_items == 0:
            raise DatasetError(
                f"None of the images could be embedded; {work.quarantine} says why of each."
            )
        mean, variance = (
            _array(work.assembly / name, (n_items, dim)) for name in ("mean.npy", "variance.npy")
        )
        for shard in track(work.store.all(n_blocks), "assembling", n_blocks):
            rows, places = _rows_of(connection, shard.number)
            mean[rows], variance[rows] = shard.mean[places], shard.variance[places]
        features = np.empty((n_items, 0), dtype=np.float32)
        items = StoredItems(connection, work.store, n_items)
        embeddings = Embeddings(mean, variance, features)
        try:
            if milvus_uri is None:
                write_faiss_gallery(work.bundle, embeddings, items, fingerprint, settings)
            else:
                write_milvus_gallery(
                    work.bundle,
                    embeddings,
                    items,
                    fingerprint,
                    milvus_uri,
                    settings,
                    milvus_access(),
                )
        except RuntimeError as error:  # as which FAISS reports a full disk
            raise OSError(str(error)) from error
    finally:
        connection.close()
    shutil.rmtree(work.assembly)
    return n_items


def duplicates(catalogue: Path) -> Iterator[tuple[str, list[str]]]:
    """Content that several items share, by its hash, and their ids; after `assemble`."""
    connection = sqlite3.connect(catalogue)
    try:
        rows = connection.execute(
            "SELECT hash, json_group_array(id) FROM (SELECT hash, id FROM embedded ORDER BY id)"
            " GROUP BY hash HAVING count(*) > 1 ORDER BY hash"
        )
        for content, ids in rows:
            yield content, json.loads(ids)
    finally:
        connection.close()


class StoredItems(Sequence[NewItem]):
    """The items of a gallery in the making, in its order, each read when it is asked for."""

    def __init__(self, connection: sqlite3.Connection, store: ShardStore, n_items: int) -> None:
        self._connection = connection
        self._store = store
        self._n_items = n_items
        self._chunk = lru_cache(maxsize=4)(self._read_chunk)

    def __len__(self) -> int:
        return self._n_items

    @overload
    def __getitem__(self, row: int) -> NewItem: ...
    @overload
    def __getitem__(self, row: slice) -> list[NewItem]: ...
    def __getitem__(self, row: int | slice) -> NewItem | list[NewItem]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        number, place = divmod(row % len(self), _CHUNK)
        return self._chunk(number)[place]

    def _read_chunk(self, number: int) -> list[NewItem]:
        rows = self._connection.execute(
            "SELECT id, label, metadata, shard, media_type, start, stop FROM items"
            " WHERE row >= ? AND row < ? ORDER BY row",
            (number * _CHUNK, (number + 1) * _CHUNK),
        )
        return [
            NewItem(
                name,
                label,
                json.loads(metadata),
                Thumbnail(self._store.part(shard, start, stop), media_type),
            )
            for name, label, metadata, shard, media_type, start, stop in rows
        ]


def _sorted_items(
    connection: sqlite3.Connection, store: ShardStore, n_blocks: int, n_held_out: int
) -> int:
    """Note where everything is, in the order of the ids."""
    connection.executescript(
        f"PRAGMA journal_mode = OFF; DROP TABLE IF EXISTS embedded;"
        f" DROP TABLE IF EXISTS items; {_SCHEMA}"
    )
    with connection:
        for shard in store.all(n_blocks):
            places = range(len(shard.ids))
            connection.executemany(
                "INSERT INTO embedded VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        shard.ids[place],
                        shard.number,
                        place,
                        shard.hashes[place],
                        shard.thumbnails[place].media_type,
                        *shard.bounds[place : place + 2],
                    )
                    for place in places
                ],
            )
        if n_held_out:
            note_groups(connection, store, n_blocks)
        note_held_out(connection, n_held_out)
        connection.execute(_SORTED)
        connection.execute("CREATE INDEX by_shard ON items (shard, place)")
    (n_items,) = connection.execute("SELECT count(*) FROM items").fetchone()
    return int(n_items)


def _rows_of(
    connection: sqlite3.Connection, shard: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the gallery that a shard holds the images of, and their places in the shard."""
    found = connection.execute("SELECT row, place FROM items WHERE shard = ?", (shard,)).fetchall()
    rows, places = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return rows, places


def _array(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    """An array in a file, whose space is taken at once.

    A page of a mapped file that finds no space when it is written ends the process.
    """
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, file.tell() + 4 * shape[0] * shape[1])
    array: NDArray[np.float32] = np.load(path, mmap_mode="r+")
    return array
