"""Reads a table of captions. A caption is a text query that describes an item or a label."""

from __future__ import annotations

from pathlib import Path

from index_builder.calibration.captions import Captions
from index_builder.indexing.sources.manifest import Line, lines_of, text_of
from index_builder.indexing.truth import label_of_item
from model_store.errors import DatasetError
from model_store.gallery import Gallery

COLUMNS = frozenset({"text", "id", "label", "group", "source"})


def read_captions(path: Path, gallery: Gallery) -> Captions:
    """Read a table of captions: CSV, JSONL or Parquet.

    Each line has a ``text``, and the ``id`` of the item or the ``label`` that the text describes.
    If both fields are empty, the text describes nothing in the gallery. Texts with the same
    ``group`` are not independent. By default, texts with the same ``id`` form a group; equal texts
    without ``id`` form a group too. ``source`` is the origin of the text.

    Raises
    ------
    DatasetError : a line is invalid, or names an item or label that the gallery does not have.
    """
    labels = frozenset(gallery.labels)
    texts, about, clusters, sources = [], [], [], []
    for line in lines_of(path, COLUMNS):
        origin, fields = line
        text = text_of(fields, "text", origin)
        if text is None or not text.strip():
            raise DatasetError(
                f"{origin}: there is no text. Put the query into a column named text; "
                f"the columns here are {', '.join(map(repr, fields))}."
            )
        item = text_of(fields, "id", origin)
        texts.append(text)
        about.append(_label(line, gallery, labels))
        own = f"text {text.casefold()}" if item is None else f"item {item}"
        group = text_of(fields, "group", origin)
        clusters.append(own if group is None else f"group {group}")
        sources.append(text_of(fields, "source", origin) or "")
    known = tuple(sources) if any(sources) else None
    return Captions(tuple(texts), tuple(about), tuple(clusters), known)


def _label(line: Line, gallery: Gallery, labels: frozenset[str]) -> str | None:
    """Return the label that a line describes; the item's id if the gallery has no labels."""
    origin, fields = line
    item, label = text_of(fields, "id", origin), text_of(fields, "label", origin)
    if item is not None:
        found = label_of_item(gallery, item, origin, "id")
        if labels and label not in {None, found}:
            raise DatasetError(
                f"{origin}: the item {item!r} has the label {found!r}, not {label!r}."
            )
        return found
    if label is not None and label not in labels:
        known = f"no label {label!r}" if labels else "no labels: name items by their id"
        raise DatasetError(
            f"{origin}: the gallery has {known}. Leave label empty if the text describes no item."
        )
    return label
