"""The post-hoc Laplace posterior of a trained last layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from index_builder.posteriors.all_pairs import fixed_curvature, positives_curvature
from index_builder.posteriors.curvature import Approximation, Curvature, Split
from index_builder.posteriors.feature_blocks import FeatureBlocks
from index_builder.posteriors.last_layer import LastLayerPosterior
from index_builder.posteriors.minibatches import MinibatchPlan, estimated_curvature
from index_builder.posteriors.prior import (
    PriorSearch,
    evidence_curve,
    log_marginal_likelihood,
    tune_prior_precision,
)
from index_builder.posteriors.targets import TargetScaling, anchor_targets

PriorChoice = Literal["caller", "marginal_likelihood", "validation"]
"""What decided on a prior precision."""


@dataclass(frozen=True, slots=True)
class LaplaceFit:
    """A posterior and how it came about.

    Attributes
    ----------
    posterior : N(θ, temperature / (data_scale H + prior_precision)), entry by entry.
    weight_curvature, bias_curvature : (D, F), (D,), H ≥ 0 for targets that sum to one; the data
        scale is not in it.
    prior_precision : inverse variance of each weight before data.
    prior_chosen_by : what decided on the prior precision.
    prior_search : the criterion around that choice; the evidence, unless validation decided.
    data_scale : what H is multiplied by, to behave as a sum over the data.
    log_marginal_likelihood : evidence of the prior precision, without its constant data term.
    temperature : below 1 where the images say more than as many observations would.
    temperature_search : the criterion around it, where validation decided.
    """

    posterior: LastLayerPosterior
    weight_curvature: Tensor
    bias_curvature: Tensor
    prior_precision: float
    prior_chosen_by: PriorChoice
    prior_search: PriorSearch
    data_scale: float
    log_marginal_likelihood: float
    temperature: float = 1.0
    temperature_search: PriorSearch | None = None

    def tempered(self, temperature: float) -> LaplaceFit:
        """The same curvature and prior, at another temperature."""
        posterior = self.posterior.tempered(temperature / self.temperature)
        return replace(self, posterior=posterior, temperature=temperature)

    def summary(self) -> dict[str, float]:
        """The entries of H in three numbers."""
        entries = torch.cat([self.weight_curvature.flatten(), self.bias_curvature]).double()
        return {
            "mean": float(entries.mean()),
            "largest": float(entries.max()),
            "share_zero": float((entries == 0).double().mean()),
        }


@torch.no_grad()
def fit_laplace(
    features: FeatureBlocks,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    approximation: Approximation = "fixed",
    split: Split = "euclidean",
    margin: float,
    scaling: TargetScaling = "per_anchor",
    prior_precision: float | None = None,
    data_scale: float | None = None,
    generator: torch.Generator | None = None,
    plan: MinibatchPlan | None = None,
) -> LaplaceFit:
    """Fit the diagonal Laplace posterior of a trained last layer h = W φ + b.

    Warburg et al. 2023, Eq. 62-65, corrected: targets are O(1), so that the curvature H of the loss
    does not grow with the data; it is multiplied by a stated data scale, and the prior is added
    outside: variance = 1 / (data_scale H + prior_precision).

    Parameters
    ----------
    features : called once for each pass over the data, gives blocks (n, F) in row order.
    labels : (N,) int64.
    weight, bias : (D, F), (D,); the trained layer.
    approximation, split : which of the six curvatures.
    margin : of the contrastive loss, distance on the unit sphere.
    scaling : how pairs are weighted against each other.
    prior_precision : None for the one with the largest marginal likelihood.
    data_scale : None for N, so that each image counts as one observation.
    generator : draws the minibatches of `full`. Its sum over N² pairs does not factorise, so it is
        estimated without bias from minibatches; `fixed` and `positives` are exact.
    plan : of those minibatches; None for the default.

    Raises
    ------
    DatasetError : there is no positive pair.
    CalibrationError : no prior precision can be chosen, because the curvature is zero.
    """
    weight, bias, labels = weight.detach(), bias.detach(), labels.to(weight.device)
    curvature = _curvature(
        features, labels, weight, bias, approximation, split, margin, scaling, generator, plan
    )
    return laplace_of_curvature(
        weight,
        bias,
        curvature,
        data_scale=float(len(labels)) if data_scale is None else data_scale,
        prior_precision=prior_precision,
    )


def laplace_of_curvature(
    weight: Tensor,
    bias: Tensor,
    curvature: Curvature,
    *,
    data_scale: float,
    prior_precision: float | None = None,
) -> LaplaceFit:
    """The posterior of a trained layer whose curvature is known, as after online training.

    Parameters
    ----------
    weight, bias : (D, F), (D,); the trained layer.
    curvature : H ≥ 0, without the data scale.
    data_scale : what H is multiplied by.
    prior_precision : None for the one with the largest marginal likelihood.

    Raises
    ------
    CalibrationError : no prior precision can be chosen, because the curvature is zero.
    """
    scaled = curvature * data_scale
    chosen_by: PriorChoice = "marginal_likelihood" if prior_precision is None else "caller"
    if prior_precision is None:
        prior_precision = tune_prior_precision(scaled, weight, bias)
    return LaplaceFit(
        posterior=laplace_posterior(weight, bias, scaled, prior_precision),
        weight_curvature=curvature.weight,
        bias_curvature=curvature.bias,
        prior_precision=prior_precision,
        prior_chosen_by=chosen_by,
        prior_search=evidence_curve(scaled, weight, bias, prior_precision),
        data_scale=data_scale,
        log_marginal_likelihood=log_marginal_likelihood(scaled, weight, bias, prior_precision),
    )


def laplace_posterior(
    weight: Tensor, bias: Tensor, curvature: Curvature, prior_precision: float
) -> LastLayerPosterior:
    """N(θ, 1 / (H + λ)), entry by entry: Warburg et al. 2023, Eq. 65.

    Parameters
    ----------
    weight, bias : (D, F), (D,); the mean.
    curvature : non-negative, data scale included.
    prior_precision : λ > 0.
    """
    return LastLayerPosterior(
        weight,
        bias,
        1 / (curvature.weight + prior_precision),
        1 / (curvature.bias + prior_precision),
    )


def _curvature(
    features: FeatureBlocks,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    approximation: Approximation,
    split: Split,
    margin: float,
    scaling: TargetScaling,
    generator: torch.Generator | None,
    plan: MinibatchPlan | None,
) -> Curvature:
    """Curvature over all pairs, exact or estimated, cut off at zero once it is summed."""
    targets = anchor_targets(labels, scaling, weight.dtype)
    layer = (features, labels, weight, bias, targets)
    if approximation == "fixed":
        curvature = fixed_curvature(*layer, split=split, margin=margin)
    elif approximation == "positives":
        curvature = positives_curvature(*layer, split=split)
    elif generator is not None:
        curvature = estimated_curvature(
            *layer, plan or MinibatchPlan(), margin=margin, split=split, generator=generator
        )
    else:
        raise ValueError("`full` is estimated from random minibatches: give a generator")
    return curvature.rectified()
