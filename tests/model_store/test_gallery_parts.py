"""Items and their embeddings, part by part, and the names of the room."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from model_store import gallery
from model_store.gallery import protocol
from model_store.gallery.protocol import NewItem, in_parts
from tests.laws.gallery_laws import new_items, random_embeddings


@pytest.mark.parametrize("at_once", [1, 3, 4, 7, 8])
def test_parts_are_of_so_many_items_in_the_order_of_their_ids(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "AT_ONCE", at_once)
    embeddings, items = random_embeddings(7, 3, seed=0), new_items(7)[::-1]
    parts = list(in_parts(embeddings, items))
    assert [len(of_part) for _, of_part in parts[:-1]] == [at_once] * (6 // at_once)
    together: list[NewItem] = [item for _, of_part in parts for item in of_part]
    assert [item.id for item in together] == sorted(item.id for item in items)
    rows = [items.index(item) for item in together]
    for name in ("mean", "variance"):
        whole = np.concatenate([getattr(part, name) for part, _ in parts])
        np.testing.assert_array_equal(whole, getattr(embeddings, name)[rows])
    assert all(len(part.features) == 0 for part, _ in parts), "no gallery keeps them"


def test_as_many_items_as_embeddings_are_wanted_each_with_an_id_of_its_own() -> None:
    with pytest.raises(ValueError, match="2 items and 3 embeddings"):
        next(in_parts(random_embeddings(3, 2, seed=0), new_items(2)))
    with pytest.raises(ValueError, match="repeat"):
        next(in_parts(random_embeddings(4, 2, seed=0), new_items(2) * 2))


def test_the_room_has_the_names_that_it_says_and_no_others() -> None:
    for name, module in gallery._MODULE_OF.items():
        assert getattr(gallery, name) is getattr(
            import_module(f"{gallery.__name__}.{module}"), name
        )
    for name in ("nothing", "Upserts", "MyUpsert"):
        with pytest.raises(AttributeError, match=name):
            getattr(gallery, name)
