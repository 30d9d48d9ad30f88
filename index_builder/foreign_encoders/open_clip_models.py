"""Encoders of OpenCLIP: the image tower of a pretrained model."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
from numpy.typing import NDArray
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import Pooling, from_open_clip
from index_builder.foreign_encoders.classifiers import pooled_timm
from index_builder.foreign_encoders.parity import TextSource
from index_builder.foreign_encoders.torch_modules import (
    Applied,
    ForeignNetwork,
    first_line,
    pooled,
    reference_of,
    vector_of,
)
from model_store.encoder.contract import Cleaning
from model_store.errors import EncoderSourceError


class ImageTower(nn.Module):
    """The image tower of a model; by default, it gives the same vectors as ``encode_image``.

    With another pooling, a vision transformer pools its last tokens and leaves out the projection.
    """

    def __init__(self, visual: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.visual = visual
        self.pooling = pooling

    def forward(self, images: Tensor) -> Tensor:
        """Return features (B, F) of standardised ``images`` (B, 3, H, W)."""
        visual: Any = self.visual
        if self.pooling is Pooling.default:
            whole: Tensor = visual(images)
            return whole
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
    name : ``MODEL/PRETRAINED`` from OpenCLIP's list. With ``weights`` or ``untrained``, the name is
        only ``MODEL``.
    weights : a local file; None for OpenCLIP's weights.
    untrained : whether to use random weights.

    Raises
    ------
    EncoderSourceError : the model does not exist, or its weights cannot be loaded.
    """
    architecture, _, pretrained = name.partition("/") if ":" not in name else (name, "", "")
    source = str(weights) if weights is not None else pretrained
    if not (source or untrained or ":" in name):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise EncoderSourceError(
            f"Name the weights of {architecture!r}: {architecture}/PRETRAINED, one of {tags}; or "
            "give `--weights FILE`."
        )
    try:
        model = open_clip.create_model(
            architecture, pretrained=None if untrained else source or None
        ).eval()
        settings = open_clip.get_model_preprocess_cfg(model)
        input_format = from_open_clip(settings)
    except Exception as error:  # OpenCLIP, its hub and torch raise many error types
        raise EncoderSourceError(
            f"OpenCLIP cannot load {name!r}: {first_line(error)} `--weights FILE` takes local "
            "weights, `--untrained` random weights."
        ) from error
    network, transform = _tower(model.visual, pooling), _transform(settings)
    whole = model.encode_image if pooling is Pooling.default else network
    origin = {"door": "open_clip", "name": name, "open_clip_torch": version("open-clip-torch")}
    reference = reference_of(transform, whole)
    return ForeignNetwork(network, input_format, reference, origin, partial(_text, model, name))


_CLEANING: dict[str, Cleaning] = {
    "_clean_lower": "lower",
    "_clean_whitespace": "whitespace",
    "_clean_canonicalize": "canonicalize",
}
"""Kind of text cleaning, by the name of the function in OpenCLIP."""


def _text(model: Any, name: str) -> TextSource:  # noqa: ANN401 - of OpenCLIP
    """Open the text tower of a model, with OpenCLIP's tokenizer for this model.

    Raises
    ------
    EncoderSourceError : the tokenizer cannot be loaded, or cannot be stored in a file.
    """
    from index_builder.foreign_encoders.text_towers import (  # noqa: PLC0415 - an extra
        clip_tokenizer,
        library_tokenizer,
        text_source,
    )

    try:
        theirs: Any = open_clip.get_tokenizer(name if ":" in name else name.partition("/")[0])
    except Exception as error:  # OpenCLIP, transformers and the hub raise many error types
        raise EncoderSourceError(
            f"OpenCLIP cannot load the tokenizer of {name!r}: {first_line(error)}"
        ) from error
    tokenizer = None
    if isinstance(theirs, SimpleTokenizer) and theirs.reduction_fn is None:
        tokenizer = clip_tokenizer(theirs)
    elif isinstance(theirs, HFTokenizer) and not (theirs.strip_sep_token or theirs.tokenizer_mode):
        tokenizer = library_tokenizer(theirs.tokenizer, theirs.context_length)
    cleaning = _CLEANING.get(theirs.clean_fn.__name__)
    if tokenizer is None or cleaning is None:
        raise EncoderSourceError(
            f"The tokenizer of {name!r}, a {type(theirs).__name__}, cannot be stored as a file of "
            "the `tokenizers` library. Leave out --text."
        )

    def ids(text: str) -> NDArray[np.int64]:
        read: NDArray[np.int64] = theirs([text])[0].numpy()
        return read

    def reference(text: str) -> NDArray[np.float32]:
        return vector_of(model.encode_text, theirs([text]))

    tower = Applied(model, model.encode_text)
    return text_source(tower, tokenizer, cleaning, ids, reference)


def _tower(visual: nn.Module, pooling: Pooling) -> nn.Module:
    if pooling is not Pooling.default and hasattr(visual, "trunk"):  # a model of timm
        return pooled_timm(visual.trunk, pooling)
    if pooling is not Pooling.default and not isinstance(visual, VisionTransformer):
        raise EncoderSourceError(
            f"The image tower is a {type(visual).__name__}, which gives no access to its tokens. "
            "Use `--pooling default`."
        )
    return ImageTower(visual, pooling)


def _transform(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - torchvision's
    return image_transform_v2(PreprocessCfg(**settings), is_train=False)
