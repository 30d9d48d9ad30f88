"""Writes a gallery into Milvus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from model_store.errors import ConfigError
from model_store.gallery.content import new_name, read_through, save_tuned
from model_store.gallery.index.build import EFFORTS, FETCHED
from model_store.gallery.index.plan import (
    EXACT_BYTES,
    HNSW_LINKS,
    IndexSettings,
    lists_for,
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
from model_store.gallery.protocol import GalleryContent, Part

TIMEOUT_S = 3_600.0
"""Timeout in seconds for a flush and for an index build; both take longer for a large gallery."""

WRITTEN_BYTES = 2**24
"""Maximum bytes of one write request; Milvus accepts at most 64 MB."""

INDEX_TYPES: Mapping[str, str] = {"flat": "FLAT", "hnsw": "HNSW", "ivf_sq8": "IVF_SQ8"}


def write_to_milvus(
    new: GalleryContent, uri: str, access: MilvusAccess = NO_ACCESS
) -> MilvusDescription:
    """Write a gallery into a new collection, and its description into the directory.

    If a collection of the same owner has the same content and never accepted changes, it is used
    again. If it is incomplete, it is written again.

    Parameters
    ----------
    new : gallery to write. Its parts are read twice: first to compute the name of the collection,
        then to write the items. Its directory gets the description.
    uri : address of Milvus for the bundle, without user and password.
    access : token of Milvus, and optionally another address to write to.

    Raises
    ------
    ConfigError : pymilvus is missing, the address names a user, or no index reaches the required
        recall.
    DatasetError : an item exceeds a limit of Milvus.
    GalleryUnavailable : Milvus does not answer.
    """
    directory, settings = new.directory, new.settings
    kind, parameters = _plan(new.shape, settings)
    prefix = f"{SCHEMA}:{new.encoder_fingerprint}:{kind}:{new.shape}:"
    named = read_through(new.parts(), new.shape, prefix, new.owner)
    access = replace(access, uri=access.uri or uri)
    described = MilvusDescription(
        uri=require_bare(uri),
        collection=_unchanged_collection(named.name, access) or new_name(named.name),
        encoder=new.encoder_fingerprint,
        n_items=new.shape[0],
        dim=new.shape[1],
        labels=named.labels,
        index={"type": kind, "parameters": {}, "recall_at_10": 1.0, "n_queries": 0},
    )
    with closing(Collection(described.collection, access)) as collection:
        if not collection.is_whole():
            _write(collection, described, new.parts(), parameters)
    described.save(directory)
    if kind == "FLAT":
        return described
    # `ef` must be at least the number of fetched items.
    efforts = {
        "HNSW": {"ef": [effort for effort in EFFORTS if effort >= FETCHED]},
        "IVF_SQ8": {"nprobe": EFFORTS},
    }
    opened = partial(MilvusGallery, directory, access)
    return save_tuned(described, directory, named.directions, settings, efforts[kind], opened)


def _unchanged_collection(name: str, access: MilvusAccess) -> str | None:
    """Return a collection whose name begins with ``name`` and that never accepted changes."""
    with closing(Collection(name, access)) as nameless:
        names = nameless.of_same_content()
    for known in names:
        with closing(Collection(known, access)) as collection:
            if not collection.is_changed():
                return known
    return None


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
