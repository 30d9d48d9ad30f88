"""The items of a gallery."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ItemDetail(BaseModel):
    """One item of a gallery."""

    id: str
    label: str | None
    metadata: dict[str, Any]
    thumbnail_url: str
