"""Images given as a path or a ``data:`` URI, for tools that send text only."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path

from model_store.errors import InvalidRequest


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
