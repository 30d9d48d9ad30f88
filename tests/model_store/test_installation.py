"""What Vouch is installed as, and that no message names another project's package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from model_store.installation import DISTRIBUTION, how_to_install, installed_versions

ROOT = Path(__file__).parents[2]


def test_the_distribution_is_the_one_that_is_built() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert "'.[parquet]'" in how_to_install("parquet")
    assert f"'{DISTRIBUTION}[parquet]'" in how_to_install("parquet")
    assert "parquet" in project["optional-dependencies"]


@pytest.mark.parametrize("package", ["model_store", "index_builder", "service"])
def test_nothing_tells_to_install_what_is_not_ours(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not re.search(r"\bvouch\[", path.read_text(encoding="utf-8")), path


def test_what_is_not_installed_has_no_version() -> None:
    assert installed_versions(["numpy", "no-such-distribution"]).keys() == {"numpy"}
