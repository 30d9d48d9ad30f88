"""Objectives without parameters: functions of a batch's embeddings and labels."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from index_builder.objectives.objective import Objective, Sampling

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
