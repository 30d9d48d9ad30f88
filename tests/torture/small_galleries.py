"""Small galleries in bundles without an encoder, and their backups taken apart."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

from model_store.gallery import LiveGallery
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.support.live_bundles import DIM, published

N_ITEMS = 12


def small_gallery(folder: Path) -> Path:
    """Publish a gallery; returns the directory of bundles."""
    return published(folder, random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS))


def contents(live: LiveGallery) -> list[object]:
    """Everything that a gallery says of its items."""
    now = live.snapshot()
    rows = now.page(None, 999)
    pictures = [now.thumbnail(item.id) for item in now.items(rows)]
    return [now.version, now.items(rows), pictures, now.directions(rows).tolist()]


def members(archive: Path) -> dict[str, bytes]:
    """The files in an archive."""
    with tarfile.open(archive) as tar:
        files = [member for member in tar if member.isfile() or member.islnk()]
        return {one.name: file.read() for one in files if (file := tar.extractfile(one))}


def rewritten(archive: Path, target: Path, others: dict[str, str]) -> None:
    """Copy an archive, with other content in some files."""
    with tarfile.open(target, "w") as tar:
        for name, content in (
            members(archive) | {n: o.encode() for n, o in others.items()}
        ).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))


def everything(folder: Path) -> list[Path]:
    """The files and folders below a folder."""
    return sorted(folder.rglob("*"))
