"""Objectives: what training minimises; `index_builder.methods` chooses.

::

    objective            the interface
    contrastive          the contrastive loss
    online_laplace       the same with a posterior along the way
    bayesian_triplet     distributions by a variance head
    triplets             triplets worth training on
    mutual_likelihood    probabilistic face embeddings
    hedged_instance      hedged instance embeddings
    von_mises_fisher     the von Mises-Fisher distribution with gradients
"""

from index_builder.objectives.bayesian_triplet import BayesianTripletLoss
from index_builder.objectives.contrastive import ContrastiveLoss, contrastive_loss
from index_builder.objectives.hedged_instance import HedgedInstanceLoss
from index_builder.objectives.mutual_likelihood import MutualLikelihoodLoss
from index_builder.objectives.objective import Objective
from index_builder.objectives.online_laplace import OnlineLaplaceLoss

__all__ = [
    "BayesianTripletLoss",
    "ContrastiveLoss",
    "HedgedInstanceLoss",
    "MutualLikelihoodLoss",
    "Objective",
    "OnlineLaplaceLoss",
    "contrastive_loss",
]
