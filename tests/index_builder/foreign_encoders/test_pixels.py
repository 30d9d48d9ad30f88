"""The pixels that a foreign encoder sees are those that its own library would give it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from index_builder.foreign_encoders.choices import InputFormat, channels, read_preprocess_file
from model_store.errors import EncoderSourceError
from model_store.images import Preprocessing

pytestmark = [
    pytest.mark.slow,  # importing transformers, timm and OpenCLIP takes seconds
    pytest.mark.process,  # by which they look for each other's dependencies
]

SIZES = [(7, 30), (100, 333), (223, 224), (224, 224), (225, 256), (500, 257), (301, 640)]
"""Of images, height and width: smaller than an input, of its size, odd, wide and tall."""

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)

Transform = Callable[[Image.Image], NDArray[np.float32]]


def images() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]


def assert_same_input(ours: InputFormat, theirs: Transform) -> None:
    for pixels in images():
        found = ours.standardised(ours.preprocessing(pixels)[None])[0]
        expected = theirs(Image.fromarray(pixels))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=str(pixels.shape))


def written(folder: Path, fields: dict[str, Any]) -> InputFormat:
    path = folder / "preprocess.json"
    path.write_text(json.dumps(fields))
    return read_preprocess_file(path)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop_fraction", [0.875, 0.9, 0.95, 1.0])
def test_timm(interpolation: str, crop_mode: str, crop_fraction: float, tmp_path: Path) -> None:
    import timm.data

    fields = {
        "input_size": [3, 224, 224],
        "interpolation": interpolation,
        "crop_mode": crop_mode,
        "crop_pct": crop_fraction,
        "mean": MEAN,
        "std": STD,
    }
    transform = timm.data.create_transform(**{**fields, "input_size": (3, 224, 224)})
    assert_same_input(written(tmp_path, fields), lambda image: transform(image).numpy())
    assert written(tmp_path, {"architecture": "vit", "pretrained_cfg": fields}) == written(
        tmp_path, fields
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_open_clip(interpolation: str, resize_mode: str, tmp_path: Path) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    fields = {"size": 224, "interpolation": interpolation, "resize_mode": resize_mode}
    fields |= {"mean": MEAN, "std": STD, "fill_color": 12, "mode": "RGB"}
    transform = image_transform_v2(PreprocessCfg(**fields), is_train=False)
    assert_same_input(written(tmp_path, fields), lambda image: transform(image).numpy())


def test_open_clip_names_the_size_elsewhere(tmp_path: Path) -> None:
    fields = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "squash"}
    whole = {"model_cfg": {"vision_cfg": {"image_size": 64}}, "preprocess_cfg": fields}
    found = written(tmp_path, whole)
    assert found.preprocessing == Preprocessing(64, 64, "stretch", "bicubic")
    assert (found.mean, found.std) == (MEAN, STD)


@pytest.mark.parametrize(
    ("processor", "options"),
    [
        ("ViTImageProcessor", {}),
        ("SiglipImageProcessor", {}),
        ("CLIPImageProcessor", {}),
        ("CLIPImageProcessor", {"resample": 2, "image_mean": MEAN, "image_std": STD}),
        ("BitImageProcessor", {"size": {"shortest_edge": 256}}),
        ("BitImageProcessor", {"size": {"shortest_edge": 235}, "do_normalize": False}),
        ("ConvNextImageProcessor", {}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
        ("ViTImageProcessor", {"do_rescale": False, "image_mean": [100.0] * 3}),
        ("ViTImageProcessor", {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3}),
    ],
)
def test_transformers(processor: str, options: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    made = getattr(transformers, processor)(**options)
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")

    def transform(image: Image.Image) -> NDArray[np.float32]:
        return np.asarray(loaded(images=image, return_tensors="np")["pixel_values"][0])

    assert_same_input(read_preprocess_file(tmp_path / "preprocessor_config.json"), transform)


@pytest.mark.parametrize("side", [224, 235, 256])
def test_torchvision(side: int) -> None:
    from torchvision.transforms import CenterCrop, Compose, Resize

    ours = Preprocessing(224, 224, "cover", resized_side=side)
    theirs = Compose([Resize(side), CenterCrop(224)])
    for pixels in images():
        np.testing.assert_array_equal(ours(pixels), np.asarray(theirs(Image.fromarray(pixels))))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "preprocess_cfg.json, timm's config.json, or preprocessor_config.json"),
        ({"size": "large"}, "is not a known preprocessing file"),
        ({"size": 224, "mode": "L"}, "the mode is 'L', wanted RGB"),
        ({"size": 224, "mean": [0.5, 0.5]}, "neither a number nor three numbers"),
        ({"size": 224, "resize_mode": "crumple"}, "crumple"),
        ({"input_size": [1, 28, 28]}, "the input has 1 channels, wanted 3"),
        ({"input_size": [3, 224, 160], "crop_pct": 0.9}, r"a rectangle of \[177, 248\] pixels"),
        ({"input_size": [3, 224, 224], "interpolation": "magic"}, "magic"),
        ({"image_mean": MEAN, "size": {"shortest_edge": 224}}, "images keep their shape"),
        ({"image_mean": MEAN, "size": 224, "do_resize": False}, "do_resize is false"),
        ({"image_mean": MEAN, "size": 224, "do_pad": True}, "do_pad is not supported"),
        (
            {"image_mean": MEAN, "size": {"height": 9, "width": 9}, "do_center_crop": True},
            "stretching and then cropping is not supported",
        ),
        ([1, 2], "list"),
        ({"input_size": [3, 8, 8], "mean": [127.5] * 3}, "divide by 255"),
        ({"input_size": [3, 8, 8], "std": [127.5] * 3}, "divide by 255"),
        ({"size": 8, "mean": 127.5, "std": 127.5}, "divide by 255"),
        ({"size": 8, "std": [0.5, 0.5, 0]}, "divide by 255"),
        ({"image_mean": [127.5] * 3, "size": {"height": 9, "width": 9}}, "divide by 255"),
    ],
)
def test_what_cannot_be_done_is_said(fields: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(EncoderSourceError, match=reason):
        written(tmp_path, fields)


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\x00")
    for name in ("a.json", "missing.json"):
        with pytest.raises(EncoderSourceError, match="cannot be read as JSON"):
            read_preprocess_file(tmp_path / name)


def test_old_processors_have_one_number_for_a_size(tmp_path: Path) -> None:
    fields = {"image_mean": MEAN, "image_std": STD, "size": 224, "resample": 3}
    assert written(tmp_path, fields).preprocessing == Preprocessing(224, 224, "stretch", "bicubic")
    cropped = written(tmp_path, {**fields, "do_center_crop": True, "crop_size": 200})
    assert cropped.preprocessing == Preprocessing(
        200, 200, "cover", "bicubic", resized_side=224, crop_offset="down"
    )


def test_one_number_is_of_all_channels() -> None:
    assert channels(0.5) == (0.5, 0.5, 0.5)
    assert channels([1, 2, 3]) == (1.0, 2.0, 3.0)
