"""The interface that every trunk has."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from model_store.encoder.contract import EncoderInput


class Trunk(nn.Module):
    """Computes the features that the last layer acts on.

    Attributes
    ----------
    preprocessing : how an upright RGB image becomes its input; or the vectors that are its input.
    n_features : F.
    """

    preprocessing: EncoderInput
    n_features: int

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, 3, H, W), standardised."""
