"""One photograph stored again is found; other photographs and drawings are left alone."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images

from index_builder.configuration.build import BuildConfig, DatasetConfig, OutlierConfig
from index_builder.datasets import groups, load_splits
from index_builder.datasets.folder import folder
from index_builder.datasets.groups import _BLURRING, BLUR, SIDE, fingerprint, pairs_among, united
from model_store.images import decode_image
from tests.support.narrowing import not_none


def photographs(n: int) -> list[Image.Image]:
    """Parts of two photographs that do not overlap, each another picture; none is mere sky."""
    cells = [
        photograph[top : top + 80, left : left + 96]
        for photograph in load_sample_images().images
        for top in range(0, 400, 80)
        for left in range(0, 576, 96)
    ]
    return [Image.fromarray(cell) for cell in cells if cell.std() > 45][:n]


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    sent = io.BytesIO()
    image.save(sent, "JPEG", quality=quality)
    return Image.open(io.BytesIO(sent.getvalue())).convert("RGB")


def versions(image: Image.Image) -> list[Image.Image]:
    """The same photograph, stored again in five ways; the last one is cropped by a pixel."""
    return [
        image,
        as_jpeg(image, 30),
        image.resize((70, 58)),
        ImageEnhance.Brightness(image).enhance(0.8),
        image.convert("L").convert("RGB"),
        image.resize((480, 400)).crop((2, 2, 478, 398)),
    ]


def groups_of(images: list[Image.Image]) -> list[int]:
    prints = [fingerprint(np.asarray(image)) for image in images]
    groups: list[int] = united(len(images), [pairs_among(prints)]).tolist()
    return groups


@pytest.mark.parametrize("all_with_all", [True, False])
def test_versions_of_one_photograph_are_one_group(
    monkeypatch: pytest.MonkeyPatch, all_with_all: bool
) -> None:
    if not all_with_all:
        monkeypatch.setattr(groups, "N_EXACT", 10)
    kinds = [(number, one) for number, kind in enumerate(photographs(25)) for one in versions(kind)]
    found = groups_of([image for _, image in kinds])
    pairs = Counter(zip([number for number, _ in kinds], found, strict=True))
    assert len(set(found)) == 25
    assert set(pairs.values()) == {6}


def test_small_and_empty_pictures_have_no_fingerprint() -> None:
    assert fingerprint(np.zeros((300, 200, 3), dtype=np.uint8)) is None
    noise = np.random.default_rng(0).integers(0, 256, (63, 63, 3), dtype=np.uint8)
    assert fingerprint(noise) is None
    assert len(pairs_among([None, None])) == 0
    assert len(pairs_among([])) == 0


def test_too_many_pictures_are_not_compared_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(groups, "N_MOST", 3)
    same = fingerprint(np.asarray(photographs(1)[0]))
    assert len(pairs_among([same] * 4)) == 0
    assert "column `group`" in caplog.text


def test_a_folder_groups_copies_and_near_duplicates(tmp_path: Path) -> None:
    for number, image in enumerate(photographs(12)):
        (tmp_path / str(number // 6)).mkdir(exist_ok=True)
        for version, one in enumerate(versions(image)[:2]):
            one.save(tmp_path / str(number // 6) / f"{number:02d}-{version}.png")
    tiny = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    for name in ("x-0.png", "x-1.png"):
        tiny.save(tmp_path / "0" / name)
    images = folder(tmp_path)
    things = [Path(name).name.split("-")[0] for name in images.ids]
    groups = not_none(images.groups)
    assert len(set(zip(things, groups, strict=True))) == len(set(groups)) == 13
    config = BuildConfig(
        name="x", dataset=DatasetConfig(kind="folder", path=tmp_path), outliers=OutlierConfig()
    )
    splits = load_splits(config)
    sides = [splits.training, splits.validation]
    sides += [splits.calibration.matched, splits.evaluation.matched]
    parts = [set(not_none(part.groups)) for part in sides]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 13
    assert set(not_none(splits.gallery.groups)) == parts[0] | parts[1]


def test_a_folder_without_any_has_no_groups(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number, image in enumerate(photographs(5)):
        image.save(tmp_path / "0" / f"{number}.png")
    assert folder(tmp_path).groups is None


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("archive", "n_clusters", "n_largest"),
    [
        ("caltech101_half/caltech101_50classes_short128_webp.zip", 4, 4),
        ("cub_first10/cub200_2011_first10_short160_webp.zip", 1, 2),
    ],
)
def test_real_photographs_are_not_chained(
    data_dir: Path, archive: str, n_clusters: int, n_largest: int
) -> None:
    with zipfile.ZipFile(data_dir / archive) as file:
        names = [name for name in file.namelist() if name.endswith(".webp")]
        prints = [fingerprint(decode_image(file.read(name)).pixels) for name in names]
    sizes = np.bincount(united(len(names), [pairs_among(prints)]))
    assert (int((sizes > 1).sum()), int(sizes.max())) == (n_clusters, n_largest)


def test_fingerprint_blurs_like_scipy() -> None:
    from scipy.ndimage import gaussian_filter

    grey = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE)).astype(np.float32)
    blurred = _BLURRING @ grey @ _BLURRING.T
    np.testing.assert_allclose(blurred, gaussian_filter(grey, BLUR), rtol=1e-6)
