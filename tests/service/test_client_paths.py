"""What a client makes paths and images of: a name asks no other route and no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_store.errors import InvalidRequest
from service.client.contract import headers_of, path_of
from service.client.vouched import image_named


def test_path_is_of_its_parts() -> None:
    assert path_of() == "/v1/galleries"
    assert path_of("shoes", "search") == "/v1/galleries/shoes/search"
    assert path_of("a?b", "items", "a/b c#") == "/v1/galleries/a%3Fb/items/a%2Fb%20c%23"


@pytest.mark.parametrize(
    "parts",
    [
        *((name, "search") for name in ("a/items/b", "/", "", ".", "..", "a\0b")),
        *(("shoes", "items", item) for item in ("", "..", "a/../b", "b/similar", "a\0b")),
        ("shoes", "review", "../calibration"),
    ],
)
def test_name_that_would_ask_another_route_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest):
        path_of(*parts)


@pytest.mark.parametrize(
    ("parts", "argument"),
    [
        ((None,), "gallery"),
        (("shoes", "items", 5), "item_id"),
        (("shoes", "items", None, "thumbnail"), "item_id"),
        (("shoes", "bundles", None, "activate"), "bundle_id"),
        (("shoes", "review", None), "query_id"),
        (("shoes", "unknown", 5, "enrol"), "group"),
    ],
)
def test_part_that_is_not_text_is_named(parts: tuple[Any, ...], argument: str) -> None:
    with pytest.raises(TypeError, match=f"{argument}: received (NoneType|int), wanted text"):
        path_of(*parts)


def test_key_that_is_not_text_is_named() -> None:
    with pytest.raises(TypeError, match="api_key: received int, wanted text"):
        headers_of(5)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize("text", ["\0", "a\0b.png", "x" * 5000, "~no-such-user-here/a.png", ""])
@pytest.mark.parametrize("inside", [True, False])
def test_text_that_is_no_path_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, inside: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match=r"is not the path|There is no file"):
        image_named(text, [tmp_path] if inside else None)
