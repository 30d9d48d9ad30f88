"""The contrastive loss with an online Laplace posterior.

Training computes a running average of the curvature, and can draw last layers from the posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic

import torch
from torch import Tensor, nn

from index_builder.arrays import Array
from index_builder.objectives.distances import contrastive_loss
from index_builder.objectives.objective import Objective
from index_builder.posteriors.laplace.all_pairs import MAX_DENSE
from index_builder.posteriors.laplace.curvature import (
    Approximation,
    Curvature,
    Split,
    Structure,
    TargetScaling,
    anchor_targets,
)
from index_builder.posteriors.laplace.fit import FeltCurvature
from index_builder.posteriors.laplace.kronecker import PartialTraces
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.laplace.minibatches import (
    Drawn,
    MinibatchPlan,
    Sum,
    minibatch_curvature,
    minibatch_loss,
    minibatch_traces,
)


@dataclass(frozen=True, slots=True)
class OnlineCurvature(Generic[Sum]):
    """The state of an online Laplace posterior between training steps.

    The update is Warburg et al. 2023, Eq. 66-70, corrected: H ← (1 - α) H + α data_scale G. G is
    the curvature of a minibatch. With the correction, H converges to the curvature of the data and
    not to G / α. The prior is added separately, so that the prior does not decay. H starts at zero.
    As in Adam (Kingma & Ba 2015, sec. 3), H is divided by 1 - (1 - α)^t, the total weight of t
    steps. Negative values are set to zero only when a posterior is formed.

    Attributes
    ----------
    decayed : H of the update, a diagonal or partial traces.
    n_steps : t.
    data_scale : factor on G: the number of images, because the targets sum to one.
    prior_precision : inverse prior variance of each weight, > 0.
    memory_factor : α in (0, 1]; the average is over about the last 1 / α minibatches.
    initial_precision : ≥ 0, added to the prior precision for sampling; the added value decays with
        (1 - α)^t. If this value is 0, the standard deviations of untrained weights are larger than
        the weights, so sampled layers are noise. (The authors' code starts with a curvature of
        1e6.)
    """

    decayed: Sum
    n_steps: int
    data_scale: float
    prior_precision: float
    memory_factor: float
    initial_precision: float = 0.0

    def __post_init__(self) -> None:
        if not (self.data_scale > 0 and self.prior_precision > 0 and 0 < self.memory_factor <= 1):
            raise ValueError(
                f"{self.data_scale=}, {self.prior_precision=}, {self.memory_factor=}: wanted the "
                "first two positive, the last in (0, 1]"
            )

    @staticmethod
    def start(
        weight: Tensor,
        *,
        structure: Structure = "kronecker",
        data_scale: float,
        prior_precision: float,
        memory_factor: float,
        initial_precision: float = 0.0,
    ) -> OnlineCurvature[Any]:
        """Return the state before the first step, for a layer with this weight (D, F)."""
        zero = no_curvature(structure, weight.detach())
        return OnlineCurvature(
            zero, 0, data_scale, prior_precision, memory_factor, initial_precision
        )

    @property
    def average(self) -> Sum:
        """Unclipped curvature of the data, with the data scale; it is 0 before the first step."""
        seen = 1 - (1 - self.memory_factor) ** self.n_steps
        return self.decayed * (1 / seen if seen else 0.0)

    @property
    def curvature(self) -> FeltCurvature:
        """`average`, with negative values set to zero.

        The prior precision is equal for all features, as in training.
        """
        average = self.average
        if isinstance(average, PartialTraces):
            return average.rectified("isotropic")
        return average.rectified()

    def posterior(self, weight: Tensor, bias: Tensor) -> LastLayerPosterior | KroneckerPosterior:
        """Return N(θ, 1 / (H + prior_precision)); before the first step, H is zero."""
        return self.curvature.posterior(weight, bias, self.prior_precision)

    def drawn_from(self, weight: Tensor, bias: Tensor) -> LastLayerPosterior | KroneckerPosterior:
        """Return the posterior that draws layers during training.

        This posterior is narrower than `posterior`, because its precision includes the decayed
        initial precision.
        """
        left = self.initial_precision * (1 - self.memory_factor) ** self.n_steps
        return self.curvature.posterior(weight, bias, self.prior_precision + left)

    def updated(self, minibatch: Sum) -> OnlineCurvature[Sum]:
        """Return the state after a step.

        Parameters
        ----------
        minibatch : G, not clipped at zero; the average of G over the sampled layers.
        """
        kept, added = 1 - self.memory_factor, self.memory_factor * self.data_scale
        return replace(
            self, decayed=self.decayed * kept + minibatch * added, n_steps=self.n_steps + 1
        )


def no_curvature(structure: Structure, weight: Tensor) -> Curvature | PartialTraces:
    """Return a zero curvature with this structure, for a layer with weight (D, F)."""
    if structure == "diagonal":
        return Curvature.zeros_like(weight)
    if weight.shape[1] <= MAX_DENSE:
        return PartialTraces.zeros_like(weight)
    return PartialTraces.zeros_like(weight, weight.new_zeros(weight.shape[1] + 1, 0))


def online_step(
    state: OnlineCurvature[Sum],
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    margin: float,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    approximation: Approximation = "fixed",
    split: Split = "euclidean",
    drawn: Drawn | None = None,
    n_samples: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[OnlineCurvature[Sum], Tensor]:
    """Update the curvature with a minibatch, and return the training objective.

    This is Warburg et al. 2023, Eq. 67-70, corrected: the step follows the negative gradient, and
    the objective includes the prior. The objective is E_q[L(θ)] + prior_precision ‖θ‖² / (2
    data_scale), where q is the current posterior. The expectation over q has two forms. The point
    form evaluates the loss L at θ, the mean of q. The expectation form draws layers from q, and
    averages L over these layers. The gradient flows to the mean of q. G is computed at the same
    layers as L.

    Parameters
    ----------
    state : the state before the step.
    features : (B, F), with gradients to the network.
    labels : (B,) int64.
    weight, bias : (D, F), (D,); the parameters of the layer.
    margin, approximation, split, drawn : as in `minibatch_curvature`.
    loss : L, a function of embeddings (B, D) and labels; if None, `minibatch_loss` is used. The
        curvature is always computed from `minibatch_loss`, even if L is a different loss. The
        positive term of `minibatch_loss` has the same minima as L.
    n_samples : number of layers to draw for the expectation form; with 0, the point form is used.
    generator : random generator that draws the layers; the expectation form requires it.

    Returns
    -------
    state : the state after the step.
    objective : a scalar with a gradient.
    """
    if n_samples and generator is None:
        raise ValueError(f"{n_samples=} layers are to be drawn, but there is no generator")
    if n_samples and generator is not None:
        weights, biases = state.drawn_from(weight, bias).sample(n_samples, generator)
    else:
        weights, biases = weight[None], bias[None]
    loss = loss or partial(minibatch_loss, margin=margin)
    squared_norm = weight.square().sum() + bias.square().sum()
    objective = state.prior_precision / (2 * state.data_scale) * squared_norm
    is_diagonal = isinstance(state.decayed, Curvature)
    of_minibatch: Callable[..., Any] = minibatch_curvature if is_diagonal else minibatch_traces
    weighted_as = {"margin": margin, "approximation": approximation, "split": split, "drawn": drawn}
    total = state.decayed * 0.0
    for w, b in zip(weights, biases, strict=True):
        objective = objective + loss(torch.addmm(b, features, w.T), labels) / len(weights)
        with torch.no_grad():
            total = total + of_minibatch(features, labels, w, b, **weighted_as)
    return state.updated(total * (1 / len(weights))), objective


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
