"""Shared parts of integrations: results only for the verdict `match`; images named in text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_store.errors import InvalidRequest
from service import schemas

from .client import VouchClient


def image_named(text: str, folders: Sequence[Path] | None = None) -> Path | bytes:
    """Return an image file, from its path or from a ``data:`` URI.

    Parameters
    ----------
    folders : allowed folders; if None, all folders are allowed. Symbolic links are resolved before
        the check.

    Raises
    ------
    InvalidRequest : the file is missing or outside of ``folders``, or the URI is not base64.
    """
    if text.startswith("data:"):
        return _held_by(text)
    try:
        path = Path(text).expanduser().resolve()
        _require_inside(text, path, folders)
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # e.g. a null character
        raise InvalidRequest(
            f"{text[:200]!r} is not the path of a file ({error}). Give the path of an "
            "image, or send the image as a data: URI in base64."
        ) from error
    if not is_file:
        raise InvalidRequest(
            f"There is no file {text[:200]!r}. Give the path of an image, or a data: URI."
        )
    return path


def _require_inside(text: str, path: Path, folders: Sequence[Path] | None) -> None:
    if folders is not None and not any(path.is_relative_to(one.resolve()) for one in folders):
        allowed = ", ".join(map(str, folders)) or "none: the server was started without `--images`"
        raise InvalidRequest(
            f"The image {text[:200]!r} is outside of the allowed folders ({allowed}). Use "
            "an image in an allowed folder, or send the image as a data: URI in base64."
        )


def _held_by(uri: str) -> bytes:
    head, _, data = uri.partition(",")
    try:
        image = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        image = b""
    if not image or not head.endswith(";base64"):
        raise InvalidRequest(
            f"{uri[:40]!r}… is not an image in base64: wanted data:image/png;base64,…"
        )
    return image


MIN_MATCH_PROBABILITY = 0.5
"""Minimum match probability of results after the first. The verdict covers only the first
result."""


def vouched_results(
    client: VouchClient,
    gallery: str,
    image: Path | bytes,
    limit: int,
    min_match_probability: float = MIN_MATCH_PROBABILITY,
) -> list[schemas.Result]:
    """Return the results of a search if its verdict is ``match``; else no results.

    Parameters
    ----------
    min_match_probability : minimum match probability of results after the first.

    Raises
    ------
    VouchProblem : for example ``corrupt_image``.
    """
    answer = client.search(gallery, image, limit=limit, on_uncertain="refuse")
    if answer.verdict != "match":
        return []
    return [
        one
        for one in answer.results
        if one.rank == 1 or (one.match_probability or 0) >= min_match_probability
    ]


def text_of(result: schemas.Result, text_key: str | None) -> str:
    """Return the metadata value at ``text_key``, else the label, else the id."""
    text = None if text_key is None else result.metadata.get(text_key)
    return str(text if text is not None else result.label or result.id)


def metadata_of(gallery: str, result: schemas.Result) -> dict[str, Any]:
    """Return an item's metadata, with Vouch's result under the key ``vouch``."""
    own = result.model_dump(
        include={"id", "label", "rank", "similarity", "match_probability", "thumbnail_url"}
    )
    return {**result.metadata, "vouch": {"gallery": gallery, **own}}
