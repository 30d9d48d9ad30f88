"""The deterministic encoder: trunk and linear last layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.networks.torchvision_trunk import freeze_batch_norm
from index_builder.networks.trunk import Trunk
from index_builder.vectors.images import ImageVectors
from model_store.encoder.contract import EncoderInput


class MetricEncoder(nn.Module):
    """Images to embeddings, before normalisation: h = W φ(x) + b.

    It includes the scaling of bytes, which is therefore part of the exported graph.

    Parameters
    ----------
    trunk : computes φ: features (B, F) of images (B, 3, H, W), standardised.
    pretrained : batch normalisation keeps the statistics it was pretrained with.
    frozen : the trunk is not trained, only the last layer.
    feature_norm : add a batch normalisation of the features without trained parameters, as in
        Boudiaf et al. 2020, sec. 5.3; its statistics are estimated in training.

    Attributes
    ----------
    stored_features : stored features of images, if the trunk is not trained; otherwise None.
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
        """Set training mode; pretrained batch normalisation keeps its statistics."""
        super().train(mode)
        if self.pretrained:
            freeze_batch_norm(self.trunk)
        return self

    def place_trunk(self, device: torch.device, *, mixed_precision: bool = False) -> None:
        """Compute the trunk on ``device``; the rest stays on the CPU.

        The memory format is channels-last, which makes convolutions faster on CPUs and in bfloat16.

        Parameters
        ----------
        mixed_precision : in training.
        """
        self.trunk.to(device=device)
        self.trunk.to(memory_format=torch.channels_last)
        self._mixed_precision = mixed_precision
        self.pixel_mean = self.pixel_mean.to(device)
        self.pixel_std = self.pixel_std.to(device)

    def features(self, images: Tensor) -> Tensor:
        """Penultimate activations (B, F) of ``images`` (B, H, W, 3) uint8.

        `place_trunk` chooses the computing device; results are on the device of ``images``.
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
        """Standardise pixels to mean 0 and deviation 1 over ``images`` (N, H, W, 3) uint8."""
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
