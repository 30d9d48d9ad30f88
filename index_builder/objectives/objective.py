"""The interface of training objectives."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn

Sampling = Literal["balanced", "pairs", "shuffled", "views"]
"""The images that an objective needs in a batch: several of each of some labels; two of each of
many; any, in random order; or two views of each of some, with labels that say no more than which
views are of one."""


class Objective(nn.Module):
    """A loss on the features of a minibatch, and whatever it learns beside the last layer.

    What it learns are its parameters, and nothing more is to be done for them: the training loop
    trains them along, `learned` gives them to the checkpoint.

    Attributes
    ----------
    holds_prior : the last layer's prior is part of the loss: weight decay would be another.
    sampling : the batches that it needs.
    learning_rate : peak learning rate of the objective's parameters; None for that of the encoder.
    """

    holds_prior: bool = False
    sampling: Sampling = "balanced"
    learning_rate: float | None = None

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
