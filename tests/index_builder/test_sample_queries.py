"""Query images that come with a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index_builder.configuration.build import BuildConfig, SampleConfig, load_config
from index_builder.datasets import load_splits
from index_builder.datasets.splits import Splits
from index_builder.pipeline.build import read_samples, write_samples
from model_store.errors import ConfigError

CONFIG = """
name = "digits"

[dataset]
kind = "digits"
withheld_labels = ["3"]

[[samples]]
file = "pictures/seven.webp"
caption = "A seven"
label = "7"

[[samples]]
file = "pictures/house.png"
caption = "A house: not in the collection"
"""


@pytest.fixture
def config(tmp_path: Path) -> BuildConfig:
    """A configuration with two samples in a folder beside its file."""
    (tmp_path / "pictures").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (12, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "pictures" / "seven.webp", lossless=True)
    Image.fromarray(255 - pixels).save(tmp_path / "pictures" / "house.png")
    file = tmp_path / "digits.toml"
    file.write_text(CONFIG, encoding="utf-8")
    return load_config(file)


@pytest.fixture
def splits(config: BuildConfig) -> Splits:
    return load_splits(config)


def test_samples_are_found_beside_their_configuration(config: BuildConfig, tmp_path: Path) -> None:
    files = [sample.file for sample in config.samples]
    assert files == [tmp_path / "pictures" / name for name in ("seven.webp", "house.png")]


def test_write_samples_copies_pixels_captions_and_membership(
    config: BuildConfig, splits: Splits, tmp_path: Path
) -> None:
    written = write_samples(tmp_path, splits, config.samples)
    assert [(one.caption, one.belongs) for one in written] == [
        ("A seven", True),
        ("A house: not in the collection", False),
    ]
    for one, sample in zip(written, config.samples, strict=True):
        np.testing.assert_array_equal(
            np.asarray(Image.open(tmp_path / one.file)), np.asarray(Image.open(sample.file))
        )


def test_write_samples_without_configuration_takes_evaluation_queries(
    splits: Splits, tmp_path: Path
) -> None:
    captions = [one.caption for one in write_samples(tmp_path, splits, ())]
    assert captions[0] == "0: a new photo"
    assert captions[-2:] == ["3: not in the collection", "photograph: another kind of image"]


def test_a_sample_of_a_withheld_label_cannot_match(config: BuildConfig, splits: Splits) -> None:
    sample = config.samples[0].model_copy(update={"label": "3"})
    with pytest.raises(
        ConfigError, match=r"samples.1.label is '3', which is not a label of the gal"
    ):
        read_samples([sample], splits)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read: .*No such file"), (b"no image", "samples.2.file is .*:")],
)
def test_a_sample_that_is_no_image_is_refused(
    config: BuildConfig, splits: Splits, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "bad.png"
    if content is not None:
        file.write_bytes(content)
    bad = SampleConfig(file=file, caption="nothing")
    with pytest.raises(ConfigError, match=said):
        read_samples([config.samples[0], bad], splits)
