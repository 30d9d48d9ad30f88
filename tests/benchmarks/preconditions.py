"""What a benchmark needs that it cannot make: said in one line where it is missing."""

from __future__ import annotations

import os
from pathlib import Path


def data_dir() -> Path:
    """Return the folder of real data sets; exit where VOUCH_DATA_DIR names none."""
    named = os.environ.get("VOUCH_DATA_DIR")
    if not named or not Path(named).is_dir():
        raise SystemExit(
            f"VOUCH_DATA_DIR names no folder ({named or 'it is not set'}). This benchmark reads "
            "real data sets from there."
        )
    return Path(named)


def built(bundles: Path, config: str) -> Path:
    """Return ``bundles``; exit where no bundle was built there."""
    if not (bundles / "CURRENT").exists() and not (bundles / "manifest.json").exists():
        raise SystemExit(
            f"There is no bundle in {bundles}. Build one: vouch-build all --config {config}"
        )
    return bundles
