"""Galleries whose items are in memory, for writers to databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from model_store.encoder.contract import Embeddings
from model_store.gallery import IndexSettings, NewItem
from model_store.gallery.index.plan import DEFAULT_SETTINGS
from model_store.gallery.protocol import GalleryContent, in_parts

Written = TypeVar("Written")


def from_memory(write: Callable[..., Written]) -> Callable[..., Written]:
    """Return ``write``, which takes a `GalleryContent`, as a function of embeddings and items."""

    def write_items(
        directory: Path,
        embeddings: Embeddings,
        items: Sequence[NewItem],
        encoder: str,
        uri: str,
        settings: IndexSettings = DEFAULT_SETTINGS,
        *options: Any,
        owner: str = "",
        **named: Any,
    ) -> Written:
        n_items, dim = embeddings.mean.shape
        parts = partial(in_parts, embeddings, items)
        new = GalleryContent(directory, (n_items, dim), parts, encoder, settings, owner)
        return write(new, uri, *options, **named)

    return write_items
