"""Posteriors: what a trained network does not know about its last layer.

The map, from what is asked to what answers it:

=====================  ==========================================================================
`laplace`              `fit_laplace`: a trained layer and its features → `LaplaceFit`
`last_layer`           `LastLayerPosterior`: closed-form prediction, sampling, safetensors
`variance_head`        `VarianceHeadPosterior`: the variance read off the features instead
`stored`               either of the two, from its file
`online`               `OnlineLaplace`, `online_step`: the same while training
`prior`                the prior precision by the marginal likelihood
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

from index_builder.posteriors.curvature import Approximation, Curvature, Split
from index_builder.posteriors.feature_blocks import FeatureBlocks
from index_builder.posteriors.laplace import LaplaceFit, fit_laplace, laplace_of_curvature
from index_builder.posteriors.last_layer import LastLayerPosterior
from index_builder.posteriors.minibatches import MinibatchPlan, minibatch_curvature, minibatch_loss
from index_builder.posteriors.online import OnlineLaplace, online_step
from index_builder.posteriors.pairs import pair_curvature
from index_builder.posteriors.stored import Posterior, load_posterior
from index_builder.posteriors.targets import TargetScaling
from index_builder.posteriors.validation import nearest_neighbour_criterion, select_by_validation
from index_builder.posteriors.variance_head import VarianceHead, VarianceHeadPosterior

__all__ = [
    "Approximation",
    "Curvature",
    "FeatureBlocks",
    "LaplaceFit",
    "LastLayerPosterior",
    "MinibatchPlan",
    "OnlineLaplace",
    "Posterior",
    "Split",
    "TargetScaling",
    "VarianceHead",
    "VarianceHeadPosterior",
    "fit_laplace",
    "laplace_of_curvature",
    "load_posterior",
    "minibatch_curvature",
    "minibatch_loss",
    "nearest_neighbour_criterion",
    "online_step",
    "pair_curvature",
    "select_by_validation",
]
