"""Photographs in files, and the encoder that the workflows ask about them."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.workflows.commands import Commands

SIDE = 128
"""Pixels of the images that the encoder takes."""


@pytest.fixture(scope="package")
def unpacked(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sub-folder for each of Caltech-101's kinds here, twenty photographs each."""
    (archive,) = (data_dir / "caltech101_half").glob("*.zip")
    root = tmp_path_factory.mktemp("photographs")
    with zipfile.ZipFile(archive) as file:
        file.extractall(root)
    (folder,) = root.iterdir()
    return folder


@pytest.fixture(scope="package")
def encoder(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MobileNetV2 as it is, made elsewhere: it has learned nothing from any gallery.

    Images are prepared smaller than it was trained at, which takes it a third of the time.
    """
    place = tmp_path_factory.mktemp("encoders")
    weights = data_dir / "backbones" / "mobilenet_v2_imagenet_int8.npz"
    smaller = {"input_size": [3, SIDE, SIDE], "crop_pct": 1.0}
    (place / "smaller.json").write_text(json.dumps(smaller), encoding="utf-8")
    named = ("--torchvision", "mobilenet_v2", "--weights", weights, "--out", "photographs")
    Commands(place).run("encoder", *named, "--preprocess", "smaller.json")
    return place / "photographs"


@pytest.fixture
def photographs(unpacked: Path, tmp_path: Path) -> Path:
    """The same in the test's own directory, where its tables name them."""
    return Path(shutil.copytree(unpacked, tmp_path / "photographs", copy_function=os.link))


@pytest.fixture
def shuffled(photographs: Path) -> list[Path]:
    """All of them in random order: the first become a gallery, the others are foreign to it."""
    paths = sorted(photographs.glob("*/*"))
    order = np.random.default_rng(1).permutation(len(paths))
    return [paths[place] for place in order]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """The command line, in the test's own directory."""
    return Commands(tmp_path)
