"""Small collections of real drawings, and the way they are indexed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from index_builder.indexing.blocks import parse_tolerance
from index_builder.indexing.collection import Indexing
from index_builder.indexing.sources import open_source
from model_store.bundles.manifest import ENCODER_FILE
from tests.support.collection_files import write_drawings
from tests.support.forked_decoders import forked


@pytest.fixture(autouse=True)
def _decoders_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index_builder.indexing.engines._started", forked)


@pytest.fixture(scope="session")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of digits, one sub-folder for each label."""
    root = tmp_path_factory.mktemp("drawings")
    write_drawings(root)
    return root


@pytest.fixture
def indexing(digits_bundle: Path, drawings: Path, tmp_path: Path) -> Indexing:
    """The drawings, to be indexed with the demo's encoder into an empty directory."""
    return Indexing(
        source=open_source(drawings),
        encoder=digits_bundle / ENCODER_FILE,
        name="drawings",
        description="some digits",
        directory=tmp_path / "run",
        bundles=tmp_path / "bundles",
        tolerance=parse_tolerance("1%"),
        resume=True,
        n_workers=2,
        provider="cpu",
    )


@pytest.fixture
def at(indexing: Indexing, tmp_path: Path) -> Callable[[Path], Indexing]:
    """The same of another source, in a directory of its own."""

    def of(source: Path) -> Indexing:
        return replace(
            indexing, source=open_source(source), directory=tmp_path / f"run of {source.name}"
        )

    return of
