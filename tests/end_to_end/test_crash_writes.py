"""Killed while it is written to: what was acknowledged is there, nothing is half there."""

from __future__ import annotations

import shutil
from pathlib import Path

from model_store.bundles.directory import activate
from tests.end_to_end.writes import CrashTest


def test_no_acknowledged_write_is_lost(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    crash = CrashTest(root, digits_bundle, tmp_path / "service.log")
    crash.run(n_kills=3)
    assert crash.counts["acknowledged"] > 0
    assert crash.counts["results checked"] > 0
