"""The embedded gallery: a FAISS index, memory-mapped variances and SQLite items in a directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.encoder import Embeddings
from model_store.errors import BundleMismatch
from model_store.gallery.items import Items, write_items
from model_store.gallery.protocol import SIMILARITY_DECIMALS, Candidates, Item, NewItem, Thumbnail
from model_store.processors import usable_processors
from model_store.sphere import unit_direction

INDEX_FILE = "gallery.faiss"
NORMS_FILE = "norms.npy"
VARIANCES_FILE = "variances.npy"
ITEMS_FILE = "items.sqlite"
GALLERY_FILES = (INDEX_FILE, NORMS_FILE, VARIANCES_FILE, ITEMS_FILE)
"""What `write_faiss_gallery` writes."""

_USABLE_PROCESSORS = usable_processors()


def write_faiss_gallery(
    directory: Path,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    encoder_fingerprint: str,
    n_changed: int = 0,
) -> None:
    """Write a gallery into ``directory``.

    Parameters
    ----------
    embeddings : N of them, in the order of ``items``; ``mean`` = norm × direction is kept whole
        (directions in the FAISS index, norms beside it), and so is ``variance``.
    items : N of them, with distinct ids; rows are given in the order of the ids, so that the same
        items make the same gallery in whatever order they come, and equal similarities can be
        ordered by row.
    encoder_fingerprint : of the encoder that made ``embeddings``.
    n_changed : see `Gallery`.

    Raises
    ------
    ValueError : lengths differ or ids repeat.
    """
    if len(items) != len(embeddings):
        raise ValueError(f"{len(items)} items and {len(embeddings)} embeddings, wanted as many")
    if len({item.id for item in items}) != len(items):
        raise ValueError("item ids repeat; each item needs an id of its own")
    order = sorted(range(len(items)), key=lambda row: items[row].id)
    mean = np.ascontiguousarray(embeddings.mean[order], dtype=np.float32)
    index = faiss.IndexFlatIP(mean.shape[1])
    index.add(unit_direction(mean))
    faiss.write_index(index, str(directory / INDEX_FILE))
    np.save(directory / NORMS_FILE, np.linalg.norm(mean, axis=1))
    np.save(directory / VARIANCES_FILE, embeddings.variance[order].astype(np.float32))
    ordered = (items[row] for row in order)
    write_items(directory / ITEMS_FILE, ordered, encoder_fingerprint, n_changed)


class FaissGallery:
    """The gallery that `write_faiss_gallery` wrote into ``directory``; safe to share by threads.

    Raises
    ------
    BundleMismatch : the files do not hold the same number of items.
    """

    def __init__(self, directory: Path) -> None:
        self._index = faiss.read_index(str(directory / INDEX_FILE))
        self._norms = np.load(directory / NORMS_FILE)
        self._variances = np.load(directory / VARIANCES_FILE, mmap_mode="r")
        self._items = Items(directory / ITEMS_FILE)
        self.encoder_fingerprint = self._items.encoder_fingerprint
        self.index_type = type(self._index).__name__
        self.n_changed = self._items.n_changed
        self.n_items = self.n_rows = int(self._index.ntotal)
        self.dim = int(self._index.d)
        # A view of the vectors FAISS holds, not a second copy.
        stored = faiss.rev_swig_ptr(self._index.get_xb(), self.n_items * self.dim)
        self._directions: NDArray[np.float32] = stored.reshape(self.n_items, self.dim)
        row_labels = self._items.labels()
        self.labels: Sequence[str] = sorted({label for label in row_labels if label is not None})
        code = {label: place for place, label in enumerate(self.labels)} | {None: -1}
        self._label_codes = np.array([code[label] for label in row_labels], dtype=np.int32)
        sizes = {
            INDEX_FILE: self.n_items,
            NORMS_FILE: len(self._norms),
            VARIANCES_FILE: len(self._variances),
            ITEMS_FILE: len(row_labels),
        }
        if len(set(sizes.values())) != 1:
            raise BundleMismatch(
                f"The gallery's files disagree on the number of items: {sizes}. Build it again."
            )

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: NDArray[np.bool_] | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D), among the ``allowed`` rows."""
        parameters = None
        n_searched = self.n_items
        if allowed is not None:
            n_searched = int(allowed.sum())
            bits = np.packbits(allowed, bitorder="little")
            parameters = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
        with _threads_for(len(directions)):
            _, found = self._index.search(
                np.ascontiguousarray(directions), min(n, n_searched), params=parameters
            )
        rows = np.sort(found, axis=1)  # by row, so that the stable sort below ends ties by id
        exact = [
            similarities_of(self._directions[r], d) for r, d in zip(rows, directions, strict=True)
        ]
        similarities = np.round(exact, SIMILARITY_DECIMALS)
        order = np.argsort(-similarities, axis=1, kind="stable")
        return Candidates(
            np.take_along_axis(rows, order, axis=1),
            np.take_along_axis(similarities, order, axis=1),
        )

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unit directions of ``rows`` (...), shape (..., D)."""
        return self._directions[rows]

    def dispersions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item relative to its squared norm, Σ_d v_d / ‖m‖², shape (...)."""
        total: NDArray[np.float32] = self._variances[rows].sum(-1) / self._norms[rows] ** 2
        return total

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item's embedding, relative to its squared norm: v / ‖m‖², (..., D)."""
        relative: NDArray[np.float32] = self._variances[rows] / self._norms[rows][..., None] ** 2
        return relative

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Codes of the rows' labels, -1 where an item has none, shape (...)."""
        return self._label_codes[rows]

    def embeddings(self, rows: NDArray[np.int64]) -> Embeddings:
        """What `write_faiss_gallery` was given of ``rows`` (n,), to rounding; without features."""
        mean = self._directions[rows] * self._norms[rows][:, None]
        return Embeddings(mean, self._variances[rows], np.empty((len(rows), 0), dtype=np.float32))

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Rows of at most ``limit`` items by id, from the one after the row ``after`` on."""
        first = 0 if after is None else after + 1
        return np.arange(first, max(first, min(first + limit, self.n_items)))

    def next_row(self, item_id: str) -> int:
        """The first row whose id comes after ``item_id``; the number of rows after the last."""
        found = self._items.next_row(item_id)
        return self.n_items if found is None else found

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """The items at ``rows`` (n,), in that order."""
        return self._items.at(rows.tolist())

    def row(self, item_id: str) -> int:
        """Where the item of that id is, or `ItemNotFound`."""
        return self._items.row(item_id)

    def item(self, item_id: str) -> Item:
        """The item of that id, or `ItemNotFound`."""
        return self._items.item(item_id)

    def thumbnail(self, item_id: str) -> Thumbnail:
        """The picture of that item, or `ItemNotFound`."""
        return self._items.thumbnail(item_id)


@contextmanager
def _threads_for(n_queries: int) -> Iterator[None]:
    """Give FAISS as many threads as that many queries are worth, and put back what was set.

    One query is not worth splitting: OpenMP's threads, waiting for each other, made it take three
    times as long on two cores. The setting is the calling thread's, but where torch was imported
    first it is torch's too, and sums in another order would train another model.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if n_queries == 1 else min(before, _USABLE_PROCESSORS))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def similarities_of(items: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """Inner products of unit ``items`` (n, D) with a unit ``query`` (D,), as 1 − ½ ‖z − q‖².

    Near neighbours differ in the digits that the inner product itself loses to rounding.
    """
    difference = items.astype(np.float64) - query
    similarities: NDArray[np.float64] = 1 - 0.5 * (difference * difference).sum(axis=1)
    return similarities
