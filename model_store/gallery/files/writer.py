"""Writes a gallery into files, part by part; the gallery may be larger than the memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import faiss
import numpy as np

from model_store.encoder.contract import Embeddings
from model_store.gallery.files.fields import ITEMS_FILE, write_fields
from model_store.gallery.files.gallery import LABELS_FILE
from model_store.gallery.files.items import ItemsWriter
from model_store.gallery.files.previews import PREVIEWS_FILE, PreviewsWriter
from model_store.gallery.files.row_file import RowFile
from model_store.gallery.files.variances import NORMS_FILE, VarianceWriter
from model_store.gallery.filters.grammar import named_fields
from model_store.gallery.index.build import IndexReport, build_index
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexPlan, IndexSettings, plan_index
from model_store.gallery.index.search import DIRECTIONS_FILE, INDEX_FILE
from model_store.gallery.protocol import NewItem, Part, in_parts
from model_store.sphere import unit_direction


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
