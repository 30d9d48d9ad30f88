"""The interface of trunks."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from model_store.encoder.contract import EncoderInput


class Trunk(nn.Module):
    """Computes features, which are the input of the last layer.

    Attributes
    ----------
    preprocessing : the preprocessing of an upright RGB image, or the shape of the input vectors.
    n_features : F.
    """

    preprocessing: EncoderInput
    n_features: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of standardised ``images`` (B, 3, H, W)."""
