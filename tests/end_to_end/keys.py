"""A file of API keys, and the keys that only their owner knows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Unpack

from service.access.keys import ApiKey, KeyOptions, KeyScope, change_keys, mint, read_keys


class KeysFile:
    """A file that `vouch-keys` could have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        change_keys(path, lambda keys: keys)

    def make(
        self,
        scope: KeyScope,
        *,
        name: str = "shop",
        expires: timedelta | None = None,
        **options: Unpack[KeyOptions],
    ) -> str:
        """Make a key; ``expires`` is counted from now, and may lie in the past."""
        kept, text = mint(name, scope, **options)
        if expires is not None:
            kept = kept.model_copy(update={"expires_at": kept.created_at + expires})
        change_keys(self.path, lambda keys: [*keys, kept])
        return text

    def change(self, text: str, change: Callable[[ApiKey], ApiKey]) -> None:
        """Change what is kept of a key."""
        changed_id = self.kept(text).id
        change_keys(
            self.path,
            lambda keys: [change(key) if key.id == changed_id else key for key in keys],
        )

    def kept(self, text: str) -> ApiKey:
        """What is kept of a key."""
        [found] = [key for key in read_keys(self.path) if key.id == id_of(text)]
        return found


def id_of(text: str) -> str:
    """The readable part of a key."""
    return text.split("_")[1]


def secret_of(text: str) -> str:
    """The part that must stay unknown."""
    return text.split("_")[2]


def bearer(text: str) -> dict[str, str]:
    """The header that a key is sent in."""
    return {"Authorization": f"Bearer {text}"}
