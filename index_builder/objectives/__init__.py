"""Objectives: what training minimises; `index_builder.methods` chooses.

::

    objective            the interface
    registry             `training.objective` of a configuration → its objective
    pairs                pairs of a batch, and their distances
    of_embeddings        objectives that learn nothing beside the encoder
    contrastive          the contrastive loss
    triplet_loss         the triplet loss
    margin               the margin loss, its negatives drawn evenly over distances
    similarities         N-pairs, InfoNCE, soft neighbours, SupCon, SNCA
    ranking              multi-similarity, FastAP, smooth AP
    classification       cross-entropy, center loss, SPCE
    proxies              ProxyNCA++, ProxyAnchor
    sphere_proxies       proxies that are distributions on the sphere
    view_loss            SimCLR, MCInfoNCE: no labels
    von_mises_fisher     the von Mises-Fisher distribution with gradients

Those that a posterior brings with it::

    online_laplace       the contrastive loss with a posterior along the way
    bayesian_triplet     distributions by a variance head
    triplets             triplets worth training on
    mutual_likelihood    probabilistic face embeddings
    hedged_instance      hedged instance embeddings
    loss_prediction      how badly an image will be found
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
