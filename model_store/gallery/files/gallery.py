"""The embedded gallery: FAISS index, variances and SQLite items in a directory; its writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import BundleMismatch
from model_store.gallery.filters.columns import Column, Counted, facet_of
from model_store.gallery.filters.grammar import Field, Filter, named_fields
from model_store.gallery.filters.selection import Allowed
from model_store.gallery.index.build import REPORT_FILE, IndexReport, build_index
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexPlan, IndexSettings, plan_index
from model_store.gallery.index.search import DIRECTIONS_FILE, INDEX_FILE, RowIndex, open_index
from model_store.gallery.protocol import (
    SIMILARITY_DECIMALS,
    Candidates,
    Item,
    NewItem,
    Part,
    Thumbnail,
    in_parts,
)
from model_store.records import Facet
from model_store.sphere import unit_direction
from model_store.table import RowFile, load_rows

from .fields import COLUMNS_FILE, FIELDS_FILE, ITEMS_FILE, write_fields
from .items import PREVIEWS_FILE, Items, ItemsWriter, Previews, PreviewsWriter

LABELS_FILE = "labels.npy"
NORMS_FILE = "norms.npy"
VARIANCES_FILE = "variances.npy"
SCALES_FILE = "variance_scales.npy"
GALLERY_FILES = (
    INDEX_FILE,
    REPORT_FILE,
    DIRECTIONS_FILE,
    NORMS_FILE,
    VARIANCES_FILE,
    SCALES_FILE,
    LABELS_FILE,
    ITEMS_FILE,
    FIELDS_FILE,
    COLUMNS_FILE,
    PREVIEWS_FILE,
)
"""Names of all files that a gallery can have; some files are optional."""

HALF_ROUNDING = 2.0**-11
"""Maximum relative rounding error of a variance in float16. This maximum is valid if the variance
is at least 2⁻¹³ times the item's largest variance. If the variance is smaller, its absolute error
is at most 2⁻²⁴ times the largest variance."""


class FaissGallery:
    """The gallery that `write_faiss_gallery` wrote into ``directory``; thread-safe.

    Attributes
    ----------
    filter_fields : value of the setting `IndexSettings.filter_fields`.

    Raises
    ------
    BundleMismatch : the files have different numbers of items.
    """

    is_local = True

    def __init__(self, directory: Path) -> None:
        self.index = IndexReport.load(directory)
        self.index_type = self.index.engine
        self._index = open_index(directory, self.index)
        self._directions = self._index.directions
        self.n_items, self.dim = self._directions.shape
        self._variances = Variances(directory)
        self._items = Items(directory / ITEMS_FILE)
        self._previews = Previews(directory / PREVIEWS_FILE)
        self.preview_side = self._previews.side
        self.encoder_fingerprint = self._items.encoder_fingerprint
        self.filter_fields = self._items.fields.named
        self.n_changed = self._items.n_changed
        self.n_rows: int = self.n_items
        self.labels: Sequence[str] = self._items.labels()
        self.held_labels = self.labels
        self._label_codes = load_rows(directory / LABELS_FILE)
        sizes = {
            INDEX_FILE: self.n_items,
            **self._variances.lengths(),
            LABELS_FILE: len(self._label_codes),
            ITEMS_FILE: self._items.count(),
            FIELDS_FILE: self._items.fields.n_rows,
        }
        if len(set(sizes.values())) != 1:
            raise BundleMismatch(
                f"The gallery's files disagree on the number of items: {sizes}. Build it again."
            )

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D); see `Gallery.candidates`."""
        return nearest_items(self._index, directions, n, allowed)

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as the argument ``allowed`` of `candidates`."""
        return self._items.matching(part)

    def facets(self, most: int) -> list[Facet]:
        """Describe the fields that were indexed at the build; see `Gallery.facets`."""
        stored = self.field_indexes().items()
        return [facet_of(field.name, [Counted(column)], most) for field, column in stored]

    def field_indexes(self) -> dict[Field, Column]:
        """Return the indexes that the build made, except the index of the ids."""
        return self._items.fields.stored()

    def rows(self) -> NDArray[np.int64]:
        """Return the rows (n_items,) of all items, ascending."""
        return np.arange(self.n_items)

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit directions (..., D) of ``rows`` (...)."""
        return self._directions.take(rows, axis=0)  # a third faster than indexing

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each total variance, divided by the item's squared norm: Σ_d v_d / ‖m‖², (...)."""
        return self._variances.total_variances(rows)

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each variance, divided by the item's squared norm: v / ‖m‖², (..., D)."""
        return self._variances.relative(rows)

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the label codes of ``rows`` (...); -1 for an item without a label."""
        return np.asarray(self._label_codes[rows])

    def embeddings(self, rows: NDArray[np.int64]) -> Embeddings:
        """Return the embeddings of ``rows`` (n,), exact up to rounding, without features."""
        norms = self._variances.norms(rows)[:, None]
        mean, variance = self._directions[rows] * norms, self._variances.relative(rows) * norms**2
        return Embeddings(mean, variance, np.empty((len(rows), 0), dtype=np.float32))

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Return the rows of the ``limit`` items that follow ``after``, in the order of ids."""
        first = 0 if after is None else after + 1
        return np.arange(first, min(first + limit, self.n_items))

    def next_row(self, item_id: str) -> int:
        """Return the first row whose id is greater than ``item_id``; N if no id is greater."""
        found = self._items.next_row(item_id)
        return self.n_items if found is None else found

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """Return the items at ``rows`` (n,), in the order of ``rows``."""
        return self._items.at(rows.tolist())

    def with_pictures(self, rows: NDArray[np.int64]) -> list[NewItem]:
        """Return the items at ``rows`` (n,), in the order of ``rows``."""
        places = rows.tolist()
        items, thumbnails = self._items.at(places), self._items.thumbnails(places)
        return [
            NewItem(item.id, item.label, item.metadata, thumbnail, self._previews.at(place))
            for item, thumbnail, place in zip(items, thumbnails, places, strict=True)
        ]

    def row(self, item_id: str) -> int:
        """Return the row of the item with this id, or raise `ItemNotFound`."""
        return self._items.row(item_id)

    def item(self, item_id: str) -> Item:
        """Return the item with this id, or raise `ItemNotFound`."""
        return self._items.item(item_id)

    def thumbnail(self, item_id: str) -> Thumbnail:
        """Return the thumbnail of an item, or raise `ItemNotFound`."""
        return self._items.thumbnail(item_id)

    def preview(self, item_id: str) -> bytes:
        """Return the preview of an item, or raise `ItemNotFound`; see `Gallery.preview`."""
        return self._previews.at(self._items.row(item_id))


def nearest_items(
    index: RowIndex, directions: NDArray[np.float32], n: int, allowed: Allowed | None
) -> Candidates:
    """Search an index whose rows are ordered by id; see `Gallery.candidates`."""
    found, plan = index.nearest(directions, n, allowed)
    ranked = []
    for unordered, query in zip(found, directions, strict=True):
        rows = np.sort(unordered)  # the stable sort below then orders ties by id
        exact = similarities_of(index.directions.take(rows, axis=0), query)
        similarities = np.round(exact, SIMILARITY_DECIMALS)
        order = np.argsort(-similarities, kind="stable")[:n]
        ranked.append((rows[order], similarities[order]))
    rows, similarities = map(np.array, zip(*ranked, strict=True))
    return Candidates(rows, similarities, plan)


def similarities_of(items: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return inner products of unit ``items`` (n, D) with a unit ``query`` (D,).

    The formula is 1 − ½ ‖z − q‖². The similarities of near neighbours differ only in the last
    digits. A sum of products would lose these digits.
    """
    difference = items.astype(np.float64)
    difference -= query
    similarities: NDArray[np.float64] = 1 - 0.5 * np.vecdot(difference, difference)
    return similarities


def write_faiss_gallery(
    directory: Path,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    encoder_fingerprint: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    n_changed: int = 0,
) -> IndexReport:
    """Write a gallery into ``directory``; equal input gives equal bytes.

    Parameters
    ----------
    embeddings : N embeddings, in the order of ``items``. ``mean`` is stored as norm and direction,
        in float32. If the FAISS index is exact, the index contains the directions. If the index is
        approximate, a separate file contains the directions. ``variance`` is stored in float32 for
        an exact index, and in float16 for an approximate index.
    items : N items with distinct ids. Rows are numbered in the order of the ids, so that the
        gallery does not depend on the order of ``items``.
    encoder_fingerprint : fingerprint of the encoder that made ``embeddings``.
    settings : settings of the index.
    n_changed : see `Gallery`.

    Returns
    -------
    The report of the built index.

    Raises
    ------
    ValueError : lengths differ or ids repeat.
    ConfigError : no index meets both the memory budget and the minimum recall.
    """
    n_items, dim = embeddings.mean.shape
    parts = in_parts(embeddings, items)
    return write_faiss_parts(
        directory, (n_items, dim), parts, encoder_fingerprint, settings, n_changed
    )


def write_faiss_parts(
    directory: Path,
    shape: tuple[int, int],
    parts: Iterable[Part],
    encoder_fingerprint: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    n_changed: int = 0,
) -> IndexReport:
    """Write a gallery whose items come in parts; see `write_faiss_gallery`.

    Only the index, its training vectors and one part are in memory.

    Parameters
    ----------
    shape : (N, D) of the whole gallery.
    parts : embeddings and items, sorted by id; the ids are distinct.
    """
    plan, fields = plan_index(*shape, settings), named_fields(settings.filter_fields)
    exact = plan.kind == "flat"
    with ExitStack() as stack:
        directions = stack.enter_context(
            RowFile(directory / DIRECTIONS_FILE, *shape, dtype=np.float32)
        )
        norms = stack.enter_context(RowFile(directory / NORMS_FILE, shape[0], dtype=np.float32))
        variances = stack.enter_context(VarianceWriter(directory, *shape, half=not exact))
        written = stack.enter_context(
            ItemsWriter(directory / ITEMS_FILE, encoder_fingerprint, n_changed)
        )
        previews = None
        if settings.preview_side is not None:
            path = directory / PREVIEWS_FILE
            previews = stack.enter_context(PreviewsWriter(path, settings.preview_side))
        for embeddings, items in parts:
            mean = np.ascontiguousarray(embeddings.mean, dtype=np.float32)
            norm = np.linalg.norm(mean, axis=1)
            directions.add(unit_direction(mean))
            norms.add(norm)
            variances.add(norm, embeddings.variance)
            written.add(items)
            if previews is not None:
                previews.add(items)
    np.save(directory / LABELS_FILE, written.label_codes())
    write_fields(directory, shape[0], fields, written.fields)
    report = _write_index(directory, plan, settings)
    if exact:  # the index contains the directions
        (directory / DIRECTIONS_FILE).unlink()
    return report


def _write_index(directory: Path, plan: IndexPlan, settings: IndexSettings) -> IndexReport:
    directions = np.load(directory / DIRECTIONS_FILE, mmap_mode="r")
    index, report = build_index(directions, plan, settings)
    faiss.write_index(index, str(directory / INDEX_FILE))
    report.save(directory)
    return report


class VarianceWriter(ExitStack):
    """A context manager that writes the variances of a gallery's items, part by part.

    With ``half``, an item's variances are divided by the squared norm and by a power of two, and
    stored in float16 (see `HALF_ROUNDING`). The power of two is chosen for each item so that the
    item's largest stored variance is between ½ and 1. Without ``half``, variances are stored
    unchanged in float32.

    Parameters
    ----------
    n_items, dim : N and D of the whole gallery.
    """

    def __init__(self, directory: Path, n_items: int, dim: int, *, half: bool) -> None:
        super().__init__()
        dtype = np.float16 if half else np.float32
        variances = RowFile(directory / VARIANCES_FILE, n_items, dim, dtype=dtype)
        self._variances = self.enter_context(variances)
        self._scales: RowFile | None = None
        if half:
            scales = RowFile(directory / SCALES_FILE, n_items, dtype=np.float32)
            self._scales = self.enter_context(scales)

    def add(self, norms: NDArray[np.float32], variances: NDArray[np.float32]) -> None:
        """Write the variances (n, D) of n items; ``norms`` (n,) are the norms of their means."""
        if self._scales is None:
            self._variances.add(variances)
            return
        relative = variances / norms[:, None] ** 2
        largest = np.maximum(relative.max(axis=1), np.finfo(np.float32).tiny)
        scales = np.exp2(np.ceil(np.log2(largest)))
        self._scales.add(scales)
        self._variances.add(relative / scales[:, None])


class Variances:
    """Reads the files that `VarianceWriter` wrote; large files are memory-mapped."""

    def __init__(self, directory: Path) -> None:
        self._norms = load_rows(directory / NORMS_FILE)
        self._stored = load_rows(directory / VARIANCES_FILE)
        half = self._stored.dtype == np.float16
        self._scales = load_rows(directory / SCALES_FILE) if half else None

    @cached_property
    def _totals(self) -> NDArray[np.float32]:
        """The total variances of all items, if the variances are stored in full precision."""
        totals: NDArray[np.float32] = self._stored.sum(-1) / self._norms**2
        return totals

    def lengths(self) -> dict[str, int]:
        """Return the number of items in each file, by file name."""
        files = {NORMS_FILE: self._norms, VARIANCES_FILE: self._stored, SCALES_FILE: self._scales}
        return {name: len(file) for name, file in files.items() if file is not None}

    def norms(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the norms ‖m‖ (...) of the means."""
        return np.asarray(self._norms[rows])

    def relative(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each variance, divided by the item's squared norm: v / ‖m‖², (..., D)."""
        if self._scales is None:
            whole: NDArray[np.float32] = self._stored[rows] / self._norms[rows][..., None] ** 2
            return whole
        scaled: NDArray[np.float32] = self._stored[rows] * self._scales[rows][..., None]
        return scaled

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each total variance, divided by the item's squared norm: Σ_d v_d / ‖m‖², (...)."""
        if self._scales is None:
            return np.asarray(self._totals[rows])
        sums: NDArray[np.float32] = self._stored[rows].sum(-1, dtype=np.float32)
        scaled: NDArray[np.float32] = sums * self._scales[rows]
        return scaled
