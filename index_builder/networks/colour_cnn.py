"""The small convolutional trunk for CIFAR-10 from the code of the Laplace metric-learning paper."""

from __future__ import annotations

from torch import Tensor, nn

from index_builder.networks.trunk import Trunk
from model_store.images import Preprocessing


class ColourCNN(Trunk):
    """Three 3 × 3 convolutions and two poolings: from an RGB image, 32 × 32, to 1,024 features.

    The layers are the same as in the authors' code. The text of the paper (G.2) describes one input
    channel and one pooling. But CIFAR-10 images have three channels, and the size of the paper's
    last layer requires two poolings. The trunk applies ReLU after each pooling instead of before
    it. The result is the same, with a quarter of the operations.
    """

    preprocessing = Preprocessing(height=32, width=32, decoding="reduced")
    n_features = 64 * 4 * 4

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 1024) of standardised ``images`` (B, 3, 32, 32)."""
        features: Tensor = self.layers(images)
        return features
