"""The small convolutional trunk of the Laplace metric-learning paper (Warburg et al. 2023, G.2)."""

from __future__ import annotations

from torch import Tensor, nn

from index_builder.networks.trunk import Trunk
from model_store.images import Preprocessing


class SmallCNN(Trunk):
    """Two 3 × 3 convolutions and one pooling: grey 28 × 28 in, 9,216 features out.

    Colour is averaged away: the images it is meant for are grey.
    """

    preprocessing = Preprocessing(height=28, width=28)
    n_features = 64 * 12 * 12

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 9216) of ``images`` (B, 3, 28, 28), standardised."""
        features: Tensor = self.layers(images.mean(dim=1, keepdim=True))
        return features
