"""Made-up pictures: views that a query could be, and copies spoilt beyond that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index_builder.configuration.build import BuildConfig, DatasetConfig
from index_builder.datasets import LabelledImages, load_splits
from index_builder.datasets.corruption import NOISE, blurred, corrupted, noisy, views
from index_builder.datasets.images import from_arrays, joined

Change = Callable[[LabelledImages, int], LabelledImages]


@pytest.fixture
def images() -> LabelledImages:
    """Smooth pictures, so that likeness can be measured."""
    across, down = np.meshgrid(np.linspace(0, 1, 60), np.linspace(0, 1, 40))
    waves = [np.sin(6 * k * across + down * k) for k in range(1, 7)]
    pixels = np.stack([(127 + 100 * wave).astype(np.uint8) for wave in waves])
    return from_arrays("wave", pixels, list("aabbcc")).at([5, 0, 3, 1])


@pytest.mark.parametrize("change", [views, corrupted])
def test_a_seed_gives_the_same_pictures_again_and_another_gives_others(
    change: Change, images: LabelledImages
) -> None:
    first, again, other = change(images, 1), change(images, 1), change(images, 2)
    assert (first.ids, first.labels) == (images.ids, images.labels)
    differ = []
    for place in range(len(images)):
        np.testing.assert_array_equal(first.pixels(place), again.pixels(place))
        assert first.pixels(place).dtype == np.uint8
        differ.append(not np.array_equal(first.pixels(place), other.pixels(place)))
        assert not np.array_equal(first.pixels(place), images.pixels(place))
    assert any(differ)


@pytest.mark.parametrize("change", [views, corrupted])
def test_a_part_of_them_is_the_same_pictures(change: Change, images: LabelledImages) -> None:
    whole = change(images, 3)
    part = whole.at([2, 0])
    np.testing.assert_array_equal(part.pixels(0), whole.pixels(2))
    np.testing.assert_array_equal(part.pixels(1), whole.pixels(0))


def test_a_view_is_smaller_and_still_alike(images: LabelledImages) -> None:
    for place in range(len(images)):
        seen, original = views(images, 0).pixels(place), images.pixels(place)
        assert 0.55 * 40 <= seen.shape[0] <= 40
        assert 0.55 * 60 <= seen.shape[1] <= 60
        assert abs(float(seen.mean()) - float(original.mean())) < 60


def test_spoilt_pictures_are_out_of_focus_noisy_or_on_their_side(images: LabelledImages) -> None:
    spoilt = corrupted(images, 0)
    np.testing.assert_array_equal(spoilt.pixels(0), blurred(images.pixels(0)))
    noise = spoilt.pixels(1).astype(float) - images.pixels(1)
    assert 40 < noise.std() < 65
    np.testing.assert_array_equal(spoilt.pixels(2), np.rot90(images.pixels(2)))
    assert blurred(images.pixels(0)).std() < images.pixels(0).std()
    assert noisy(images.pixels(0), np.random.default_rng(0)).shape == images.pixels(0).shape


def test_noise_is_the_same_however_many_rows_are_drawn_at_once(
    images: LabelledImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = images.pixels(0)
    noise = np.random.default_rng(3).normal(0, NOISE, pixels.shape)
    wanted = np.clip(pixels + noise, 0, 255).round()
    for at_once in (1, 3 * pixels[0].size, pixels.size):
        monkeypatch.setattr("index_builder.datasets.corruption.NOISE_AT_ONCE", at_once)
        np.testing.assert_array_equal(noisy(pixels, np.random.default_rng(3)), wanted)


def test_collections_are_joined_in_order(images: LabelledImages) -> None:
    both = joined(images.at([1]), images.at([]), images.at([3, 0]))
    assert both.ids == tuple(images.ids[place] for place in (1, 3, 0))
    assert both.labels == tuple(images.labels[place] for place in (1, 3, 0))
    for place, original in enumerate((1, 3, 0)):
        np.testing.assert_array_equal(both.pixels(place), images.pixels(original))
    np.testing.assert_array_equal(both.at([2]).pixels(0), images.pixels(0))


def test_joined_collections_keep_the_places_of_their_images(images: LabelledImages) -> None:
    places = np.arange(12.0).reshape(4, 3)
    known, unknown = replace(images, places=places), images.at([2])
    found = joined(known.at([1]), unknown, known.at([3, 0])).places
    assert found is not None
    np.testing.assert_array_equal(found[[0, 2, 3]], places[[1, 3, 0]])
    assert np.isnan(found[1]).all()
    assert joined(unknown, unknown).places is None


def test_without_labels_queries_are_views_and_every_image_stands_for_itself(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    (tmp_path / "below").mkdir()
    for number in range(9):
        place = tmp_path / ("below" if number % 3 == 0 else ".") / f"{number}.png"
        Image.fromarray(generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(place)
    dataset = DatasetConfig(kind="folder", path=tmp_path, labels="none")
    splits = load_splits(BuildConfig(name="x", dataset=dataset))
    assert not splits.labelled
    assert splits.gallery.labels == splits.gallery.ids
    assert {"below/0.png", "1.png"} <= set(splits.gallery.ids)
    matched = [splits.calibration.matched, splits.evaluation.matched]
    # What calibrates was not learned, as what users bring was not.
    assert splits.training.ids == splits.evaluation.matched.ids * 2
    assert not {*splits.training.ids, *splits.validation.ids} & {*matched[0].ids}
    assert sorted([*matched[0].ids, *matched[1].ids]) == sorted(splits.gallery.ids)
    shown = {name: splits.gallery.pixels(place) for place, name in enumerate(splits.gallery.ids)}
    for queries in matched:
        assert len(queries) in {4, 5}
        for number, name in enumerate(queries.ids):
            assert not np.array_equal(queries.pixels(number), shown[name])
    assert len(splits.calibration.withheld) == 0
