"""Posteriors: the distribution of an embedding, given a trained network and an image.

The modules:

=====================  ==========================================================================
`laplace`              a Laplace posterior of the last layer: curvature, prior, prediction
`variance_head`        `VarianceHeadPosterior`: a head predicts the variance from the features
`uncertainty_module`   `UncertaintyModulePosterior`: the variance network of PFE and HIB
`embedding_norm`       `EmbeddingNormPosterior`: the embedding's norm is its concentration
`predicted_loss`       `PredictedLossPosterior`: a predicted loss scales the variance
`point`                `PointPosterior`: no posterior, the deterministic baseline
`dropout`              `DropoutPosterior`: Monte Carlo dropout, closed form in the last layer
`ensemble`             `fit_ensemble`: independently trained encoders, aligned to one space
`stored`               `load_posterior`: reads any posterior from its file
`encoders`             modules for export: images to mean, variance and features
=====================  ==========================================================================
"""

from index_builder.networks.feature_blocks import FeatureBlocks
from index_builder.posteriors.dropout import DropoutPosterior
from index_builder.posteriors.embedding_norm import EmbeddingNormPosterior
from index_builder.posteriors.encoders import (
    DropoutEncoder,
    EnsembleEncoder,
    ProbabilisticEncoder,
)
from index_builder.posteriors.ensemble import EnsemblePosterior, fit_ensemble
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split, Structure
from index_builder.posteriors.laplace.fit import (
    LaplaceFit,
    LaplacePosterior,
    fit_laplace,
    laplace_of_curvature,
)
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature, PartialTraces, PriorScale
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.laplace.minibatches import (
    MinibatchPlan,
    minibatch_curvature,
    minibatch_loss,
)
from index_builder.posteriors.laplace.online import OnlineCurvature, online_step
from index_builder.posteriors.laplace.pairs import pair_curvature
from index_builder.posteriors.laplace.targets import TargetScaling
from index_builder.posteriors.laplace.validation import temper_by_validation
from index_builder.posteriors.point import PointPosterior
from index_builder.posteriors.predicted_loss import LossHead, PredictedLossPosterior
from index_builder.posteriors.stored import Posterior, load_posterior
from index_builder.posteriors.uncertainty_module import (
    UncertaintyModule,
    UncertaintyModulePosterior,
)
from index_builder.posteriors.variance_head import VarianceHead, VarianceHeadPosterior

__all__ = [
    "Approximation",
    "Curvature",
    "DropoutEncoder",
    "DropoutPosterior",
    "EmbeddingNormPosterior",
    "EnsembleEncoder",
    "EnsemblePosterior",
    "FeatureBlocks",
    "KroneckerCurvature",
    "KroneckerPosterior",
    "LaplaceFit",
    "LaplacePosterior",
    "LastLayerPosterior",
    "LossHead",
    "MinibatchPlan",
    "OnlineCurvature",
    "PartialTraces",
    "PointPosterior",
    "Posterior",
    "PredictedLossPosterior",
    "PriorScale",
    "ProbabilisticEncoder",
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
    "load_posterior",
    "minibatch_curvature",
    "minibatch_loss",
    "online_step",
    "pair_curvature",
    "temper_by_validation",
]
