"""The content of a gallery that is written to a database: its name, and the recall of its index."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.errors import ConfigError
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.index.build import FETCHED, N_NEIGHBOURS, share_found, tenth_similarity
from model_store.gallery.index.plan import IndexSettings
from model_store.gallery.protocol import Gallery, Part
from model_store.gallery.remote import Description
from model_store.sphere import unit_direction

_N_QUERIES = 100
"""Number of queries that measure the recall of an approximate index."""


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """What the first pass over a gallery has found.

    Attributes
    ----------
    name : beginning of the gallery's name in a database: a digest of its content and its owner; see
        `new_name`.
    labels : sorted labels.
    directions : (N, D) unit vectors.
    """

    name: str
    labels: list[str]
    directions: NDArray[np.float32]


def new_name(name: str) -> str:
    """Return a name that no gallery in a database has had; it begins with `ReadThrough.name`."""
    return f"{name}_{secrets.token_hex(4)}"


def read_through(
    parts: Iterable[Part], shape: tuple[int, int], prefix: str, owner: str
) -> ReadThrough:
    """Read all ``parts`` of a gallery of ``shape`` (N, D).

    The name also depends on ``prefix``, for example on the encoder and on the kind of the index,
    and on ``owner``, see `GalleryContent`.
    """
    digest = hashlib.sha256(json.dumps([prefix, owner]).encode())
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
    return ReadThrough(f"vouch_{digest.hexdigest()[:24]}", sorted(labels), directions)


class OpenGallery(Gallery, Protocol):
    """A gallery with a connection to its database."""

    def close(self) -> None:
        """Close the connection."""


DescriptionT = TypeVar("DescriptionT", bound=Description)


def save_tuned(
    described: DescriptionT,
    directory: Path,
    directions: NDArray[np.float32],
    settings: IndexSettings,
    efforts: Mapping[str, Sequence[int]],
    opened: Callable[[], OpenGallery],
) -> DescriptionT:
    """Save the description with the smallest search effort that reaches `min_recall`; return it.

    Parameters
    ----------
    directions : (N, D), unit vectors of all items.
    efforts : efforts to try, ascending, by the name of the search parameter.
    opened : function that opens the gallery whose description is in ``directory``.

    Raises
    ------
    ConfigError : no effort reaches the recall.
    """
    queries = _queries(directions, np.random.default_rng(settings.seed))
    tenth = tenth_similarity(directions, queries)
    recall = 0.0
    [(parameter, tried)] = efforts.items()
    for effort in tried:
        index = {**described.index, "parameters": {parameter: effort}}
        replace(described, index=index).save(directory)
        with closing(opened()) as gallery:
            found = [gallery.candidates(query[None], N_NEIGHBOURS).rows[0] for query in queries]
        recall = share_found(directions, queries, found, tenth)
        if recall >= settings.min_recall:
            index |= {"recall_at_10": recall, "n_queries": len(queries)}
            described = replace(described, index=index)
            described.save(directory)
            return described
    index_name = f"{described.library}'s {described.index['type'].upper()}"
    raise ConfigError(
        f"{index_name} finds at most {recall:.3f} of the ten nearest items, wanted "
        f"{settings.min_recall}. Lower index.min_recall, or choose another index.kind."
    )


def _queries(
    directions: NDArray[np.float32], generator: np.random.Generator
) -> NDArray[np.float32]:
    """Return queries, which are unit vectors.

    A query is the normalised sum of an item and the difference of two neighbours of the item.
    """
    rows = np.sort(generator.permutation(len(directions))[:_N_QUERIES])
    k = min(FETCHED, len(directions))
    _, near = faiss.knn(directions[rows], directions, k, faiss.METRIC_INNER_PRODUCT)
    places = generator.integers(0, k, (2, len(rows)))
    one, other = near[np.arange(len(rows)), places]
    return unit_direction(directions[rows] + directions[one] - directions[other])
