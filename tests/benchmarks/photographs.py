"""Sets of real images as folders, and their configuration with a trunk of torch."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from index_builder.configuration.build import BuildConfig

WEIGHTS = Path("backbones") / "mobilenet_v2_imagenet_int8.npz"
UNSEEN = {"caltech101_half": 0.5, "cub_first10": 0.5, "omniglot": 659 / 1623}
INPUT_SIZE = {"omniglot": 96}
"""Drawings of 105 × 105 pixels: there are 32,460 of them, and nothing is gained by enlarging."""


def unpacked(name: str, data: Path, into: Path) -> Path:
    """The folder with one sub-folder for each label."""
    if name == "omniglot":
        return _omniglot(data / name, into)
    (archive,) = (data / name).glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        file.extractall(into)
    (root,) = into.iterdir()
    return root


def _omniglot(source: Path, into: Path) -> Path:
    """Characters as labels; a background one sorts before every evaluation one."""
    for place, part in enumerate(("background", "evaluation")):
        with tarfile.open(source / f"images_{part}.tar.xz") as archive:
            for member in archive:
                path = Path(member.name)
                if not member.isfile():
                    continue
                folder = into / f"{place}-{path.parts[-3]}-{path.parts[-2]}"
                folder.mkdir(exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                (folder / path.name).write_bytes(content.read())
    return into


def config_of(name: str, root: Path, weights: Path) -> BuildConfig:
    """What `vouch-build all --images` does, with a trunk of torch and on the first labels only."""
    return BuildConfig.model_validate(
        {
            "name": name,
            "dataset": {"path": root, "unseen_share": UNSEEN[name]},
            "network": {
                "trunk": "mobilenet_v2",
                "weights": str(weights),
                "frozen": True,
                "input_size": INPUT_SIZE.get(name, 224),
            },
        }
    )
