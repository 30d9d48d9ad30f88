"""Encoders of timm: any model of timm, or ``hf-hub:NAME`` from the Hugging Face hub."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import timm.data
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import Pooling
from index_builder.foreign_encoders.foreign_module import (
    ForeignNetwork,
    first_line,
    pooled,
    reference_of,
)
from index_builder.foreign_encoders.preprocess_files import from_timm
from model_store.errors import EncoderSourceError


class PooledTimmModel(nn.Module):
    """A model of timm that pools its tokens or feature map with the requested pooling."""

    def __init__(self, model: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self._n_prefix = int(getattr(model, "num_prefix_tokens", 0))
        self._channels_last = str(getattr(model, "output_fmt", "NCHW")) == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        """Return features (B, F) of standardised ``images`` (B, 3, H, W)."""
        model: Any = self.model
        found: Tensor = model.forward_features(images)
        if found.ndim == 4 and self._channels_last:
            found = found.permute(0, 3, 1, 2)
        return pooled(found, self.pooling, self._n_prefix)


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
    network = model if pooling is Pooling.default else PooledTimmModel(model, pooling)
    transform = timm.data.create_transform(**settings, is_training=False)
    origin = {"door": "timm", "name": name, "timm": version("timm")}
    return ForeignNetwork(network, input_format, reference_of(transform, network), origin)
