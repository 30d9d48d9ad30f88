"""The deterministic encoder: trunk and linear last layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.networks.torchvision_trunk import freeze_batch_norm
from index_builder.networks.trunk import Trunk
from index_builder.vectors.images import ImageVectors
from model_store.encoder.contract import EncoderInput


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
