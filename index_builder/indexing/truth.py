"""The truth of a query: which items of a gallery it matches, by the label that they share."""

from __future__ import annotations

from model_store.errors import DatasetError, ItemNotFound
from model_store.gallery import Gallery


def label_of_item(gallery: Gallery, name: str, origin: str, column: str) -> str:
    """Return the label of the item that a query shows; its id in a gallery without labels.

    Parameters
    ----------
    origin, column : where the item is named, for messages.

    Raises
    ------
    DatasetError : the gallery has no such item, or the item no label where others have one.
    """
    try:
        item = gallery.item(name)
    except ItemNotFound as error:
        raise DatasetError(
            f"{origin}: the query shows the item {name!r}. {error} Leave {column} empty where it "
            "shows none of its items."
        ) from error
    if not gallery.labels:
        return item.id
    if item.label is None:
        raise DatasetError(
            f"{origin}: the query shows the item {name!r}, which has no label, as others of the "
            "gallery have. Give it one, or leave the query out."
        )
    return item.label
