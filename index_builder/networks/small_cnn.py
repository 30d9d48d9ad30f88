"""The two small trunks of the Laplace metric-learning paper (Warburg et al. 2023, G.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.networks.trunk import Trunk, dropped_out, kept
from model_store.images import Preprocessing

_FIRST = 2
"""Number of layers before the dropout: the first convolution and its activation."""


class SmallCNN(Trunk):
    """Two 3 × 3 convolutions and one pooling: from a grey image, 28 × 28, to 9,216 features.

    The trunk is for grey images, so it averages the colour channels. The paper applies ReLU before
    the pooling. This trunk applies ReLU after the pooling: the result is the same, with a quarter
    of the operations.

    Parameters
    ----------
    dropout : in training, the dropped share of the activations between the convolutions.
    generator : draws the masks.
    """

    preprocessing = Preprocessing(height=28, width=28, decoding="reduced")
    n_features = 64 * 12 * 12
    hidden_shape = (32, 26, 26)
    """Shape of the activations between the convolutions."""

    def __init__(self, dropout: float = 0.0, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.dropout = dropout
        self.generator = generator

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 9216) of standardised ``images`` (B, 3, 28, 28)."""
        hidden = self._hidden(images)
        if self.training and self.generator is not None:
            hidden = dropped_out(hidden, self.dropout, self.generator)
        features: Tensor = self.layers[_FIRST:](hidden)
        return features

    def masked_features(self, images: Tensor, masks: Tensor) -> list[Tensor]:
        """Return features (B, 9216) for each mask of ``masks`` (T, *hidden_shape), bool."""
        hidden = self._hidden(images)
        return [self.layers[_FIRST:](kept(hidden, mask, self.dropout)) for mask in masks]

    def _hidden(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.layers[:_FIRST](images.mean(dim=1, keepdim=True))
        return hidden


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
