"""Encoders of timm and torchvision: models without their classifier.

A model of timm is any model of its list, or ``hf-hub:NAME`` from the Hugging Face hub.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torchvision import models
from torchvision.models.feature_extraction import create_feature_extractor

from index_builder.foreign_encoders.choices import InputFormat, Pooling, channels, from_timm
from index_builder.foreign_encoders.torch_modules import (
    Applied,
    ForeignNetwork,
    first_line,
    pooled,
    reference_of,
)
from index_builder.networks.trunk import (
    CLASSIFIERS,
    feature_map,
    pad_as_tensorflow,
    shortened,
)
from index_builder.networks.weights import load_weights, needs_tensorflow_padding
from model_store.errors import EncoderSourceError, WeightsError
from model_store.images import Preprocessing


def pooled_timm(model: Any, pooling: Pooling) -> Applied:  # noqa: ANN401 - of timm
    """Return a model of timm that pools its tokens or feature map with the requested pooling."""
    n_prefix = int(getattr(model, "num_prefix_tokens", 0))
    channels_last = str(getattr(model, "output_fmt", "NCHW")) == "NHWC"

    def features(images: Tensor) -> Tensor:
        found: Tensor = model.forward_features(images)
        if found.ndim == 4 and channels_last:
            found = found.permute(0, 3, 1, 2)
        return pooled(found, pooling, n_prefix)

    return Applied(model, features)


def timm_network(
    name: str, weights: Path | None, pooling: Pooling, *, untrained: bool
) -> ForeignNetwork:
    """Create a model of timm without its classifier.

    Parameters
    ----------
    name : name of a timm model, or ``hf-hub:`` and a repository.
    weights : a local file; None for timm's weights.
    untrained : whether to use random weights.

    Raises
    ------
    EncoderSourceError : the model does not exist, or its weights cannot be loaded.
    """
    import timm  # noqa: PLC0415 - an extra
    import timm.data  # noqa: PLC0415

    local = {} if weights is None else {"checkpoint_path": str(weights)}
    try:
        model = timm.create_model(
            name, pretrained=weights is None and not untrained, num_classes=0, **local
        ).eval()
        settings = timm.data.resolve_model_data_config(model)
        input_format = from_timm(settings)
    except Exception as error:  # timm, its hub and torch raise many error types
        raise EncoderSourceError(
            f"timm cannot load {name!r}: {first_line(error)} `--weights FILE` takes local weights, "
            "`--untrained` random weights."
        ) from error
    network = model if pooling is Pooling.default else pooled_timm(model, pooling)
    transform = timm.data.create_transform(**settings, is_training=False)
    origin = {"door": "timm", "name": name, "timm": version("timm")}
    return ForeignNetwork(network, input_format, reference_of(transform, network), origin)


_TOKENS = "encoder.ln"
"""Name of the node with the last tokens, in vision transformers of torchvision."""


def pooled_torchvision(model: nn.Module, pooling: Pooling) -> Applied:
    """Return a model of torchvision that pools its tokens or its last feature map."""
    if isinstance(model, models.VisionTransformer):
        tokens = create_feature_extractor(model, [_TOKENS])
        return Applied(tokens, lambda images: pooled(tokens(images)[_TOKENS], pooling, 1))
    convolutions = feature_map(model)
    return Applied(convolutions, lambda images: pooled(convolutions(images), pooling))


def torchvision_network(
    name: str, weights: str | None, pooling: Pooling, *, untrained: bool
) -> ForeignNetwork:
    """Create a classification model of torchvision without its last linear layer.

    Parameters
    ----------
    name : name of a torchvision model.
    weights : a name of torchvision's weights, or a file; see `load_weights`. None for the default.
    untrained : whether to use random weights.

    Raises
    ------
    EncoderSourceError : the model does not exist.
    WeightsError : the weights cannot be loaded, or do not fit.
    """
    try:
        entries = models.get_model_weights(name)
        # A model without weights has the same layers: no setting of a layer depends on weights.
        model = models.get_model(name, weights=None)
    except (ValueError, AttributeError) as error:
        raise EncoderSourceError(f"torchvision has no model {name!r}: {error}.") from error
    source = weights or "DEFAULT"
    preset = (entries[source] if source in entries.__members__ else entries.DEFAULT).transforms()
    input_format = _input_format(preset)
    if not untrained:
        if needs_tensorflow_padding(weights):
            pad_as_tensorflow(model)
        loaded = load_weights(name, "IMAGENET1K_V1" if weights is None else weights)
        _load(model, loaded.state, name)
        input_format = InputFormat(
            input_format.preprocessing,
            channels(loaded.pixel_mean.tolist()),
            channels(loaded.pixel_std.tolist()),
        )
        preset.mean, preset.std = loaded.pixel_mean.tolist(), loaded.pixel_std.tolist()
    network = _network(model.eval(), pooling)
    origin = {"door": "torchvision", "name": name, "torchvision": version("torchvision")}
    return ForeignNetwork(network, input_format, reference_of(preset, network), origin)


def _input_format(preset: Any) -> InputFormat:  # noqa: ANN401 - torchvision's
    """Read a preset of torchvision: it resizes the short side and crops the centre."""
    (crop,), (side,) = preset.crop_size, preset.resize_size
    preprocessing = Preprocessing(
        crop,
        crop,
        "cover",
        preset.interpolation.value,
        resized_side=None if side == crop else side,
    )
    return InputFormat(preprocessing, channels(preset.mean), channels(preset.std))


def _load(model: nn.Module, state: Any, name: str) -> None:  # noqa: ANN401 - a mapping of tensors
    """Load weights into a model. The weights of the classifier may be missing."""
    try:
        found = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise WeightsError(f"The weights do not fit {name}. {shortened(error)}") from error
    missing = [key for key in found.missing_keys if not key.startswith(CLASSIFIERS)]
    if missing or found.unexpected_keys:
        raise WeightsError(
            f"The weights do not fit {name}: {len(missing)} tensors are missing "
            f"({', '.join(missing[:3])}), {len(found.unexpected_keys)} unknown "
            f"({', '.join(found.unexpected_keys[:3])})."
        )


def _network(model: nn.Module, pooling: Pooling) -> nn.Module:
    """Return the model without its last linear layer, or with the requested pooling."""
    if pooling is not Pooling.default:
        return pooled_torchvision(model, pooling)
    for prefix in CLASSIFIERS:
        name = prefix.rstrip(".")
        part: Any = getattr(model, name, None)
        if isinstance(part, nn.Linear):
            setattr(model, name, nn.Identity())
            return model
        linear = [i for i, one in enumerate(part or ()) if isinstance(one, nn.Linear)]
        if linear:
            part[linear[-1]] = nn.Identity()
            return model
    # SqueezeNet has a convolutional classifier.
    return pooled_torchvision(model, Pooling.mean)
