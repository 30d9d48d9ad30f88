"""The rule of an item's id, at its boundaries."""

from __future__ import annotations

import pytest

from model_store.items import MAX_ID_LENGTH, check_item_id, check_text


@pytest.mark.parametrize(
    "item_id",
    [
        *(
            "a",
            "x" * MAX_ID_LENGTH,
            " ",
            "~",
            "/abs/y.png",
            "<script>",
            "a.b",
            "...",
            "a/...",
            ".a",
        ),
        *("similar", "thumbnail", "a/similar/b", "a/similars", "https://host/a//b?c=d#1,2,3,4"),
        *("Grüße", "日本", "a\u00a0b", "1.23\u202fPM.png", "\u200fשלום", "👩\u200d🚒"),
    ],
)
def test_id_that_can_be_asked_for_is_accepted(item_id: str) -> None:
    assert check_item_id(item_id) == item_id


@pytest.mark.parametrize(
    ("item_id", "said"),
    [
        ("", "1 to 1,024 characters, not 0"),
        ("x" * (MAX_ID_LENGTH + 1), "not 1,025"),
        *((one, "between slashes") for one in (".", "..", "a/..", "../a", "a/./b", "/..")),
        *((f"a/{one}", "must not end") for one in ("similar", "thumbnail")),
        *((f"a{one}b", "control characters") for one in "\0\n\r\t\x1f\x7f\x9f\u2028\u2029\ud800"),
        *((f"a{one}b", "overrides of direction") for one in "\u202a\u202e\u2066\u2069"),
    ],
)
def test_id_that_cannot_be_asked_for_is_refused(item_id: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_item_id(item_id)


@pytest.mark.parametrize("neighbour", ["\u2027", "\u202f", "\u2065", "\u206a", "\x20", "\xa0"])
def test_text_has_neighbours_of_the_refused_characters(neighbour: str) -> None:
    assert check_text(f"a{neighbour}b") == f"a{neighbour}b"
