"""The post-hoc Laplace posterior of a trained last layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from index_builder.arrays import Array, FeatureBlocks, beside, constant
from index_builder.posteriors.laplace.all_pairs import (
    feature_basis,
    fixed_curvature,
    fixed_traces,
    positives_curvature,
    positives_traces,
)
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split, Structure
from index_builder.posteriors.laplace.kronecker import PartialTraces, PriorScale
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.laplace.prior import (
    PRIOR_FRACTION,
    FeltCurvature,
    PriorSearch,
    evidence_curve,
    log_marginal_likelihood,
    relative_prior_precision,
    tune_prior_precision,
)
from index_builder.posteriors.laplace.targets import AnchorTargets, TargetScaling, anchor_targets

if TYPE_CHECKING:
    from index_builder.posteriors.laplace.minibatches import MinibatchPlan

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
    layer = (features, labels, weight, bias)
    curvature: Curvature | PartialTraces
    if approximation == "full":
        from index_builder.posteriors.laplace import minibatches  # noqa: PLC0415 - it needs torch

        if seed is None:
            raise ValueError("`full` is estimated from random minibatches: give a seed")
        plan = plan or minibatches.MinibatchPlan()
        curvature = minibatches.estimated_curvature(
            *layer, structure, scaling, plan, margin=margin, split=split, seed=seed
        )
    else:
        curvature = _exact(
            *layer,
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
    features: FeatureBlocks,
    labels: Array,
    weight: Array,
    bias: Array,
    targets: AnchorTargets,
    *,
    structure: Structure,
    approximation: Literal["positives", "fixed"],
    split: Split,
    margin: float,
) -> Curvature | PartialTraces:
    """Return the curvature over all pairs."""
    layer = (features, labels, weight, bias, targets)
    if structure == "diagonal":
        if approximation == "fixed":
            return fixed_curvature(*layer, split=split, margin=margin)
        return positives_curvature(*layer, split=split)
    basis = feature_basis(features, weight, bias, len(labels))
    if approximation == "fixed":
        return fixed_traces(*layer, split=split, margin=margin, basis=basis)
    return positives_traces(*layer, split=split, basis=basis)
