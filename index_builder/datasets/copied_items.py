"""The items of a copied source: a manifest beside the copies keeps what a file name cannot keep.

The manifest has the format that `vouch-build index` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_store.files import PARTIAL

COPIED_ITEMS = ".vouch-items.jsonl"
"""Name of the manifest in a folder of copies. A user's folder does not contain this name by chance.
"""


@dataclass(frozen=True, slots=True)
class CopiedItem:
    """An item of the source, and the copy of its image.

    Attributes
    ----------
    path : the copy, relative to the folder.
    id, label, group, source, metadata : see `Entry`.
    """

    path: str
    id: str
    label: str | None = None
    group: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def write_copied_items(folder: Path, items: Iterable[CopiedItem]) -> Path:
    """Write the manifest of the copies in ``folder``; return its path."""
    path = folder / COPIED_ITEMS
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("w", encoding="utf-8") as file:
        for one in items:
            line = {name: getattr(one, name) for name in one.__slots__}
            file.write(json.dumps(line) + "\n")
    partial.replace(path)
    return path


def copied_items(folder: Path) -> list[CopiedItem] | None:
    """Return the items of a folder of copies; None if the folder is no folder of copies."""
    path = folder / COPIED_ITEMS
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return [CopiedItem(**json.loads(line)) for line in file]
