"""The interface of training objectives, and objectives without parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

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
