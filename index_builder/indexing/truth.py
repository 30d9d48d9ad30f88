"""Finds the label of the item that a query shows. A query matches all items with this label."""

from __future__ import annotations

from model_store.errors import DatasetError, ItemNotFound
from model_store.gallery import Gallery


def label_of_item(gallery: Gallery, name: str, origin: str, column: str) -> str:
    """Return the label of the item that a query shows.

    If no item of the gallery has a label, the function returns the id of the item instead.

    Parameters
    ----------
    origin, column : line and column that contain the item's id, for messages.

    Raises
    ------
    DatasetError : the gallery has no such item, or the item has no label although other items have
        labels.
    """
    try:
        item = gallery.item(name)
    except ItemNotFound as error:
        raise DatasetError(
            f"{origin}: the query shows the item {name!r}. {error} If the query shows no item of "
            f"the gallery, leave {column} empty."
        ) from error
    if not gallery.labels:
        return item.id
    if item.label is None:
        raise DatasetError(
            f"{origin}: the query shows the item {name!r}, which has no label, but other items "
            "have labels. Give the item a label, or leave the query out."
        )
    return item.label
