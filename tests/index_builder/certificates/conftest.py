"""A certified bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.certified_bundles import certified, published, run


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return published(tmp_path)


@pytest.fixture
def certificate(tmp_path: Path, bundle: Path) -> Path:
    """A signed one, beside its key."""
    done = run(tmp_path, "certify", "--new-key", "key")
    assert done.returncode == 0, done.stderr
    return certified(tmp_path, bundle, "--key", "key")
