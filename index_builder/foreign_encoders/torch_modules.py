"""Wraps a torch network in Vouch's encoder contract: a library's, or the user's own module.

The user names the own module as ``module.py:factory``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from index_builder.foreign_encoders.choices import GEM_EXPONENT, GEM_FLOOR, InputFormat, Pooling
from index_builder.foreign_encoders.parity import Reference, TextSource
from model_store.errors import EncoderSourceError


def pooled(found: Tensor, pooling: Pooling, n_prefix: int = 0) -> Tensor:
    """Pool tokens (B, N, C) or a feature map (B, C, H, W) to (B, C).

    Parameters
    ----------
    pooling : any kind except ``default``. The generalised mean raises small values to `GEM_FLOOR`.
    n_prefix : number of tokens before the first patch: class token and registers.

    Raises
    ------
    ValueError : there is no class token, or ``found`` is neither tokens nor a feature map.
    """
    if found.ndim not in {3, 4}:
        raise ValueError(f"the features have the shape {tuple(found.shape)}: nothing to pool")
    if pooling is Pooling.class_token:
        if found.ndim == 4 or n_prefix == 0:
            raise ValueError("the network has no class token")
        return found[:, 0]
    patches, over = (found[:, n_prefix:], [1]) if found.ndim == 3 else (found, [2, 3])
    if pooling is Pooling.mean:
        return patches.mean(over)
    return patches.clamp_min(GEM_FLOOR).pow(GEM_EXPONENT).mean(over).pow(1 / GEM_EXPONENT)


@dataclass(frozen=True)
class ForeignNetwork:
    """A network, and the reference pipeline of its library.

    Attributes
    ----------
    module : standardised images (B, 3, H, W) → features (B, F). If the network predicts its
        uncertainty, it returns three tensors: embedding mean, embedding variance and features.
    input_format : the preprocessing of images.
    reference : the library's pipeline, which the exported encoder is compared with. None if the
        network does not come from a library.
    origin : names and versions of model and library, for the card.
    text : function that opens the text tower; None without a text tower.
    """

    module: nn.Module
    input_format: InputFormat
    reference: Reference | None
    origin: Mapping[str, str]
    text: Callable[[], TextSource] | None = None


class ContractModule(nn.Module):
    """A foreign network with the input and the three outputs of Vouch's encoder contract.

    Parameters
    ----------
    network : see `ForeignNetwork.module`. If the network does not predict its uncertainty, the
        features are also the embedding mean, and the embedding variance is zero.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, input_format: InputFormat) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(input_format.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(input_format.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return embedding mean, variance and features of ``images`` (B, H, W, 3) uint8."""
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        found = self.network((scaled - self.mean) / self.std)
        if isinstance(found, tuple):
            mean, variance, features = found
            return mean, variance, features
        return found, torch.zeros_like(found), found * 1.0  # the features need another name


class Applied(nn.Module):
    """A module that calls ``function``, which uses ``model``, in place of the model's forward."""

    def __init__(self, model: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the features (B, F) of the inputs of B images or texts."""
        return self._function(*inputs)


def vector_of(network: Callable[..., Any], *inputs: Tensor) -> NDArray[np.float32]:
    """Run a network on one image or text; return its first output, a vector (F,)."""
    with torch.inference_mode():
        found = network(*inputs)
        first: Tensor = found[0] if isinstance(found, tuple) else found
        vector: NDArray[np.float32] = first[0].float().numpy()
    return vector


def reference_of(
    transform: Callable[[Image.Image], Tensor], network: Callable[[Tensor], Any]
) -> Reference:
    """Return the pipeline that applies ``transform`` and then ``network``."""
    return lambda image: vector_of(network, transform(image)[None])


def plain_transform(input_format: InputFormat) -> Callable[[Image.Image], Tensor]:
    """Return the preprocessing in NumPy, for a network that does not come from a library."""

    def transform(image: Image.Image) -> Tensor:
        pixels = input_format.preprocessing(np.asarray(image))
        return torch.from_numpy(input_format.standardised(pixels[None])[0])

    return transform


def first_line(error: Exception) -> str:
    """Return the first line of an error message, because libraries may write hundreds of lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def torch_network(place: str, input_format: InputFormat) -> ForeignNetwork:
    """Create a module by calling the user's factory.

    The module maps standardised images (B, 3, H, W) float32 to features (B, F), or to embedding
    mean (B, D), embedding variance (B, D) and features (B, F).

    The module may have an attribute ``text_tower``: a module from token ids (B, L) int64 to vectors
    (B, D), or to embedding means and variances. With a ``text_tower``, the module also needs an
    attribute ``tokenizer``: a `Tokenizer` of the `tokenizers` library that pads and truncates to L
    tokens.

    Parameters
    ----------
    place : ``FILE.py:FACTORY``; the factory takes no argument. The file's code is run.

    Raises
    ------
    EncoderSourceError : the factory does not exist, fails, or does not return such a module.
    """
    file, _, factory = place.rpartition(":")
    if not (file and factory.isidentifier() and Path(file).is_file()):
        raise EncoderSourceError(f"{place!r} is not FILE.py:FACTORY, or the file does not exist.")
    try:
        module = _called(Path(file), factory)
    except Exception as error:  # the user's own code
        raise EncoderSourceError(
            f"{factory}() of {file} fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise EncoderSourceError(
            f"{factory}() of {file} returns a {type(module).__name__}; wanted a torch.nn.Module."
        )
    module.eval()
    _require_vectors(module, input_format)
    origin = {"door": "torch", "name": f"{Path(file).name}:{factory}", "torch": torch.__version__}
    text = partial(_text, module) if hasattr(module, "text_tower") else None
    return ForeignNetwork(module, input_format, None, origin, text)


def _text(module: nn.Module) -> TextSource:
    """Open the text tower of the user's module.

    Raises
    ------
    EncoderSourceError : the tokenizer is missing, or does not pad and truncate to one length.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

    from index_builder.foreign_encoders.text_towers import text_source  # noqa: PLC0415

    tower: Any = module.text_tower
    tokenizer: Any = getattr(module, "tokenizer", None)
    if not (isinstance(tokenizer, Tokenizer) and isinstance(tower, nn.Module)):
        raise EncoderSourceError(
            f"`text_tower` is a {type(tower).__name__} and `tokenizer` a "
            f"{type(tokenizer).__name__}; wanted a torch.nn.Module and a tokenizers.Tokenizer."
        )
    length = (tokenizer.padding or {}).get("length")
    if length is None or length != (tokenizer.truncation or {}).get("max_length"):
        raise EncoderSourceError(
            "The tokenizer must pad and truncate to one length: call enable_padding(length=L) "
            "and enable_truncation(L)."
        )

    def ids(text: str) -> NDArray[np.int64]:
        return np.array(tokenizer.encode(text).ids, np.int64)

    def reference(text: str) -> NDArray[np.float32]:
        return vector_of(tower, torch.from_numpy(ids(text))[None])

    return text_source(tower, tokenizer, "none", ids, reference)


def _called(file: Path, factory: str) -> object:
    """Import ``file`` under a unique name, with its folder on the module path; call the factory."""
    name = f"vouch_encoder_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
        made: object = getattr(module, factory)()
    finally:
        sys.path.remove(str(file.resolve().parent))
    return made


def _require_vectors(module: nn.Module, input_format: InputFormat) -> None:
    """Check the module's output on two grey images."""
    preprocessing = input_format.preprocessing
    images = torch.zeros(2, 3, preprocessing.height, preprocessing.width)
    try:
        with torch.inference_mode():
            found = module(images)
    except Exception as error:  # the user's own code
        raise EncoderSourceError(
            f"The module does not take images of {tuple(images.shape)}: {error}"
        ) from error
    outputs = found if isinstance(found, tuple) else (found,)
    shapes = [tuple(getattr(one, "shape", ())) for one in outputs]
    if len(outputs) not in {1, 3} or any(len(s) != 2 or s[0] != 2 for s in shapes):
        raise EncoderSourceError(
            f"The module gives {len(outputs)} outputs of shapes {shapes} for two images; wanted "
            "features (2, F), or embedding mean (2, D), embedding variance (2, D) and features."
        )
