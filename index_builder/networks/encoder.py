"""The deterministic encoder: a trunk and a linear last layer; and features of many images.

An encoder is untrained, pretrained, or comes from the checkpoint of a run. Its trunk can be a graph
that ONNX Runtime computes and that is not trained. Features come in blocks that fit into memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from index_builder.arrays import to_numpy
from index_builder.configuration.defaults import WHITENED_DIM
from index_builder.configuration.encoder import NetworkConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Read
from index_builder.networks.trunk import (
    ColourCNN,
    SmallCNN,
    TorchvisionName,
    TorchvisionTrunk,
    Trunk,
    drawn_from,
    freeze_batch_norm,
    shortened,
)
from index_builder.networks.weights import (
    PretrainedWeights,
    is_checkpoint,
    linear_layer,
    load_weights,
    needs_tensorflow_padding,
)
from index_builder.progress import track_parts
from index_builder.vectors.encoder import FEATURES, features_of
from index_builder.vectors.frozen_graph import FrozenGraph
from index_builder.vectors.images import ImageVectors
from model_store.encoder.contract import EncoderInput
from model_store.encoder.onnx import open_graph
from model_store.errors import WeightsError

if TYPE_CHECKING:
    import onnxruntime


class MetricEncoder(nn.Module):
    """Maps images to embeddings before normalisation: h = W φ(x) + b.

    The encoder also scales the bytes of an image, so the exported graph contains the scaling.

    Parameters
    ----------
    trunk : computes φ, the features (B, F) of standardised images (B, 3, H, W).
    pretrained : whether batch normalisation keeps the statistics of the pretraining.
    frozen : whether only the last layer is trained, and not the trunk.
    feature_norm : whether to normalise the features by a batch normalisation without trained
        parameters, as in Boudiaf et al. 2020, sec. 5.3. Training estimates its statistics.

    Attributes
    ----------
    stored_features : a cache of the features of images; None if the trunk is trained.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        trunk: Trunk,
        embedding_dim: int,
        *,
        pretrained: bool = False,
        frozen: bool = False,
        feature_norm: bool = False,
    ) -> None:
        super().__init__()
        self.trunk = trunk.requires_grad_(not frozen)
        self.pretrained = pretrained
        self.frozen = frozen
        self.stored_features: ImageVectors | None = None
        self._mixed_precision = False
        self.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
        self.register_buffer("pixel_std", torch.ones(3, 1, 1))
        self.feature_norm: nn.Module = nn.Identity()
        if feature_norm:
            self.feature_norm = nn.BatchNorm1d(trunk.n_features, affine=False)
        self.last_layer = nn.Linear(trunk.n_features, embedding_dim)

    @property
    def preprocessing(self) -> EncoderInput:
        """The preprocessing of an upright RGB image, or the shape of the input vectors."""
        return self.trunk.preprocessing

    def train(self, mode: bool = True) -> MetricEncoder:
        """Set the training mode; pretrained batch normalisation keeps its pretrained statistics."""
        super().train(mode)
        if self.pretrained:
            freeze_batch_norm(self.trunk)
        return self

    def place_trunk(self, device: torch.device, *, mixed_precision: bool = False) -> None:
        """Move the trunk to ``device``; the last layer stays on the CPU.

        The memory format becomes channels-last, because convolutions on CPUs and in bfloat16 are
        then faster.

        Parameters
        ----------
        mixed_precision : whether training computes the trunk in bfloat16.
        """
        self.trunk.to(device=device)
        self.trunk.to(memory_format=torch.channels_last)
        self._mixed_precision = mixed_precision
        self.pixel_mean = self.pixel_mean.to(device)
        self.pixel_std = self.pixel_std.to(device)

    def features(self, images: Tensor) -> Tensor:
        """Return the features (B, F) of ``images`` (B, H, W, 3) uint8.

        The features are computed on the device of `place_trunk` and returned on the device of
        ``images``.
        """
        place = self.pixel_mean.device
        mixed = self.training and self._mixed_precision
        with torch.autocast(place.type, torch.bfloat16, enabled=mixed):
            features: Tensor = self.trunk(self.standardised(images.to(place)))
        normalised: Tensor = self.feature_norm(features.float().to(images.device))
        return normalised

    def standardised(self, images: Tensor) -> Tensor:
        """Convert ``images`` (B, H, W, 3) uint8 to the trunk's input (B, 3, H, W)."""
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        return (scaled - self.pixel_mean) / self.pixel_std

    def standardise(self, images: Tensor) -> None:
        """Set the scaling so that pixels of ``images`` (N, H, W, 3) have mean 0, deviation 1."""
        counts = torch.bincount(images.flatten(), minlength=256).double()
        values = torch.arange(256).double() / 255
        mean = (counts @ values) / counts.sum()
        variance = (counts @ (values - mean) ** 2) / counts.sum()
        self.pixel_mean.fill_(mean)
        self.pixel_std.fill_(variance.sqrt().clamp_min(1e-3))

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D), not normalised, of ``images`` (B, H, W, 3) uint8."""
        embeddings: Tensor = self.last_layer(self.features(images))
        return embeddings


class GraphTrunk(Trunk):
    """A trunk that computes the features of an existing encoder.

    Parameters
    ----------
    place : name or path of the encoder, as in `vouch-build index`.

    Attributes
    ----------
    frozen : the graph.

    Raises
    ------
    BundleNotFound : there is no encoder at ``place``.
    EncoderContractError : the encoder violates the contract.
    """

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.frozen = FrozenGraph(place)
        self.preprocessing = self.frozen.preprocessing
        self.n_features = self.frozen.n_features

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return open_graph(self.frozen.content, "cpu", threads=1)

    def extra_repr(self) -> str:
        """Return a hash of the graph; the hash becomes part of fingerprints."""
        return self.frozen.fingerprint

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8; the graph standardises the images."""
        (found,) = self._session.run([FEATURES], {self.frozen.input_name: images.cpu().numpy()})
        return torch.from_numpy(found)


class GraphTrunkEncoder(MetricEncoder):
    """An encoder with a `GraphTrunk`; only its last layer can be trained."""

    trunk: GraphTrunk

    def __init__(self, trunk: GraphTrunk, embedding_dim: int) -> None:
        super().__init__(trunk, embedding_dim, frozen=True)

    def features(self, images: Tensor) -> Tensor:
        """Return the features (B, F) of ``images`` (B, H, W, 3) uint8."""
        found: Tensor = self.trunk(images)
        return found.to(images.device)


def build_encoder(config: NetworkConfig, generator: torch.Generator) -> MetricEncoder:
    """Return an untrained encoder; ``generator`` draws the initial weights.

    The trunk keeps ``generator``, which draws its dropout masks during training.
    """
    with drawn_from(generator):
        trunk = _trunk(config, generator)
        dim = config.embedding_dim or min(WHITENED_DIM, trunk.n_features)
        if isinstance(trunk, GraphTrunk):
            return GraphTrunkEncoder(trunk, dim)
        return MetricEncoder(
            trunk,
            dim,
            pretrained=config.weights is not None,
            frozen=config.frozen,
            feature_norm=config.feature_norm,
        )


def load_encoder(config: NetworkConfig, checkpoint: Path) -> MetricEncoder:
    """Read an encoder that `save_checkpoint` wrote, in evaluation mode.

    Raises
    ------
    WeightsError : the file is not a checkpoint, or is the checkpoint of another network.
    """
    of_checkpoint = {"weights": str(checkpoint), "last_layer": "loaded", "frozen": False}
    config = config.model_copy(update=of_checkpoint)
    encoder = build_encoder(config, torch.Generator())
    load_pretrained(encoder, config)
    return encoder.eval()


def load_pretrained(encoder: MetricEncoder, config: NetworkConfig) -> None:
    """Load the weights that ``config.weights`` names.

    If the configuration requires it, the last layer is loaded too.

    Raises
    ------
    WeightsError : the weights are missing, cannot be read or do not fit.
    """
    assert config.weights is not None  # noqa: S101 - the caller has looked
    if is_checkpoint(config.weights):
        state = load_file(Path(config.weights).expanduser())
        if config.last_layer != "loaded":
            state |= {f"last_layer.{k}": v for k, v in encoder.last_layer.state_dict().items()}
        try:
            encoder.load_state_dict(state)
        except RuntimeError as error:
            raise WeightsError(
                f"{config.weights} does not fit the encoder. {shortened(error)}"
            ) from error
    elif isinstance(encoder.trunk, TorchvisionTrunk):
        weights = load_weights(encoder.trunk.name, config.weights)
        encoder.trunk.load_backbone(weights.state)
        encoder.pixel_mean.copy_(weights.pixel_mean[:, None, None])
        encoder.pixel_std.copy_(weights.pixel_std[:, None, None])
        if config.last_layer == "loaded":
            _take_linear_layer(encoder, weights, config.weights)
    else:
        raise WeightsError(
            f"{config.weights} is not the checkpoint.safetensors of a run; trunk = "
            f"{config.trunk!r} has no other weights."
        )


def _take_linear_layer(encoder: MetricEncoder, weights: PretrainedWeights, source: str) -> None:
    """Copy the only linear layer of ``weights`` to the last layer."""
    layer = linear_layer(weights, encoder.trunk.n_features)
    if layer is None or layer[0].shape[0] != encoder.last_layer.out_features:
        found = "none" if layer is None else f"one of {layer[0].shape[0]} dimensions"
        raise WeightsError(
            f"last_layer = 'loaded' requires a linear layer from {encoder.trunk.n_features} "
            f"features to embedding_dim = {encoder.last_layer.out_features}; {source} has {found}."
        )
    with torch.no_grad():
        encoder.last_layer.weight.copy_(layer[0])
        encoder.last_layer.bias.copy_(layer[1])


def _trunk(config: NetworkConfig, generator: torch.Generator) -> Trunk:
    if config.trunk == "small_cnn":
        return SmallCNN(config.dropout if config.dropout_inside else 0.0, generator)
    if config.trunk == "colour_cnn":
        return ColourCNN()
    if config.encoder is not None:
        return GraphTrunk(Path(config.encoder))
    return TorchvisionTrunk(
        cast("TorchvisionName", config.trunk),
        config.pooling,
        config.input_size,
        tensorflow_padding=needs_tensorflow_padding(config.weights),
    )


_PIXELS = 800_000
"""Number of pixels in a block: a thousand small images, or fifteen photographs."""

_PIXELS_AT_ONCE = 100_000
"""Number of pixels that a CPU processes in one batch. With small batches, activations stay in the
cache and memory is reused. This is up to four times faster than with large batches."""

_REMEMBERED_BYTES = 2**28
"""Maximum size in bytes of features that the steps of a build share: 256 MiB, enough for 52,000
photographs."""


@dataclass(slots=True)
class _Remembered:
    """A cache of the features of one trunk; the key is the source and the row of an image.

    A build without training uses the features of the training images three times: to fit the
    whitening, to fit the posterior, and to choose the posterior's prior.
    """

    trunk: str = ""
    rows: dict[tuple[Read, int], Tensor] = field(default_factory=dict)

    def of(self, trunk: str) -> dict[tuple[Read, int], Tensor]:
        """Return the cached features of ``trunk``; features of another trunk are deleted."""
        if trunk != self.trunk:
            self.trunk, self.rows = trunk, {}
        return self.rows


_REMEMBERED = _Remembered()


def feature_blocks(encoder: MetricEncoder, images: LabelledImages) -> Iterator[Tensor]:
    """Features (n, F) of ``images``, in order; the encoder must be in evaluation mode."""
    if encoder.stored_features is not None:
        for _, stored in encoder.stored_features.of(images, "features"):
            yield torch.from_numpy(stored)
        return
    preprocessing = encoder.preprocessing
    size = max(1, _PIXELS // math.prod(preprocessing.shape[:2]))
    known = _REMEMBERED.of(trunk_fingerprint(encoder))
    n_kept = _REMEMBERED_BYTES // (4 * encoder.trunk.n_features)
    for start in track_parts(len(images), size, "features"):
        part = images.at(range(start, min(start + size, len(images))))
        places = [(part.read, int(row)) for row in part.rows]
        if not all(place in known for place in places):
            with torch.no_grad():  # excludes the yield: the caller needs gradients
                features = _computed(encoder, torch.from_numpy(part.prepared(preprocessing)))
            if len(known) + len(places) <= n_kept:
                known.update(zip(places, features, strict=True))
            yield features
        else:
            yield torch.stack([known[place] for place in places])


def trunk_fingerprint(encoder: MetricEncoder) -> str:
    """Return a hash of everything that determines the features: the trunk and its settings."""
    state = encoder.state_dict()
    digest = hashlib.sha256(
        repr((encoder.preprocessing, encoder.pixel_mean.device, encoder.trunk)).encode()
    )
    for name in sorted(name for name in state if not name.startswith("last_layer.")):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _computed(encoder: MetricEncoder, images: Tensor) -> Tensor:
    if encoder.pixel_mean.is_cuda:
        return encoder.features(images)
    parts = torch.split(images, max(1, _PIXELS_AT_ONCE // math.prod(images.shape[1:3])))
    return torch.cat([encoder.features(part) for part in parts])


def all_features(encoder: MetricEncoder, images: LabelledImages) -> Tensor:
    """Features (N, F) of ``images``; the encoder must be in evaluation mode."""
    return torch.from_numpy(features_of(LinearNetwork(encoder), images))


class LinearNetwork:
    """A network as a `LinearEncoder`; the arrays share the memory of its tensors."""

    def __init__(self, encoder: MetricEncoder) -> None:
        self._encoder = encoder

    @property
    def weight(self) -> NDArray[np.float32]:
        """Weight (D, F) of the last layer."""
        return to_numpy(self._encoder.last_layer.weight)

    @property
    def bias(self) -> NDArray[np.float32]:
        """Bias (D,) of the last layer."""
        return to_numpy(self._encoder.last_layer.bias)

    def blocks(self, images: LabelledImages) -> Iterator[NDArray[np.float32]]:
        """Yield the features (n, F) of ``images`` in order."""
        return map(to_numpy, feature_blocks(self._encoder, images))
