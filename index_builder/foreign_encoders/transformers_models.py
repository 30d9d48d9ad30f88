"""The door for transformers: ``AutoModel`` with its image processor; remote code is never run."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import Pooling
from index_builder.foreign_encoders.foreign_module import ForeignNetwork, first_line
from index_builder.foreign_encoders.pooling import pooled
from index_builder.foreign_encoders.preprocess_files import from_transformers
from model_store.errors import EncoderSourceError

_CLASS_TOKENS = ("cls_token", "class_embedding", "distillation_token")
"""The last parts of the names of parameters that are a token before the patches."""


class VisionModel(nn.Module):
    """A model's vector of an image: pooled by the model itself, or from its last hidden state."""

    def __init__(self, model: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self._n_prefix = _n_prefix(model)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, 3, H, W), standardised."""
        model: Any = self.model
        if self.pooling is Pooling.default and hasattr(model, "get_image_features"):
            return _pooler_output(model.get_image_features(pixel_values=images))
        tower = getattr(model, "vision_model", model)
        found = tower(pixel_values=images)
        own = getattr(found, "pooler_output", None)
        if self.pooling is Pooling.default and own is not None:
            flat: Tensor = own.flatten(1)
            return flat
        if self.pooling is not Pooling.default:
            return pooled(found.last_hidden_state, self.pooling, self._n_prefix)
        default = Pooling.class_token if self._n_prefix else Pooling.mean
        return pooled(found.last_hidden_state, default, self._n_prefix)


def transformers_network(repository: str, pooling: Pooling, *, untrained: bool) -> ForeignNetwork:
    """Create a model of transformers with its image processor.

    Parameters
    ----------
    repository : a name on the hub, or a local directory with configuration and weights.
    untrained : random weights; the configuration and the processor are there all the same.

    Raises
    ------
    EncoderSourceError : it cannot be had, needs code of its own, or is no vision model.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        # Its image processors are exact in Pillow; those on tensors round otherwise.
        processor = transformers.AutoImageProcessor.from_pretrained(
            repository, trust_remote_code=False, backend="pil"
        )
        model = _model(repository, untrained=untrained)
        input_format = from_transformers(processor.to_dict())
    except Exception as error:  # transformers, its hub and torch raise whatever they like
        raise EncoderSourceError(
            f"transformers gives no image model {repository!r}: {first_line(error)} Name a "
            "repository of the hub, or a directory with config.json, preprocessor_config.json and "
            "model.safetensors. Code that comes with a repository is never run."
        ) from error
    network = VisionModel(model, pooling)

    def reference(image: Image.Image) -> NDArray[np.float32]:
        with torch.inference_mode():
            pixels = processor(images=image, return_tensors="pt")["pixel_values"]
            found: NDArray[np.float32] = network(pixels)[0].float().numpy()
        return found

    name = os.path.basename(repository) if os.path.isdir(repository) else repository  # noqa: PTH112, PTH119 - a name may be either
    origin = {"door": "transformers", "name": name, "transformers": version("transformers")}
    return ForeignNetwork(network, input_format, reference, origin)


def _model(repository: str, *, untrained: bool) -> nn.Module:
    """Load a model in evaluation mode, its attention as plain products of matrices."""
    options = {"attn_implementation": "eager", "trust_remote_code": False}
    auto: Any = transformers.AutoModel
    if untrained:
        config = transformers.AutoConfig.from_pretrained(repository, trust_remote_code=False)
        made: nn.Module = auto.from_config(config, **options)
    else:
        made = auto.from_pretrained(repository, **options)
    return made.float().eval()


def _n_prefix(model: nn.Module) -> int:
    """Return how many tokens stand before the patches."""
    parameters = [name.rpartition(".")[2] for name, _ in model.named_parameters()]
    config = getattr(model.config, "vision_config", model.config)
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    return sum(name in _CLASS_TOKENS for name in parameters) + registers


def _pooler_output(found: Any) -> Tensor:  # noqa: ANN401 - of transformers
    """Return the vector of what ``get_image_features`` returns: it itself, in older releases."""
    vector: Tensor = getattr(found, "pooler_output", found)
    return vector
