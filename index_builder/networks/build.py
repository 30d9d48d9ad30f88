"""Encoders by configuration: untrained, pretrained, or from the checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from index_builder.configuration.defaults import WHITENED_DIM
from index_builder.configuration.encoder import NetworkConfig
from index_builder.networks.encoder import MetricEncoder
from index_builder.networks.graph_trunk import GraphTrunk, GraphTrunkEncoder
from index_builder.networks.small_cnn import ColourCNN, SmallCNN
from index_builder.networks.torchvision_trunk import TorchvisionName, TorchvisionTrunk, shortened
from index_builder.networks.trunk import Trunk, drawn_from
from index_builder.networks.weights import (
    PretrainedWeights,
    is_checkpoint,
    linear_layer,
    load_checkpoint,
    load_weights,
    needs_tensorflow_padding,
)
from model_store.errors import WeightsError


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
        state = load_checkpoint(config.weights)
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
