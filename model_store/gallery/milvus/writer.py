"""Writes a gallery into Milvus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import ConfigError
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.index.plan import (
    DEFAULT_SETTINGS,
    EXACT_BYTES,
    HNSW_LINKS,
    IndexSettings,
    lists_for,
)
from model_store.gallery.index.recall import (
    EFFORTS,
    FETCHED,
    N_NEIGHBOURS,
    share_found,
    tenth_similarity,
)
from model_store.gallery.milvus.collection import (
    COMPLETE,
    NO_ACCESS,
    SCHEMA,
    Collection,
    MilvusAccess,
    MilvusDescription,
    require_bare,
)
from model_store.gallery.milvus.entities import write_entity
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.protocol import NewItem, Part, in_parts
from model_store.sphere import unit_direction

TIMEOUT_S = 3_600.0
"""Timeout in seconds for a flush and for an index build; both take longer for a large gallery."""

WRITTEN_BYTES = 2**24
"""Maximum bytes of one write request; Milvus accepts at most 64 MB."""

N_QUERIES = 100
"""Number of queries that measure the recall of an approximate index."""

INDEX_TYPES: Mapping[str, str] = {"flat": "FLAT", "hnsw": "HNSW", "ivf_sq8": "IVF_SQ8"}


def write_milvus_gallery(
    directory: Path,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    encoder_fingerprint: str,
    uri: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    access: MilvusAccess = NO_ACCESS,
) -> MilvusDescription:
    """Write a gallery into a collection, and its description into ``directory``.

    The name of the collection is a digest of its content, so other content cannot overwrite the
    collection of a served bundle. If the collection is complete, it is kept with its later changes.
    If it is incomplete, it is written again.

    Parameters
    ----------
    embeddings, items, encoder_fingerprint : see `write_faiss_gallery`.
    uri : address of Milvus for the bundle, without user and password.
    settings : settings of the index; ``ivf_pq`` is not available in Milvus.
    access : token of Milvus, and optionally another address to write to.

    Raises
    ------
    ValueError : lengths differ or ids repeat.
    ConfigError : pymilvus is missing, the address names a user, or no index reaches the required
        recall.
    DatasetError : an item exceeds a limit of Milvus.
    GalleryUnavailable : Milvus does not answer.
    """
    n_items, dim = embeddings.mean.shape
    parts = partial(in_parts, embeddings, items)
    return write_milvus_parts(
        directory, (n_items, dim), parts, encoder_fingerprint, uri, settings, access
    )


def write_milvus_parts(
    directory: Path,
    shape: tuple[int, int],
    parts: Callable[[], Iterable[Part]],
    encoder_fingerprint: str,
    uri: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    access: MilvusAccess = NO_ACCESS,
) -> MilvusDescription:
    """Write a gallery whose items come in parts; see `write_milvus_gallery`.

    Parameters
    ----------
    shape : (N, D) of the whole gallery.
    parts : function that returns a new iterator of parts. All parts are read twice: first to
        compute the collection's name, then to write the items.
    """
    kind, parameters = _plan(shape, settings)
    named = _read_through(parts(), shape, f"{SCHEMA}:{encoder_fingerprint}:{kind}:{shape}:")
    described = MilvusDescription(
        uri=require_bare(uri),
        collection=named.collection,
        encoder=encoder_fingerprint,
        n_items=shape[0],
        dim=shape[1],
        labels=named.labels,
        index={"type": kind, "parameters": {}, "recall_at_10": 1.0, "n_queries": 0},
    )
    access = replace(access, uri=access.uri or uri)
    collection = Collection(described.collection, access)
    try:
        if not collection.is_whole():
            _write(collection, described, parts(), parameters)
    finally:
        collection.close()
    described.save(directory)
    if kind != "FLAT":
        described = _tuned(directory, described, named.directions, settings, access)
        described.save(directory)
    return described


def _plan(shape: tuple[int, int], settings: IndexSettings) -> tuple[str, dict[str, int]]:
    """Return the type of the Milvus index, and its build parameters."""
    wanted = settings.kind
    if wanted == "auto":
        wanted = "flat" if 4 * shape[0] * shape[1] <= EXACT_BYTES else "hnsw"
    if wanted not in INDEX_TYPES:
        raise ConfigError(
            f"index.kind = {wanted!r} is not available in Milvus; wanted auto, "
            f"{', '.join(INDEX_TYPES)}."
        )
    parameters = {
        "flat": {},
        "hnsw": {"M": HNSW_LINKS, "efConstruction": 200},
        "ivf_sq8": {"nlist": lists_for(shape[0])},
    }
    return INDEX_TYPES[wanted], parameters[wanted]


@dataclass(frozen=True, slots=True)
class _ReadThrough:
    """The result of the first pass: the collection's name, sorted labels, and directions (N, D)."""

    collection: str
    labels: list[str]
    directions: NDArray[np.float32]


def _read_through(parts: Iterable[Part], shape: tuple[int, int], prefix: str) -> _ReadThrough:
    digest = hashlib.sha256(prefix.encode())
    labels: set[str] = set()
    directions = np.empty(shape, np.float32)
    start = 0
    for embeddings, items in parts:
        mean = np.ascontiguousarray(embeddings.mean, dtype=np.float32)
        directions[start : start + len(items)] = unit_direction(mean)
        start += len(items)
        digest.update(mean.tobytes())
        digest.update(np.ascontiguousarray(embeddings.variance, dtype=np.float32).tobytes())
        for item in items:
            known = [item.id, item.label, metadata_json(item.metadata), item.thumbnail.media_type]
            digest.update(json.dumps(known).encode())
            digest.update(hashlib.sha256(item.thumbnail.data).digest())
        labels |= {item.label for item in items if item.label is not None}
    return _ReadThrough(f"vouch_{digest.hexdigest()[:24]}", sorted(labels), directions)


def _write(
    collection: Collection,
    described: MilvusDescription,
    parts: Iterable[Part],
    parameters: Mapping[str, int],
) -> None:
    collection.drop()  # removes an incomplete collection
    collection.create(described.dim, described.encoder)
    waiting: list[dict[str, Any]] = []
    n_written = n_bytes = 0
    for embeddings, items in parts:
        mean = embeddings.mean.astype(np.float32)
        variance = embeddings.variance.astype(np.float32)
        for place, item in enumerate(items):
            waiting.append(write_entity(n_written, item, mean[place], variance[place]))
            n_written += 1
            n_bytes += 12 * described.dim + len(waiting[-1]["thumbnail"]) + 2_000
            if n_bytes > WRITTEN_BYTES or n_written == described.n_items:
                collection.ask("insert", waiting, timeout=TIMEOUT_S)
                waiting, n_bytes = [], 0
    collection.ask("flush", timeout=TIMEOUT_S)
    collection.build_index(described.index["type"], parameters, TIMEOUT_S)
    collection.mark(COMPLETE)
    collection.ask("load_collection", timeout=TIMEOUT_S)


def _tuned(
    directory: Path,
    described: MilvusDescription,
    directions: NDArray[np.float32],
    settings: IndexSettings,
    access: MilvusAccess,
) -> MilvusDescription:
    """Return the description with the smallest search effort that reaches `min_recall`."""
    queries = _queries(directions, np.random.default_rng(settings.seed))
    tenth = tenth_similarity(directions, queries)
    knob = "ef" if described.index["type"] == "HNSW" else "nprobe"
    recall = 0.0
    for effort in EFFORTS:
        if knob == "ef" and effort < FETCHED:
            continue  # `ef` must be at least the number of fetched items
        found_with = {"parameters": {knob: effort}, "n_queries": len(queries)}
        tried = replace(described, index={**described.index, **found_with})
        tried.save(directory)
        gallery = MilvusGallery(directory, access)
        try:
            found = [gallery.candidates(query[None], N_NEIGHBOURS).rows[0] for query in queries]
        finally:
            gallery.close()
        recall = share_found(directions, queries, found, tenth)
        if recall >= settings.min_recall:
            return replace(tried, index={**tried.index, "recall_at_10": recall})
    raise ConfigError(
        f"Milvus's {described.index['type']} finds at most {recall:.3f} of the ten nearest items, "
        f"wanted {settings.min_recall}. Lower index.min_recall, or choose another index.kind."
    )


def _queries(
    directions: NDArray[np.float32], generator: np.random.Generator
) -> NDArray[np.float32]:
    """Return queries, which are unit vectors.

    A query is the normalised sum of an item and the difference of two neighbours of the item.
    """
    rows = np.sort(generator.permutation(len(directions))[:N_QUERIES])
    k = min(FETCHED, len(directions))
    _, near = faiss.knn(directions[rows], directions, k, faiss.METRIC_INNER_PRODUCT)
    places = generator.integers(0, k, (2, len(rows)))
    one, other = near[np.arange(len(rows)), places]
    return unit_direction(directions[rows] + directions[one] - directions[other])
