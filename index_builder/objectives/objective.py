"""The interface of training objectives."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn


class Objective(nn.Module):
    """A loss on the features of a minibatch, and whatever it learns beside the last layer.

    Its parameters are trained along.

    Attributes
    ----------
    holds_prior : the last layer's prior is part of the loss: weight decay would be another.
    """

    holds_prior: bool = False

    @abstractmethod
    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch, a scalar.

        Parameters
        ----------
        features : (B, F)
        labels : (B,) int64.
        last_layer : F to D.
        """

    def learned(self) -> dict[str, Tensor]:
        """Return the tensors learned beside the encoder; `vouch-build fit` reads them."""
        return self.state_dict()
