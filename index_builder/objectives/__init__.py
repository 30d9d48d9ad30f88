"""Training objectives (losses); `index_builder.methods` chooses one.

::

    objective            the interface
    registry             objectives by the name in `training.objective`
    pairs                positive and negative pairs of a batch, and their distances
    of_embeddings        objectives without parameters
    contrastive          the contrastive loss
    triplet_loss         the triplet loss
    margin               the margin loss with distance-weighted sampling
    similarities         N-pairs, InfoNCE, soft neighbours, SupCon, SNCA
    ranking              multi-similarity, FastAP, smooth AP
    classification       cross-entropy, center loss, SPCE
    proxies              ProxyNCA++, ProxyAnchor
    sphere_proxies       proxies as distributions on the sphere
    view_loss            SimCLR, MCInfoNCE: without labels
    von_mises_fisher     the von Mises-Fisher distribution with gradients

Objectives that train a posterior::

    online_laplace       the contrastive loss with an online Laplace posterior
    bayesian_triplet     the Bayesian triplet loss, with a variance head
    triplets             mining of useful triplets
    mutual_likelihood    probabilistic face embeddings
    hedged_instance      hedged instance embeddings
    loss_prediction      prediction of an image's retrieval loss
"""

from index_builder.objectives.bayesian_triplet import BayesianTripletLoss
from index_builder.objectives.contrastive import ContrastiveLoss, contrastive_loss
from index_builder.objectives.hedged_instance import HedgedInstanceLoss
from index_builder.objectives.loss_prediction import LossPrediction
from index_builder.objectives.mutual_likelihood import MutualLikelihoodLoss
from index_builder.objectives.objective import Objective
from index_builder.objectives.online_laplace import OnlineLaplaceLoss
from index_builder.objectives.registry import objective_of

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
