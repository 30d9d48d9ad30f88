"""The contrastive loss with the Laplace posterior kept up along the way."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from index_builder.objectives.contrastive import contrastive_loss
from index_builder.objectives.objective import Objective
from index_builder.posteriors import Approximation, Curvature, OnlineLaplace, Split, online_step


class OnlineLaplaceLoss(Objective):
    """The contrastive loss at the last layer, or averaged over layers drawn from its posterior.

    Minibatches hold as many images of each label, so that the curvature is that of data in which
    every label is as frequent; with labels of one size, that of the data themselves.

    Parameters
    ----------
    last_layer : its shape is that of the curvature.
    n_images : what the curvature of the mean pair is multiplied by.
    margin : of the contrastive loss.
    approximation, split : which of the six curvatures.
    memory_factor, prior_precision, initial_precision : see `OnlineLaplace`.
    n_samples : layers drawn for each step, 0 for none.
    generator : draws them.
    """

    holds_prior = True
    weight_curvature: Tensor
    bias_curvature: Tensor

    def __init__(
        self,
        last_layer: nn.Linear,
        n_images: int,
        *,
        margin: float,
        approximation: Approximation,
        split: Split,
        memory_factor: float,
        prior_precision: float,
        initial_precision: float,
        n_samples: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.online = OnlineLaplace.start(
            last_layer.weight,
            data_scale=float(n_images),
            prior_precision=prior_precision,
            memory_factor=memory_factor,
            initial_precision=initial_precision,
        )
        self.step = partial(
            online_step,
            margin=margin,
            loss=partial(contrastive_loss, margin=margin),
            approximation=approximation,
            split=split,
            n_samples=n_samples,
            generator=generator,
        )
        self.register_buffer("weight_curvature", torch.zeros_like(last_layer.weight))
        self.register_buffer("bias_curvature", torch.zeros_like(last_layer.bias))

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F); the curvature takes it in."""
        self.online, loss = self.step(
            self.online, features, labels, last_layer.weight, last_layer.bias
        )
        curvature = self.online.curvature
        self.weight_curvature, self.bias_curvature = curvature.weight, curvature.bias
        return loss

    @staticmethod
    def curvature(state: dict[str, Tensor]) -> Curvature:
        """Of the data, data scale included, from what ``state_dict`` gave."""
        return Curvature(state["weight_curvature"], state["bias_curvature"])
