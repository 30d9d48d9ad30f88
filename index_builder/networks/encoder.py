"""The deterministic encoder: trunk and linear last layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.configuration import NetworkConfig
from index_builder.networks.small_cnn import SmallCNN
from index_builder.networks.trunk import Trunk
from model_store.images import Preprocessing


class MetricEncoder(nn.Module):
    """Images to embeddings, before normalisation: h = W φ(x) + b.

    Scaling from bytes is inside, so that it travels with the exported graph.

    Parameters
    ----------
    trunk : computes φ: features (B, F) of images (B, 3, H, W), standardised.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, trunk: Trunk, embedding_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.trunk = trunk
        self.register_buffer("pixel_mean", torch.zeros(()))
        self.register_buffer("pixel_std", torch.ones(()))
        self.dropout = nn.Dropout(dropout)
        self.last_layer = nn.Linear(trunk.n_features, embedding_dim)

    @property
    def preprocessing(self) -> Preprocessing:
        """How an upright RGB image becomes the input."""
        return self.trunk.preprocessing

    def features(self, images: Tensor) -> Tensor:
        """Penultimate activations (B, F) of ``images`` (B, H, W, 3) uint8."""
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        features: Tensor = self.trunk((scaled - self.pixel_mean) / self.pixel_std)
        return features

    def standardise(self, images: Tensor) -> None:
        """Bring pixels to mean 0 and deviation 1 over ``images`` (N, H, W, 3) uint8."""
        counts = torch.bincount(images.flatten(), minlength=256).double()
        values = torch.arange(256).double() / 255
        mean = (counts @ values) / counts.sum()
        variance = (counts @ (values - mean) ** 2) / counts.sum()
        self.pixel_mean.copy_(mean)
        self.pixel_std.copy_(variance.sqrt().clamp_min(1e-3))

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings (B, D), not normalised, of ``images`` (B, H, W, 3) uint8."""
        embeddings: Tensor = self.last_layer(self.dropout(self.features(images)))
        return embeddings


def build_encoder(config: NetworkConfig, generator: torch.Generator) -> MetricEncoder:
    """An untrained encoder: PyTorch's own initialisation, drawn from ``generator`` alone."""
    encoder = MetricEncoder(SmallCNN(), config.embedding_dim, config.dropout)
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return encoder
