"""Posteriors: what a trained network does not know about its last layer.

The map, from what is asked to what answers it:

=====================  ==========================================================================
`laplace`              `fit_laplace`: a trained layer and its features → `LaplaceFit`
`kronecker`            the Kronecker-factored curvature: `PartialTraces`, `KroneckerCurvature`
`kronecker_pairs`      its traces over all N² pairs, and over given pairs
`kronecker_posterior`  `KroneckerPosterior`: closed-form prediction, sampling, safetensors
`last_layer`           `LastLayerPosterior`: the same for a diagonal covariance
`variance_head`        `VarianceHeadPosterior`: the variance read off the features instead
`uncertainty_module`   `UncertaintyModulePosterior`: the same of PFE and HIB
`point`                `PointPosterior`: no posterior, the deterministic baseline
`dropout`              `DropoutPosterior`: Monte Carlo dropout, the last layer's in closed form
`ensemble`             `fit_ensemble`: encoders trained apart, brought into one space
`stored`               any of them, from its file
`online`               `OnlineLaplace`, `online_step`: the same while training
`prior`                the prior precision: relative to the curvature, or the likeliest
`validation`           the prior precision by what it does to held-out queries
`votes`                a criterion for that: how well sampled neighbours vote
`curvature`            which of the six curvatures; the diagonal that is kept
`targets`              what each pair of images weighs
`all_pairs`            the curvature over all N² pairs: `fixed` and `positives`, exact
`minibatches`          loss and curvature of a minibatch; `full`, estimated without bias
`pairs`                the curvature of given pairs
`feature_blocks`       features that need not fit into memory
=====================  ==========================================================================
"""

from index_builder.networks.feature_blocks import FeatureBlocks
from index_builder.posteriors.dropout import DropoutPosterior
from index_builder.posteriors.ensemble import EnsembleFit, EnsemblePosterior, fit_ensemble
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split, Structure
from index_builder.posteriors.laplace.fit import LaplaceFit, fit_laplace, laplace_of_curvature
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature, PartialTraces, PriorScale
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.laplace.minibatches import (
    MinibatchPlan,
    minibatch_curvature,
    minibatch_loss,
)
from index_builder.posteriors.laplace.online import OnlineLaplace, online_step
from index_builder.posteriors.laplace.pairs import pair_curvature
from index_builder.posteriors.laplace.targets import TargetScaling
from index_builder.posteriors.laplace.validation import (
    nearest_neighbour_criterion,
    select_by_validation,
    temper_by_validation,
)
from index_builder.posteriors.point import PointPosterior
from index_builder.posteriors.stored import Posterior, load_ensemble, load_posterior
from index_builder.posteriors.uncertainty_module import (
    UncertaintyModule,
    UncertaintyModulePosterior,
)
from index_builder.posteriors.variance_head import VarianceHead, VarianceHeadPosterior

__all__ = [
    "Approximation",
    "Curvature",
    "DropoutPosterior",
    "EnsembleFit",
    "EnsemblePosterior",
    "FeatureBlocks",
    "KroneckerCurvature",
    "KroneckerPosterior",
    "LaplaceFit",
    "LastLayerPosterior",
    "MinibatchPlan",
    "OnlineLaplace",
    "PartialTraces",
    "PointPosterior",
    "Posterior",
    "PriorScale",
    "Split",
    "Structure",
    "TargetScaling",
    "UncertaintyModule",
    "UncertaintyModulePosterior",
    "VarianceHead",
    "VarianceHeadPosterior",
    "fit_ensemble",
    "fit_laplace",
    "laplace_of_curvature",
    "load_ensemble",
    "load_posterior",
    "minibatch_curvature",
    "minibatch_loss",
    "nearest_neighbour_criterion",
    "online_step",
    "pair_curvature",
    "select_by_validation",
    "temper_by_validation",
]
