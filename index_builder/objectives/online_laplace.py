"""The contrastive loss with an online Laplace posterior."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from index_builder.arrays import Array
from index_builder.objectives.contrastive import contrastive_loss
from index_builder.objectives.objective import Objective
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split, Structure
from index_builder.posteriors.laplace.kronecker import PartialTraces
from index_builder.posteriors.laplace.minibatches import Drawn, MinibatchPlan
from index_builder.posteriors.laplace.online import OnlineCurvature, online_step
from index_builder.posteriors.laplace.targets import TargetScaling, anchor_targets


class OnlineLaplaceLoss(Objective):
    """The contrastive loss, averaged over last layers that are drawn from the posterior.

    Parameters
    ----------
    last_layer : the last layer, which determines the shape of the curvature.
    labels : (N,) int64 codes of the training images, from 0 without gaps.
    plan : how minibatches are drawn. The plan is needed for an unbiased curvature if labels have
        different numbers of images.
    margin : margin of the contrastive loss.
    structure : structure of the curvature.
    approximation, split : see `Approximation` and `Split`.
    scaling : weighting of the pairs, see `TargetScaling`.
    memory_factor, prior_precision, initial_precision : see `OnlineCurvature`.
    n_samples : number of layers drawn at each step; if 0, the last layer itself is used.
    generator : draws the layers.
    """

    holds_prior = True

    def __init__(
        self,
        last_layer: nn.Linear,
        labels: Tensor,
        plan: MinibatchPlan,
        *,
        margin: float,
        structure: Structure,
        approximation: Approximation,
        split: Split,
        scaling: TargetScaling,
        memory_factor: float,
        prior_precision: float,
        initial_precision: float,
        n_samples: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.online: OnlineCurvature[Any] = OnlineCurvature.start(
            last_layer.weight,
            structure=structure,
            data_scale=float(len(labels)),
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
        images = torch.argsort(labels, stable=True)
        one_of_each = images[torch.bincount(labels).cumsum(0) - 1]
        dtype = last_layer.weight.dtype
        self._targets = anchor_targets(labels, scaling, dtype).of(one_of_each)
        self._plan = plan

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Return the loss of a minibatch of ``features`` (B, F), and update the curvature."""
        self.online, loss = self.step(
            self.online,
            features,
            labels,
            last_layer.weight,
            last_layer.bias,
            drawn=Drawn(self._targets.of(labels), self._plan),
        )
        return loss

    def learned(self) -> dict[str, Tensor]:
        """Return the tensors of the curvature of the data, already multiplied by the data scale."""
        kept = self.online.average
        return {
            name: value.contiguous()
            for name in ("weight", "bias", "features", "outputs", "diagonal", "basis")
            if (value := getattr(kept, name, None)) is not None
        }

    @staticmethod
    def curvature(learned: Mapping[str, Array]) -> Curvature | PartialTraces:
        """Restore the curvature from what `learned` returned, as tensors or arrays of NumPy."""
        return Curvature(**learned) if "weight" in learned else PartialTraces(**learned)
