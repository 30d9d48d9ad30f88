"""Galleries whose items are in memory, for writers that take parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from model_store.encoder.contract import Embeddings
from model_store.gallery import NewItem
from model_store.gallery.protocol import Part, in_parts

Options = ParamSpec("Options")
Written = TypeVar("Written")
Shape = tuple[int, int]
Parts = Callable[[], Iterable[Part]]


def from_memory(
    write_parts: Callable[Concatenate[Path, Shape, Parts, Options], Written],
) -> Callable[Concatenate[Path, Embeddings, Sequence[NewItem], Options], Written]:
    """Return ``write_parts`` as a function of embeddings and items."""

    def write(
        directory: Path,
        embeddings: Embeddings,
        items: Sequence[NewItem],
        /,
        *options: Options.args,
        **named: Options.kwargs,
    ) -> Written:
        n_items, dim = embeddings.mean.shape
        parts = partial(in_parts, embeddings, items)
        return write_parts(directory, (n_items, dim), parts, *options, **named)

    return write
