"""Encoders of timm: any model by its name, or from the Hugging Face hub by ``hf-hub:``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import timm.data
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import Pooling
from index_builder.foreign_encoders.foreign_module import ForeignNetwork, first_line, reference_of
from index_builder.foreign_encoders.pooling import pooled
from index_builder.foreign_encoders.preprocess_files import from_timm
from model_store.errors import EncoderSourceError


class PooledTimmModel(nn.Module):
    """A model of timm whose tokens, or whose feature map, are pooled otherwise."""

    def __init__(self, model: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self._n_prefix = int(getattr(model, "num_prefix_tokens", 0))
        self._channels_last = str(getattr(model, "output_fmt", "NCHW")) == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, 3, H, W), standardised."""
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
    name : timm's, or ``hf-hub:`` and a repository.
    weights : a local file; None for those that timm downloads.
    untrained : random weights.

    Raises
    ------
    EncoderSourceError : there is no such model, or its weights cannot be had or do not fit.
    """
    local = {} if weights is None else {"checkpoint_path": str(weights)}
    try:
        model = timm.create_model(
            name, pretrained=weights is None and not untrained, num_classes=0, **local
        ).eval()
        settings = timm.data.resolve_model_data_config(model)
        input_format = from_timm(settings)
    except Exception as error:  # timm, its hub and torch raise whatever they like
        raise EncoderSourceError(
            f"timm gives no {name!r}: {first_line(error)} `--weights FILE` takes local weights, "
            "`--untrained` random ones."
        ) from error
    network = model if pooling is Pooling.default else PooledTimmModel(model, pooling)
    transform = timm.data.create_transform(**settings, is_training=False)
    origin = {"door": "timm", "name": name, "timm": version("timm")}
    return ForeignNetwork(network, input_format, reference_of(transform, network), origin)
