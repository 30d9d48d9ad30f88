"""The interface of training objectives, and the pairs of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

_SQUARED_FLOOR = 1e-8
"""Minimum squared distance; the square root has no derivative at zero."""


def positives_and_negatives(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks (B, B) of positive and negative pairs, both False on the diagonal."""
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~itself, ~same


def squared_distances(embeddings: Tensor) -> Tensor:
    """Return squared distances (B, B) on the unit sphere, each at least `_SQUARED_FLOOR`.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    """
    unit = torch.nn.functional.normalize(embeddings)
    return (2 - 2 * unit @ unit.T).clamp_min(_SQUARED_FLOOR)


def mean_of(values: Tensor, n: Tensor | int | None = None) -> Tensor:
    """Return the sum of ``values`` divided by ``n``; 0 if there are no values.

    By default, ``n`` is the number of values, so the result is the mean.
    """
    count = values.numel() if n is None else n
    return values.sum() / torch.as_tensor(count).clamp_min(1)


Sampling = Literal["balanced", "pairs", "shuffled", "views"]
"""The batches that an objective needs. `balanced`: some labels, with several images of each label.
`pairs`: many labels, with two images of each label. `shuffled`: random images. `views`: two views
of each image; each image has its own label."""


class Objective(nn.Module):
    """A loss of the features of a minibatch; the loss can have parameters that are trained.

    The training loop trains the parameters together with the encoder; `learned` returns them for
    the checkpoint.

    Attributes
    ----------
    holds_prior : whether the loss includes the prior of the last layer. If it does, the last layer
        has no weight decay.
    sampling : the batches that the objective needs.
    learning_rate : peak learning rate of the objective's parameters; if None, the learning rate of
        the encoder is used.
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
        last_layer : the layer that maps F features to D dimensions.
        """

    def learned(self) -> dict[str, Tensor]:
        """Return the trained tensors of the objective; `vouch-build fit` reads them."""
        return self.state_dict()


Loss = Callable[[Tensor, Tensor], Tensor]
"""Function from embeddings (B, D), before normalisation, and labels (B,) to a scalar."""


class LossOfEmbeddings(Objective):
    """An objective without parameters: a ``loss`` of the embeddings of the last layer."""

    def __init__(self, loss: Loss, sampling: Sampling = "balanced") -> None:
        super().__init__()
        self.loss = loss
        self.sampling = sampling

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return self.loss(last_layer(features), labels)
