"""A certified bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.certified_bundles import certified, published, run


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle, a key, and the bundle's certificate that it signed."""
    root = tmp_path_factory.mktemp("certified")
    bundle = published(root)
    done = run(root, "certify", "--new-key", "key")
    assert done.returncode == 0, done.stderr
    certified(root, bundle, "--key", "key")
    return root


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "bundles", tmp_path / "bundles", symlinks=True)
    [found] = [path.parent for path in tmp_path.glob("bundles/*/manifest.json")]
    return found


@pytest.fixture
def certificate(made: Path, tmp_path: Path, bundle: Path) -> Path:
    """A signed one, beside its key."""
    for key in made.glob("key*"):
        shutil.copy(key, tmp_path)
    shutil.copytree(made / "certificates", tmp_path / "certificates")
    return tmp_path / "certificates" / bundle.name / "certificate.json"
