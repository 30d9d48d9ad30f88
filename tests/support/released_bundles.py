"""Directories of bundles that earlier releases wrote; see `tests/fixtures/released/NOTE.txt`."""

from __future__ import annotations

import tarfile
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "fixtures" / "released"
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in _FOLDER.glob("*.tar.xz"))


def released(release: str, folder: Path) -> Path:
    """The directory of bundles that a release wrote."""
    with tarfile.open(_FOLDER / f"{release}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "bundles"
