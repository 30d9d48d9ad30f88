"""The photographs of the demo are a gallery, queries and samples, without a copy between them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.datasets.groups import fingerprint, pairs_among
from model_store.images import decode_image

DEMO = Path(__file__).parents[1] / "docs" / "demo"

MAX_BYTES = 2_000_000
"""Bytes of all images: each clone of the repository has them."""

MIN_SIDE = 128

MIN_IMAGES = 10
"""Photographs of a kind."""


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return tomllib.loads((DEMO / "photographs.toml").read_text(encoding="utf-8"))


def images() -> list[Path]:
    return sorted([*DEMO.glob("photographs/*/*"), *DEMO.glob("samples/*")])


def test_demo_images_are_large_enough_and_few() -> None:
    paths = images()
    assert sum(path.stat().st_size for path in paths) <= MAX_BYTES
    shapes = [decode_image(path.read_bytes()).pixels.shape[:2] for path in paths]
    assert min(map(min, shapes)) >= MIN_SIDE


def test_demo_withholds_some_of_its_kinds(config: dict[str, Any]) -> None:
    kinds = {folder.name: len(list(folder.iterdir())) for folder in DEMO.glob("photographs/*")}
    withheld = set(config["dataset"]["withheld_labels"])
    assert withheld < set(kinds)
    assert len(set(kinds) - withheld) >= 20
    assert min(kinds.values()) >= MIN_IMAGES


def test_demo_images_are_all_different() -> None:
    """A sample with a copy in the gallery would show nothing."""
    paths = images()
    found = pairs_among([fingerprint(decode_image(path.read_bytes()).pixels) for path in paths])
    assert [[paths[row] for row in pair] for pair in np.asarray(found)] == []


def test_demo_samples_are_all_configured(config: dict[str, Any]) -> None:
    files = {DEMO / sample["file"] for sample in config["samples"]}
    assert files == set(DEMO.glob("samples/*"))


def test_demo_attribution_names_every_folder_that_was_renamed() -> None:
    text = (DEMO / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in text
    renamed = set(re.findall(r"^\| `([\w-]+)` \| `\w+` \|$", text, re.MULTILINE))
    folders = {folder.name for folder in DEMO.glob("photographs/*")}
    assert renamed < folders
    assert all("-" not in folder for folder in folders - renamed)
