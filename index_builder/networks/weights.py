"""Loads pretrained weights of a trunk, by a torchvision name or from a local file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from index_builder.networks.trunk import (
    CLASSIFIERS,
    imagenet_normalisation,
)
from index_builder.storage.web import Probe
from model_store.errors import WeightsError

_QUANTISED = ".q"
"""Name suffix of weights from TensorFlow Lite. A network with these weights needs TensorFlow's
padding and input range."""

_BATCH_NORM_EPS = 1e-5
_PADDING, _TENSORFLOW = "padding", "tensorflow"


@dataclass(frozen=True, slots=True)
class PretrainedWeights:
    """Weights, and the scaling of pixels that the weights require.

    Attributes
    ----------
    state : tensors by torchvision's names, possibly with a classifier.
    pixel_mean, pixel_std : (3,); the network expects (pixel − mean) / std for pixels in [0, 1].
    """

    state: Mapping[str, Tensor]
    pixel_mean: Tensor
    pixel_std: Tensor


def load_weights(trunk: str, source: str) -> PretrainedWeights:
    """Load the weights that ``source`` names.

    Parameters
    ----------
    trunk : torchvision's name of the model.
    source : a file, or torchvision's name of the weights, such as ``IMAGENET1K_V1``. Torchvision
        downloads named weights and checks them. Reading ``.safetensors``, ``.pth`` and ``.pt`` runs
        no code from the file. A ``.npz`` file has one array for each tensor, or int8 convolutions
        with folded batch normalisation.

    Raises
    ------
    WeightsError : the name or file does not exist, the download fails, or the file cannot be read.
    """
    from torchvision import models  # noqa: PLC0415 - slow: it brings torch's compiler

    names = list(models.get_model_weights(trunk).__members__)
    if source in names:
        return PretrainedWeights(_download(trunk, source), *_normalisation(trunk))
    path = Path(source).expanduser()
    if not path.is_file():
        raise WeightsError(
            f"No weights {source!r} for {trunk}: neither a file nor one of {', '.join(names)}."
        )
    try:
        if path.suffix == ".safetensors":
            return PretrainedWeights(load_file(path), *_normalisation(trunk))
        if path.suffix in {".pth", ".pt"}:
            return PretrainedWeights(_state_dict(path), *_normalisation(trunk))
        if path.suffix == ".npz" and _is_quantised(path):
            half = torch.full((3,), 0.5)
            return PretrainedWeights(_dequantised(path), half, half)
        if path.suffix == ".npz":
            return PretrainedWeights(_arrays(path), *_normalisation(trunk))
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        EOFError,
        BadZipFile,
        SafetensorError,
        pickle.UnpicklingError,
    ) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    raise WeightsError(f"{path} is no .safetensors, .pth, .pt or .npz file.")


def _normalisation(trunk: str) -> tuple[Tensor, Tensor]:
    """Return the pixel mean (3,) and deviation (3,) that torchvision's weights of ``trunk`` need.

    GoogLeNet's weights were trained with TensorFlow, which scales pixels to [−1, 1]
    (transform_input).
    """
    half = torch.full((3,), 0.5)
    return (half, half) if trunk == "googlenet" else imagenet_normalisation()


def needs_tensorflow_padding(source: str | None) -> bool:
    """Return whether the weights at ``source`` were trained with TensorFlow's padding."""
    if source is None:
        return False
    if is_checkpoint(source):
        with safe_open(Path(source).expanduser(), framework="pt") as file:
            return (file.metadata() or {}).get(_PADDING) == _TENSORFLOW
    path = Path(source).expanduser()
    return path.suffix == ".npz" and path.is_file() and _is_quantised(path)


def linear_layer(weights: PretrainedWeights, n_features: int) -> tuple[Tensor, Tensor] | None:
    """Return the weight (D, F) and bias (D,) of the only linear layer that takes F features.

    Returns None if there is no such layer, or if there are several such layers.
    """
    found = [
        name.removesuffix(".weight")
        for name, value in weights.state.items()
        if name.startswith(CLASSIFIERS) and value.ndim == 2 and value.shape[1] == n_features
    ]
    if len(found) != 1:
        return None
    weight = weights.state[f"{found[0]}.weight"]
    return weight, weights.state.get(f"{found[0]}.bias", torch.zeros(len(weight)))


def is_checkpoint(source: str) -> bool:
    """Return whether ``source`` is the checkpoint.safetensors of a run."""
    path = Path(source).expanduser()
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            return "last_layer.weight" in set(file.keys())
    except SafetensorError:
        return False


def save_checkpoint(state: Mapping[str, Tensor], path: Path, weights: str | None) -> None:
    """Write the state of an encoder.

    Parameters
    ----------
    weights : the initial weights of the trunk. These weights determine the padding. The padding is
        written as metadata, because no tensor contains it.
    """
    padding = _TENSORFLOW if needs_tensorflow_padding(weights) else "torch"
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, path, metadata={_PADDING: padding})


def _download(trunk: str, name: str) -> Mapping[str, Tensor]:
    from torchvision import models  # noqa: PLC0415 - slow

    weights = models.get_model_weights(trunk)[name]
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    why = "there is no network, or the server does not answer"
    if cached.exists() or Probe(weights.url).answers():
        try:
            state: Mapping[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
        except (URLError, OSError, RuntimeError) as error:
            why = str(error)
        else:
            return state
    raise WeightsError(
        f"Cannot download {name} of {trunk} from {weights.url}: {why}. Download the file on "
        "a machine with a network, and give its path as the weights."
    )


def _state_dict(path: Path) -> Mapping[str, Tensor]:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError("it holds no state dict, which maps names to tensors")
    return state


def _is_quantised(path: Path) -> bool:
    """Return whether an .npz file holds int8 weights; False if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return any(name.endswith(_QUANTISED) for name in file.files)
    except (OSError, ValueError, BadZipFile, EOFError):
        return False


def _arrays(path: Path) -> Mapping[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        if not file.files:
            raise ValueError("it holds no arrays")
        return {name: torch.from_numpy(file[name]) for name in file.files}


def _dequantised(path: Path) -> Mapping[str, Tensor]:
    """Return the weights and biases of all layers; a weight is `<name>.q` (int8) × `<name>.scale`.

    The batch normalisation was folded into the convolution, so the batch-normalisation layer after
    each convolution only adds the bias.
    """
    state: dict[str, Tensor] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            if not key.endswith(_QUANTISED):
                continue
            layer = key.removesuffix(_QUANTISED)
            quantised = file[key].astype(np.float32)
            scale = file[f"{layer}.scale"].astype(np.float32)
            weight = quantised * scale.reshape(-1, *[1] * (quantised.ndim - 1))
            state[f"{layer}.weight"] = torch.from_numpy(weight)
            bias = torch.from_numpy(file[f"{layer}.bias"].astype(np.float32))
            if quantised.ndim == 2:
                state[f"{layer}.bias"] = bias
            else:
                state |= _folded_batch_norm(_behind(layer), bias)
    return state


def _behind(layer: str) -> str:
    """Return the name of the batch-normalisation layer that follows the convolution ``layer``."""
    block, _, place = layer.rpartition(".")
    return f"{block}.{int(place) + 1}"


def _folded_batch_norm(name: str, bias: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a batch-normalisation layer that only adds ``bias`` (C,)."""
    return {
        f"{name}.weight": torch.ones_like(bias),
        f"{name}.bias": bias,
        f"{name}.running_mean": torch.zeros_like(bias),
        f"{name}.running_var": torch.ones_like(bias) - _BATCH_NORM_EPS,
        f"{name}.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }
