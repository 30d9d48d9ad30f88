"""The items of a gallery, page by page."""

from __future__ import annotations

from dataclasses import dataclass

from model_store.gallery import Item
from model_store.retriever import Bundle


@dataclass(frozen=True, slots=True)
class Page:
    """Some items of a gallery, by id.

    Attributes
    ----------
    last : row of the last of them, where more come after it.
    """

    items: list[Item]
    last: int | None


def page_of(bundle: Bundle, after: int | None, limit: int) -> Page:
    """At most ``limit`` items by id, from the one after the row ``after`` on."""
    gallery = bundle.retriever.gallery
    if after is not None and after >= gallery.n_rows and bundle.live is not None:
        gallery = bundle.live.refresh()  # another replica was asked first, and is ahead
    if after is not None and after >= gallery.n_rows:
        return Page([], None)
    rows = gallery.page(after, limit + 1)  # one more, to see whether there is one
    shown = rows[:limit]
    return Page(gallery.items(shown), int(shown[-1]) if len(rows) > limit else None)
