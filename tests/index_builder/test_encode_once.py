"""A build computes each picture once, and says what it would say had every step computed it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from index_builder.calibration.calibrate import N_DETECTOR_IMAGES
from index_builder.calibration.detector import N_DEGRADED
from index_builder.calibration.item_queries import whole_groups
from index_builder.configuration.build import BuildConfig
from index_builder.configuration.encoder import NetworkConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted, degraded
from index_builder.networks import build_encoder, save_checkpoint
from index_builder.pipeline.build import (
    build_all,
    calibrate_step,
    evaluate_step,
    index_step,
    splits_of,
)
from index_builder.pipeline.graphs import write_head
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import fit_step
from index_builder.vectors.encoder import Halves, OnnxTrunk
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder

pytestmark = pytest.mark.bundle

N_CHECKED = 5  # images on which the exported files are compared with torch and each other


class Asked:
    """How often the networks were given each picture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trunk: Counter[bytes] = Counter()
        self.encoder: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        for kind, name, count in (
            (OnnxTrunk, "features", self.trunk),
            (OnnxEncoder, "encode", self.encoder),
        ):
            monkeypatch.setattr(kind, name, self._counting(getattr(kind, name), count))

    def _counting(self, function: Callable[..., Any], count: Counter[bytes]) -> Callable[..., Any]:
        def counted(network: Any, images: NDArray[np.uint8], *rest: Any) -> Any:
            with self._lock:
                count.update(image.tobytes() for image in images if image.any())
            return function(network, images, *rest)

        return counted

    def clear(self) -> None:
        self.trunk.clear()
        self.encoder.clear()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    root = tmp_path_factory.mktemp("pictures")
    data = load_digits()
    for row, (image, label) in enumerate(zip(data.images[:300], data.target, strict=False)):
        (root / str(label)).mkdir(exist_ok=True)
        pixels = np.round(image * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(root / str(label) / f"{row:04d}.png")
    network = NetworkConfig(embedding_dim=16)
    checkpoint = tmp_path_factory.mktemp("weights") / "checkpoint.safetensors"
    encoder = build_encoder(network, torch.Generator().manual_seed(0))
    save_checkpoint(encoder.state_dict(), checkpoint, None)
    return BuildConfig.model_validate(
        {
            "name": "once",
            "dataset": {"kind": "folder", "path": root},
            "outliers": {"calibration": "none", "evaluation": "none"},
            "network": {
                "trunk": "small_cnn",
                "weights": str(checkpoint),
                "frozen": True,
                "last_layer": "loaded",
                "embedding_dim": 16,
            },
            "posterior": {"structure": "diagonal"},  # of so many features, in no time
            "training": {"epochs": 0},
        }
    )


def staged(run: Run) -> dict[str, bytes]:
    """What the steps after `export` leave, but for the gallery's database, which holds times."""
    names = ["calibration.json", "calibration.npz", "evaluation.json"]
    return {name: (run.staging / name).read_bytes() for name in names}


def degraded_ones(gallery: LabelledImages, seed: int) -> LabelledImages:
    """The images of the gallery that teach the state of a picture, degraded."""
    order = np.random.default_rng(seed).permutation(len(gallery))
    images = gallery.at(whole_groups(gallery.groups, order, N_DETECTOR_IMAGES))
    return degraded(images.at(range(min(N_DEGRADED, len(images)))), seed)


def test_each_picture_is_computed_once_in_a_whole_build(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = Run(tmp_path / "run"), Asked(monkeypatch)
    build_all(config, run, tmp_path / "bundles")
    splits = splits_of(config)
    asked_of = splits.evaluation.matched
    parts = [splits.training, splits.validation, splits.calibration.matched]
    parts += [asked_of, corrupted(asked_of, config.seed)]
    poor = degraded_ones(splits.gallery, config.seed)
    parts.append(poor)
    preprocessing = OnnxTrunk(run.trunk).preprocessing
    pictures = [image.tobytes() for part in parts for image in part.prepared(preprocessing)]
    checked = splits.training.at(range(N_CHECKED)).prepared(preprocessing)
    again = Counter(image.tobytes() for image in checked)
    assert set(asked.trunk) == set(pictures)
    # A copy that is hardly degraded may be a picture that there is already.
    alike = Counter(image.tobytes() for image in poor.prepared(preprocessing))
    assert max((asked.trunk - again - again - alike).values()) == 1
    assert set(asked.encoder) == set(again)  # the checks of what was exported alone

    said = staged(run)
    asked.clear()
    fit_step(config, run, splits)
    for step in (index_step, calibrate_step, evaluate_step):
        step(config, run)
    assert not asked.encoder
    assert not asked.trunk
    assert staged(run) == said

    run.vectors.unlink()
    run.head.unlink()
    for step in (index_step, calibrate_step, evaluate_step):
        step(config, run)
    assert set(pictures) == set(asked.encoder)
    assert staged(run) == said  # whole pictures through the whole encoder, to the last bit


def test_halves_of_another_encoder_are_not_taken(config: BuildConfig, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    build_all(config, run, tmp_path / "bundles")
    fingerprint = OnnxEncoder(run.staging / ENCODER_FILE, "cpu").fingerprint
    assert Halves.of(run.trunk, run.head, fingerprint) is not None
    assert Halves.of(run.trunk, run.head, "another") is None
    trunk = run.trunk.read_bytes()
    run.trunk.write_bytes(trunk + b"\x00")
    assert Halves.of(run.trunk, run.head, fingerprint) is None
    run.trunk.unlink()
    assert Halves.of(run.trunk, run.head, fingerprint) is None


def test_a_head_that_differs_in_a_bit_is_not_written(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    build_all(config, run, tmp_path / "bundles")
    some = splits_of(config).training.at(range(N_CHECKED))
    prepared = some.prepared(OnnxTrunk(run.trunk).preprocessing)
    path = tmp_path / "head.onnx"
    assert write_head(run.staging / ENCODER_FILE, run.trunk, path, prepared)
    assert path.read_bytes() == run.head.read_bytes()
    features = OnnxTrunk.features
    monkeypatch.setattr(
        OnnxTrunk, "features", lambda self, images: np.nextafter(features(self, images), np.inf)
    )
    assert not write_head(run.staging / ENCODER_FILE, run.trunk, path, prepared)
    assert not path.exists()
