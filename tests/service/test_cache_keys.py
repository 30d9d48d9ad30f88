"""Keys of cached images: of one encoder, and of one gallery where its users are to be apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from service.encoding.cache import key_prefix


def retriever(fingerprint: str) -> Any:
    uncalibrated = SimpleNamespace(calibration=None)
    return SimpleNamespace(
        encoder=SimpleNamespace(fingerprint=fingerprint),
        text=None,
        for_kind=lambda _: uncalibrated,
    )


def test_encoders_and_galleries_have_keys_of_their_own() -> None:
    keys = {key_prefix(retriever(encoder), gallery) for encoder in "ab" for gallery in ("", "x")}
    assert len(keys) == 4
