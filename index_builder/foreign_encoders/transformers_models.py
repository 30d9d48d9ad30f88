"""Encoders of transformers: ``AutoModel`` with an image processor. Remote code is never run."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import Pooling, from_transformers
from index_builder.foreign_encoders.parity import TextSource
from index_builder.foreign_encoders.text_towers import library_tokenizer, text_source
from index_builder.foreign_encoders.torch_modules import (
    Applied,
    ForeignNetwork,
    first_line,
    pooled,
    vector_of,
)
from model_store.errors import EncoderSourceError

_CLASS_TOKENS = ("cls_token", "class_embedding", "distillation_token")
"""Name endings of parameters. Each of these parameters is a token in front of the patches."""


class VisionModel(nn.Module):
    """Computes the vector of an image with the model's own pooling or the requested pooling."""

    def __init__(self, model: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self._n_prefix = _n_prefix(model)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (B, F) of standardised ``images`` (B, 3, H, W)."""
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
    repository : name on the hub, or local directory with configuration and weights.
    untrained : whether to use random weights. Configuration and processor are loaded even with
        random weights.

    Raises
    ------
    EncoderSourceError : the model is not available, needs its own code, or is not a vision model.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        # Processors for tensors round differently from Pillow, which Vouch uses.
        processor = transformers.AutoImageProcessor.from_pretrained(
            repository, trust_remote_code=False, backend="pil"
        )
        model = _model(repository, untrained=untrained)
        input_format = from_transformers(processor.to_dict())
    except Exception as error:  # transformers, its hub and torch raise many error types
        raise EncoderSourceError(
            f"transformers cannot load the image model {repository!r}: {first_line(error)} Name a "
            "repository of the hub, or a directory with config.json, preprocessor_config.json and "
            "model.safetensors. Code in a repository is never run."
        ) from error
    network = VisionModel(model, pooling)

    def reference(image: Image.Image) -> NDArray[np.float32]:
        return vector_of(network, processor(images=image, return_tensors="pt")["pixel_values"])

    name = os.path.basename(repository) if os.path.isdir(repository) else repository  # noqa: PTH112, PTH119 - a name may be either
    origin = {"door": "transformers", "name": name, "transformers": version("transformers")}
    text = partial(_text, model, repository) if hasattr(model, "get_text_features") else None
    return ForeignNetwork(network, input_format, reference, origin, text)


def _text(model: Any, repository: str) -> TextSource:  # noqa: ANN401 - of transformers
    """Open the text tower of a model with its tokenizer.

    Raises
    ------
    EncoderSourceError : the tokenizer cannot be loaded, has no words, or is not from the
        `tokenizers` library.
    """
    try:
        theirs: Any = transformers.AutoTokenizer.from_pretrained(
            repository, trust_remote_code=False
        )
    except Exception as error:  # transformers and its hub raise many error types
        raise EncoderSourceError(
            f"transformers cannot load the tokenizer of {repository!r}: {first_line(error)}"
        ) from error
    if set(theirs.get_vocab()) <= set(theirs.all_special_tokens):  # made without its files
        raise EncoderSourceError(
            f"The tokenizer of {repository!r} has no words: its files are missing. Add them, for "
            "example tokenizer.json, or leave out --text."
        )
    config = getattr(model.config, "text_config", model.config)
    length = min(int(config.max_position_embeddings), int(theirs.model_max_length))
    tokenizer = library_tokenizer(theirs, length)
    if tokenizer is None:
        raise EncoderSourceError(
            f"The tokenizer of {repository!r}, a {type(theirs).__name__}, is not from the "
            "`tokenizers` library, or has no padding. Leave out --text."
        )
    reads_mask = "attention_mask" in theirs.model_input_names
    names = ["input_ids", "attention_mask"] if reads_mask else ["input_ids"]

    def features(*given: Tensor) -> Tensor:
        return _pooler_output(model.get_text_features(**dict(zip(names, given, strict=True))))

    def read(text: str) -> Any:  # noqa: ANN401 - of transformers
        return theirs(
            [text], padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        )

    def ids(text: str) -> NDArray[np.int64]:
        found: NDArray[np.int64] = read(text)["input_ids"][0].numpy()
        return found

    def reference(text: str) -> NDArray[np.float32]:
        return vector_of(features, *(read(text)[name] for name in names))

    tower = Applied(model, features)
    return text_source(tower, tokenizer, "none", ids, reference, reads_mask=reads_mask)


def _model(repository: str, *, untrained: bool) -> nn.Module:
    """Load a model in evaluation mode. Attention is computed with plain matrix products."""
    options = {"attn_implementation": "eager", "trust_remote_code": False}
    auto: Any = transformers.AutoModel
    if untrained:
        config = transformers.AutoConfig.from_pretrained(repository, trust_remote_code=False)
        made: nn.Module = auto.from_config(config, **options)
    else:
        made = auto.from_pretrained(repository, **options)
    return made.float().eval()


def _n_prefix(model: nn.Module) -> int:
    """Return the number of tokens in front of the patches."""
    parameters = [name.rpartition(".")[2] for name, _ in model.named_parameters()]
    config = getattr(model.config, "vision_config", model.config)
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    return sum(name in _CLASS_TOKENS for name in parameters) + registers


def _pooler_output(found: Any) -> Tensor:  # noqa: ANN401 - of transformers
    """Return the vector in ``found``; older releases of transformers return only the vector."""
    vector: Tensor = getattr(found, "pooler_output", found)
    return vector
