"""Room for items: what a key may keep in a gallery."""

from __future__ import annotations

from collections.abc import Sequence

from model_store.errors import ItemNotFound, QuotaExceeded
from model_store.gallery import Delete, Gallery, Upsert


def require_room(gallery: Gallery, writes: Sequence[Upsert | Delete], most_items: int) -> None:
    """Refuse writes after which a gallery would hold more items than the key may keep in one.

    What makes a gallery no larger is never refused.

    Raises
    ------
    QuotaExceeded
    """
    change = 0
    for write in writes:
        item_id = write.id if isinstance(write, Delete) else write.item.id
        try:
            gallery.row(item_id)
        except ItemNotFound:
            change += isinstance(write, Upsert)
        else:
            change -= isinstance(write, Delete)
    if change > 0 and gallery.n_items + change > most_items:
        raise QuotaExceeded(
            f"The key may keep {most_items:,} items in a gallery; with these there would be "
            f"{gallery.n_items + change:,}. Nothing was changed. Delete some, or ask the service's "
            "operator for more."
        )
