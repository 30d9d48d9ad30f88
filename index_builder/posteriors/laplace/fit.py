"""The post-hoc Laplace posterior of a trained last layer, and its prior precision.

The prior precision is the inverse prior variance of the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from index_builder.arrays import Array, FeatureBlocks, beside, constant
from index_builder.posteriors.laplace.all_pairs import (
    TrainedLayer,
    fixed_curvature,
    fixed_traces,
    positives_curvature,
    positives_traces,
)
from index_builder.posteriors.laplace.curvature import (
    AnchorTargets,
    Approximation,
    Curvature,
    Split,
    Structure,
    TargetScaling,
    anchor_targets,
)
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature, PartialTraces, PriorScale
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from model_store.errors import CalibrationError

if TYPE_CHECKING:
    from index_builder.posteriors.laplace.minibatches import MinibatchPlan


FeltCurvature = Curvature | KroneckerCurvature
"""A non-negative curvature; together with a prior, it gives the precision of the posterior."""

PRIOR_FRACTION = {"kronecker": 3.0, "diagonal": 0.01}
"""Default ratio of the prior precision to the mean curvature, see `relative_prior_precision`. With
Kronecker factors, the curvature of a few feature directions is many times the mean curvature. With
a diagonal curvature, the weights have similar curvatures."""

_BISECTIONS = 60
"""Number of bisections in log λ, enough for float64 precision from any start interval."""

_NO_CURVATURE = (
    "The curvature is zero everywhere, so the data say nothing about the prior; this is so when "
    "every negative is inside the margin. Lower the margin, take approximation = 'positives', or "
    "give a prior precision."
)

_DECADES = 4
"""The evidence is recorded for this number of decades below and above the chosen prior
precision."""


@dataclass(frozen=True, slots=True)
class PriorSearch:
    """The candidates of a search, and the value of each candidate.

    Attributes
    ----------
    candidates : prior precisions, or temperatures.
    values : value of the criterion for each candidate; larger is better.
    """

    candidates: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The first candidate with the largest value.

        If the spread of the posterior does not affect the validation results, all candidates have
        the same value. Candidates are therefore in order of preference, the widest posterior first.
        """
        return self.candidates[self.values.index(max(self.values))]

    @property
    def is_identified(self) -> bool:
        """True if the best candidate is neither the smallest nor the largest.

        A maximum at an end of the grid identifies no candidate: a value outside the grid may be
        better, or all values may be equal.
        """
        return min(self.candidates) < self.best < max(self.candidates)

    @property
    def temperature(self) -> float:
        """The best temperature; 1.0 if the criterion does not identify a best temperature."""
        return self.best if self.is_identified else 1.0


def relative_prior_precision(curvature: FeltCurvature, fraction: float) -> float:
    """Return ``fraction`` times the mean curvature as the prior precision.

    The posterior is wide in feature directions that the training data do not determine. An outlier
    has large features in these directions, which makes the outlier detectable. If the prior
    precision is far above the curvature, the posterior has the same width in all directions; the
    uncertainty is then only the norm of the features. If the prior precision is far below the
    curvature, the posterior is also narrow in directions that only noise determines. Between these
    two extremes, the choice of the prior precision hardly matters. The temperature sets the overall
    width of the posterior.

    Raises
    ------
    CalibrationError : the curvature is zero.
    """
    if not curvature.mean > 0:
        raise CalibrationError(_NO_CURVATURE)
    return fraction * curvature.mean


def log_marginal_likelihood(
    curvature: FeltCurvature, weight: Array, bias: Array, prior_precision: float
) -> float:
    """Return the Laplace evidence of a prior precision λ, without the constant data term.

    For a diagonal curvature H, log p(D | λ) = -L(θ) - ½ λ ‖θ‖² + ½ Σ_k log λ - ½ Σ_k log(H_k + λ)
    (MacKay 1992, "Bayesian interpolation"). L is the negative log-likelihood; the constant -L(θ) is
    left out. A Kronecker-factored curvature computes these sums and ‖θ‖² from its eigenvalues and
    scales.

    Parameters
    ----------
    curvature : non-negative curvature of the sum over the data, with the data scale.
    weight, bias : (D, F), (D,), the parameters θ; the prior is centred at zero.
    prior_precision : λ > 0.
    """
    penalty = prior_precision * curvature.squared_norm(weight, bias)
    return -0.5 * (penalty + curvature.log_determinant(prior_precision))


def tune_prior_precision(curvature: FeltCurvature, weight: Array, bias: Array) -> float:
    """Find the prior precision with the largest evidence.

    The derivative with respect to log λ is ½ (γ - λ ‖θ‖²). Here γ is the number of well-determined
    parameters, which is Σ_k H_k / (H_k + λ) for a diagonal curvature (MacKay 1992). With increasing
    λ, γ falls and λ ‖θ‖² rises. There is therefore one root, which bisection in log λ finds.

    Raises
    ------
    CalibrationError : the curvature or the weights are zero, so the evidence has no maximum.
    """
    squared_norm = curvature.squared_norm(weight, bias)
    if not curvature.largest > 0 or not squared_norm > 0:
        raise CalibrationError(_NO_CURVATURE)
    # γ is at least ½ while λ ≤ max H, and never more than the number of parameters.
    lower = math.log(min(curvature.largest, 0.5 / squared_norm))
    upper = math.log(curvature.n_parameters / squared_norm)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        candidate = math.exp(middle)
        if curvature.n_determined(candidate) > candidate * squared_norm:
            lower = middle
        else:
            upper = middle
    return math.exp(0.5 * (lower + upper))


def evidence_curve(
    curvature: FeltCurvature, weight: Array, bias: Array, prior_precision: float
) -> PriorSearch:
    """Return the log evidence of precisions around ``prior_precision``, two for each decade."""
    factors = np.logspace(-_DECADES, _DECADES, 4 * _DECADES + 1)
    candidates = tuple(float(prior_precision * factor) for factor in factors)
    values = (log_marginal_likelihood(curvature, weight, bias, value) for value in candidates)
    return PriorSearch(candidates, tuple(values))


PriorChoice = Literal["caller", "curvature", "marginal_likelihood", "validation"]
"""The criterion that chose a prior precision."""

LaplacePosterior = LastLayerPosterior | KroneckerPosterior


@dataclass(frozen=True, slots=True)
class LaplaceFit:
    """A fitted posterior, and its prior and temperature with the criteria that chose them.

    Attributes
    ----------
    posterior : N(θ, temperature / (data_scale H + prior_precision)).
    curvature : H ≥ 0 for targets that sum to one; without the data scale.
    prior_precision : inverse prior variance of each weight.
    prior_chosen_by : criterion that chose the prior precision.
    prior_search : candidate priors and their values. If validation chose the prior, the values are
        validation scores; otherwise, the values are the evidence.
    data_scale : factor that converts H from a mean to a sum over the data.
    log_marginal_likelihood : evidence of the prior precision, without the constant term of the
        data.
    temperature : factor on the variances; a temperature below 1 makes the posterior narrower.
    temperature_search : the candidate temperatures and the criterion's value for each; None unless
        validation chose the temperature.
    """

    posterior: LaplacePosterior
    curvature: FeltCurvature
    prior_precision: float
    prior_chosen_by: PriorChoice
    prior_search: PriorSearch
    data_scale: float
    log_marginal_likelihood: float
    temperature: float = 1.0
    temperature_search: PriorSearch | None = None

    def tempered(self, temperature: float) -> LaplaceFit:
        """Return this fit at another temperature; curvature and prior do not change."""
        posterior = self.posterior.tempered(temperature / self.temperature)
        return replace(self, posterior=posterior, temperature=temperature)

    def tempered_by(self, search: PriorSearch) -> LaplaceFit:
        """Return the fit at the temperature that validation chose."""
        return replace(self.tempered(search.temperature), temperature_search=search)

    def with_prior(self, fraction: float, search: PriorSearch) -> LaplaceFit:
        """Return this fit with the prior that validation chose; the curvature does not change.

        Parameters
        ----------
        fraction : the prior precision divided by the mean curvature.
        search : the candidate fractions and their validation results.
        """
        curvature = self.curvature * self.data_scale
        layer = self.posterior.weight_mean, self.posterior.bias_mean
        chosen = fraction * curvature.mean
        return replace(
            self,
            posterior=curvature.posterior(*layer, chosen).tempered(self.temperature),
            prior_precision=chosen,
            prior_chosen_by="validation",
            prior_search=PriorSearch(
                tuple(value * curvature.mean for value in search.candidates), search.values
            ),
            log_marginal_likelihood=log_marginal_likelihood(curvature, *layer, chosen),
        )

    @property
    def structure(self) -> Structure:
        """The structure of the curvature."""
        return "diagonal" if isinstance(self.curvature, Curvature) else "kronecker"

    @property
    def prior_share(self) -> float:
        """The prior's share of the total precision of all weights."""
        return (self.curvature * self.data_scale).prior_share(self.prior_precision)

    def summary(self) -> dict[str, float]:
        """Mean and largest value of H, and the share of H that is zero."""
        return {
            "mean": self.curvature.mean,
            "largest": self.curvature.largest,
            "share_zero": self.curvature.share_zero,
        }


def fit_laplace(
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    *,
    structure: Structure = "kronecker",
    approximation: Approximation = "fixed",
    split: Split = "euclidean",
    margin: float,
    scaling: TargetScaling = "per_anchor",
    prior_precision: float | None = None,
    prior_chosen_by: Literal["curvature", "marginal_likelihood"] = "curvature",
    prior_scale: PriorScale = "features",
    data_scale: float | None = None,
    seed: int | None = None,
    plan: MinibatchPlan | None = None,
) -> LaplaceFit:
    """Fit the Laplace posterior of a trained last layer h = W φ + b.

    This is Warburg et al. 2023, Eq. 62-65, corrected. Targets are O(1), so the curvature H of the
    loss does not grow with the number of images. H is therefore multiplied by a data scale before
    the prior is added: covariance = (data_scale H + prior_precision)⁻¹.

    Parameters
    ----------
    features : called once for each pass over the data; yields blocks (n, F) in row order.
    labels : (N,) int64.
    weight, bias : (D, F), (D,); the trained layer.
    structure : two Kronecker factors (see `kronecker`), or the papers' diagonal.
    approximation, split : see `Approximation` and `Split`.
    margin : margin of the contrastive loss, a distance on the unit sphere.
    scaling : weighting of the pairs, see `TargetScaling`.
    prior_precision : λ; if None, ``prior_chosen_by`` chooses it.
    prior_chosen_by : how to choose the prior precision if ``prior_precision`` is None: relative to
        the mean curvature (`relative_prior_precision`), or by the largest marginal likelihood.
    prior_scale : see `PriorScale`; used only with Kronecker factors.
    data_scale : factor on H. If None, the number of images N is the factor, so that each image
        counts as one observation.
    seed : seed of the minibatches for `full`, whose sum over N² pairs does not factorise. The
        minibatches give an unbiased estimate; `fixed` and `positives` are computed exactly, without
        minibatches. Features, labels and layer must then be tensors or arrays of NumPy on a CPU.
    plan : how the minibatches are drawn; if None, the default plan is used.

    Raises
    ------
    DatasetError : there is no positive pair.
    CalibrationError : no prior precision can be chosen, because the curvature is zero.
    """
    weight, bias, labels = constant(weight), constant(bias), beside(labels, weight)
    layer = TrainedLayer(features, labels, weight, bias)
    curvature: Curvature | PartialTraces
    if approximation == "full":
        from index_builder.posteriors.laplace import minibatches  # noqa: PLC0415 - it needs torch

        if seed is None:
            raise ValueError("`full` is estimated from random minibatches: give a seed")
        plan = plan or minibatches.MinibatchPlan()
        curvature = minibatches.estimated_curvature(
            layer, structure, scaling, plan, margin=margin, split=split, seed=seed
        )
    else:
        curvature = _exact(
            layer,
            anchor_targets(labels, scaling, weight.dtype),
            structure=structure,
            approximation=approximation,
            split=split,
            margin=margin,
        )
    return laplace_of_curvature(
        weight,
        bias,
        curvature,
        data_scale=float(len(labels)) if data_scale is None else data_scale,
        prior_precision=prior_precision,
        prior_chosen_by=prior_chosen_by,
        prior_scale=prior_scale,
    )


def laplace_of_curvature(
    weight: Array,
    bias: Array,
    curvature: Curvature | PartialTraces,
    *,
    data_scale: float,
    prior_precision: float | None = None,
    prior_chosen_by: Literal["curvature", "marginal_likelihood"] = "curvature",
    prior_scale: PriorScale = "features",
) -> LaplaceFit:
    """Return the posterior of a trained layer with a known curvature.

    After online training, for example, the curvature is known.

    Parameters
    ----------
    weight, bias : (D, F), (D,); the trained layer.
    curvature : H, without the data scale; it is clipped at zero.
    data_scale : factor on H.
    prior_precision, prior_chosen_by, prior_scale : as in `fit_laplace`.

    Raises
    ------
    CalibrationError : no prior precision can be chosen, because the curvature is zero.
    """
    felt: FeltCurvature
    if isinstance(curvature, PartialTraces):
        felt = curvature.rectified(prior_scale)
    else:
        felt = curvature.rectified()
    scaled = felt * data_scale
    chosen_by: PriorChoice = prior_chosen_by if prior_precision is None else "caller"
    if chosen_by == "marginal_likelihood":
        prior_precision = tune_prior_precision(scaled, weight, bias)
    elif prior_precision is None:
        structure = "diagonal" if isinstance(felt, Curvature) else "kronecker"
        prior_precision = relative_prior_precision(scaled, PRIOR_FRACTION[structure])
    return LaplaceFit(
        posterior=scaled.posterior(weight, bias, prior_precision),
        curvature=felt,
        prior_precision=prior_precision,
        prior_chosen_by=chosen_by,
        prior_search=evidence_curve(scaled, weight, bias, prior_precision),
        data_scale=data_scale,
        log_marginal_likelihood=log_marginal_likelihood(scaled, weight, bias, prior_precision),
    )


def _exact(
    layer: TrainedLayer,
    targets: AnchorTargets,
    *,
    structure: Structure,
    approximation: Literal["positives", "fixed"],
    split: Split,
    margin: float,
) -> Curvature | PartialTraces:
    """Return the curvature over all pairs."""
    if structure == "diagonal":
        if approximation == "fixed":
            return fixed_curvature(layer, targets, split=split, margin=margin)
        return positives_curvature(layer, targets, split=split)
    basis = layer.basis()
    if approximation == "fixed":
        return fixed_traces(layer, targets, split=split, margin=margin, basis=basis)
    return positives_traces(layer, targets, split=split, basis=basis)
