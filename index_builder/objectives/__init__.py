"""Training objectives (losses); `index_builder.methods` chooses one.

::

    objective            the interface, objectives without parameters, the pairs of a batch
    registry             objectives by the name in `training.objective`
    contrastive          the contrastive loss, and the margin loss
    triplets             mining of useful triplets, and the triplet loss
    similarities         InfoNCE, SupCon, SNCA, smooth AP, SimCLR, MCInfoNCE and others
    classification       cross-entropy, center loss, SPCE
    proxies              ProxyNCA++, ProxyAnchor
    sphere_proxies       proxies as distributions on the sphere
    von_mises_fisher     the von Mises-Fisher distribution with gradients

Objectives that train a posterior::

    online_laplace       the contrastive loss with an online Laplace posterior
    bayesian_triplet     the Bayesian triplet loss, with a variance head
    uncertainty_module   probabilistic face embeddings, hedged instance embeddings
    loss_prediction      prediction of an image's retrieval loss
"""

from index_builder.objectives.bayesian_triplet import BayesianTripletLoss
from index_builder.objectives.contrastive import ContrastiveLoss, contrastive_loss
from index_builder.objectives.loss_prediction import LossPrediction
from index_builder.objectives.objective import Objective
from index_builder.objectives.online_laplace import OnlineLaplaceLoss
from index_builder.objectives.registry import objective_of
from index_builder.objectives.uncertainty_module import HedgedInstanceLoss, MutualLikelihoodLoss

__all__ = [
    "BayesianTripletLoss",
    "ContrastiveLoss",
    "HedgedInstanceLoss",
    "LossPrediction",
    "MutualLikelihoodLoss",
    "Objective",
    "OnlineLaplaceLoss",
    "contrastive_loss",
    "objective_of",
]
