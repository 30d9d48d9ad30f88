"""The door for OpenCLIP: the image tower of a model by its name and its pretrained weights."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import open_clip
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import Pooling
from index_builder.foreign_encoders.foreign_module import ForeignNetwork, first_line, reference_of
from index_builder.foreign_encoders.pooling import pooled
from index_builder.foreign_encoders.preprocess_files import from_open_clip
from index_builder.foreign_encoders.timm_models import PooledTimmModel
from model_store.errors import EncoderSourceError


class ImageTower(nn.Module):
    """The image tower of a model, as its ``encode_image`` computes it."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, 3, H, W), standardised."""
        found: Tensor = self.visual(images)
        return found


class PooledTower(nn.Module):
    """A vision transformer of OpenCLIP whose last tokens are pooled, without its projection."""

    def __init__(self, visual: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.visual = visual
        self.pooling = pooling

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, 3, H, W), standardised."""
        visual: Any = self.visual
        found = visual.forward_intermediates(
            images,
            indices=1,
            intermediates_only=True,
            normalize_intermediates=True,
            output_fmt="NLC",
            output_extra_tokens=True,
        )
        patches: Tensor = found["image_intermediates"][-1]
        if self.pooling is Pooling.class_token:
            first: Tensor = found["image_intermediates_prefix"][-1][:, 0]
            return first
        return pooled(patches, self.pooling)


def open_clip_network(
    name: str, weights: Path | None, pooling: Pooling, *, untrained: bool
) -> ForeignNetwork:
    """Create the image tower of a model of OpenCLIP.

    Parameters
    ----------
    name : ``MODEL/PRETRAINED``, as OpenCLIP lists them; ``MODEL`` alone with ``weights`` or
        ``untrained``.
    weights : a local file.
    untrained : random weights.

    Raises
    ------
    EncoderSourceError : there is no such model, or its weights cannot be had or do not fit.
    """
    architecture, _, pretrained = name.partition("/") if ":" not in name else (name, "", "")
    source = str(weights) if weights is not None else pretrained
    if not (source or untrained or ":" in name):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise EncoderSourceError(
            f"Name the weights of {architecture!r}: {architecture}/PRETRAINED, of {tags}; or give "
            "`--weights FILE`."
        )
    try:
        model = open_clip.create_model(
            architecture, pretrained=None if untrained else source or None
        ).eval()
        settings = open_clip.get_model_preprocess_cfg(model)
        input_format = from_open_clip(settings)
    except Exception as error:  # OpenCLIP, its hub and torch raise whatever they like
        raise EncoderSourceError(
            f"OpenCLIP gives no {name!r}: {first_line(error)} `--weights FILE` takes local "
            "weights, `--untrained` random ones."
        ) from error
    network, transform = _tower(model.visual, pooling), _transform(settings)
    whole = model.encode_image if pooling is Pooling.default else network
    origin = {"door": "open_clip", "name": name, "open_clip_torch": version("open-clip-torch")}
    return ForeignNetwork(network, input_format, reference_of(transform, whole), origin)


def _tower(visual: nn.Module, pooling: Pooling) -> nn.Module:
    if pooling is Pooling.default:
        return ImageTower(visual)
    if hasattr(visual, "trunk"):  # a model of timm
        trunk: Any = visual.trunk
        return PooledTimmModel(trunk, pooling)
    if not isinstance(visual, VisionTransformer):
        raise EncoderSourceError(
            f"The image tower is a {type(visual).__name__}, whose tokens cannot be had; only "
            "`--pooling default` is possible."
        )
    return PooledTower(visual, pooling)


def _transform(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - torchvision's
    return image_transform_v2(PreprocessCfg(**settings), is_train=False)
