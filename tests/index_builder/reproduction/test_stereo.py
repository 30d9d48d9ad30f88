"""Dense stereo matching, on pairs made of scikit-learn's photographs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.reproduction import stereo
from index_builder.reproduction.stereo_matching import (
    FAR,
    NEAR,
    PATCH,
    PatchEmbedding,
    StereoPair,
    Triplets,
    cost_volume,
    fitted_temperature,
    kitti,
    made_pair,
    matched,
    standardised,
)
from model_store.errors import ConfigError

MOST = 12


@pytest.fixture(scope="module")
def photograph() -> np.ndarray:
    return np.asarray(load_sample_images().images[0])[::4, ::4]


@pytest.fixture(scope="module")
def pair(photograph: np.ndarray) -> StereoPair:
    return made_pair(photograph, MOST, np.random.default_rng(0))


def test_a_known_pixel_of_a_made_pair_is_seen_by_both_cameras(pair: StereoPair) -> None:
    rows, columns = np.nonzero(pair.known)
    matches = columns - pair.disparity[rows, columns].astype(int)
    assert (matches >= 0).all()
    assert 0.6 < pair.known.mean() < 1
    assert 0 < pair.disparity.max() <= MOST
    left, right = (image.astype(float) for image in (pair.left, pair.right))
    seen, found = left[rows, columns].mean(1), right[rows, matches].mean(1)
    assert np.corrcoef(seen, found)[0, 1] > 0.98
    # One pixel of the right image shows one of the left one, not two.
    assert len(set(zip(rows.tolist(), matches.tolist(), strict=True))) == len(rows)


def test_a_crop_and_the_whole_image_have_the_same_embedding(pair: StereoPair) -> None:
    network = PatchEmbedding(torch.Generator().manual_seed(0))
    whole = network.embed(pair.left)
    assert whole.shape == (64, *pair.left.shape[:2])
    torch.testing.assert_close(whole.norm(dim=0), torch.ones(whole.shape[1:]))
    row, column, border = 20, 30, PATCH // 2
    crop = standardised(pair.left)[
        :, row - border : row + border + 1, column - border : column + border + 1
    ]
    torch.testing.assert_close(network(crop[None])[0, :, 0, 0], whole[:, row, column])


def test_triplets_show_the_same_and_something_near(pair: StereoPair) -> None:
    """Of a pair whose columns have their number for colour, crops say where they are from."""
    width = pair.left.shape[1]
    columns = np.tile(np.arange(width, dtype=np.uint8)[None, :, None], (len(pair.left), 1, 3))
    numbered = StereoPair(columns, columns, pair.disparity, pair.known)
    values = columns.astype(float)
    crops = Triplets([numbered], 0).draw(50)[:, 0, PATCH // 2, PATCH // 2].numpy()
    place = (crops * values.std(ddof=1) + values.mean()).round()
    anchor, positive, negative = place.reshape(3, 50)
    assert (anchor - positive >= 0).all()
    assert set((anchor - positive).tolist()) <= set(np.unique(pair.disparity).tolist())
    off = np.abs(negative - positive)
    assert (off >= NEAR).all()
    assert (off <= FAR).all()


def test_the_cost_volume_compares_with_what_lies_to_the_left() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.nn.functional.normalize(torch.randn(8, 5, 20, generator=generator), dim=0)
    left = right.roll(3, dims=2)  # (i, j) of the left is (i, j − 3) of the right
    volume = cost_volume(left, right, 6)
    assert volume.shape == (7, 5, 20)
    assert torch.isneginf(volume[4, :, :4]).all()
    found = matched(volume, 0.01)
    assert (found.winner[:, 6:] == 3).all()
    assert (found.confidence[:, 6:] > 0.9).all()


def test_uncertainty_is_that_of_the_distribution_over_disparities() -> None:
    volume = torch.log(torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.3, 0.2]))[:, None, None]
    found = matched(volume, 1.0)
    assert found.winner.item() == 0
    assert found.confidence.item() == pytest.approx(0.5)  # within three pixels of 0
    values = np.array([0] * 5 + [5] * 3 + [6] * 2)
    assert found.std.item() == pytest.approx(values.std())


def test_the_temperature_is_that_of_the_greatest_likelihood() -> None:
    generator = np.random.default_rng(0)
    similarities = generator.normal(size=(5, 4000))
    odds = np.exp(similarities / 0.1)
    cumulative = (odds / odds.sum(0)).cumsum(0)
    drawn = (generator.random(4000) > cumulative).sum(0).astype(np.float32)
    found = fitted_temperature(torch.from_numpy(similarities), drawn)
    assert found == pytest.approx(0.1, rel=0.3)


@pytest.mark.slow
def test_the_command_measures_and_learning_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photograph: np.ndarray
) -> None:
    """A fraction of the training, on photographs of a third of the height."""
    monkeypatch.delenv("VOUCH_DATA_DIR", raising=False)
    monkeypatch.setattr(stereo, "TRIPLETS_PER_EPOCH", 25 * 128)
    monkeypatch.setattr(stereo, "MOST_MADE", MOST)
    monkeypatch.setattr(stereo, "N_MADE", {"training": 1, "validation": 1, "test": 1})
    small = [np.asarray(image)[::3, ::3] for image in load_sample_images().images]
    monkeypatch.setattr(stereo, "load_sample_images", lambda: type("Two", (), {"images": small}))
    arguments = ["reproduce", "--protocol", "stereo", "--seeds", "1", "--epochs", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    ways = json.loads((tmp_path / "report.json").read_bytes())["data_sets"]["made of photographs"]
    learned, correlation = ways["learned"], ways["correlation"]
    assert learned["within"]["mean"] > 0.5
    assert learned["within"]["mean"] > correlation["within"]["mean"] - 0.1
    assert learned["error_auroc"]["mean"] > 0.6
    assert learned["ece"]["mean"] < 0.3
    assert "| made of photographs | learned |" in (tmp_path / "table.md").read_text()


def test_what_stereo_has_no_use_for_is_refused() -> None:
    arguments = ["reproduce", "--protocol", "stereo", "--objective", "supcon"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "Remove --objective" in str(result.exception)


def test_kitti_is_read_in_its_official_layout(tmp_path: Path, pair: StereoPair) -> None:
    assert kitti("KITTI 2015", tmp_path) is None
    training = tmp_path / "Kitti2015" / "training"
    for folder, image in (("image_2", pair.left), ("image_3", pair.right)):
        (training / folder).mkdir(parents=True)
        Image.fromarray(image).save(training / folder / "000000_10.png")
    stored = np.where(pair.known, pair.disparity * 256, 0).astype(np.uint16)
    for folder in ("disp_occ_0", "disp_occ_1"):
        (training / folder).mkdir()
        Image.fromarray(stored).save(training / folder / "000000_10.png")
    found = kitti("KITTI 2015", tmp_path)
    assert found is not None
    np.testing.assert_array_equal(found[0].left, pair.left)
    known = pair.known & (pair.disparity > 0)
    np.testing.assert_array_equal(found[0].known, known)
    np.testing.assert_allclose(found[0].disparity[known], pair.disparity[known])
