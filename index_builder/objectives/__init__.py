"""Training objectives (losses); `index_builder.methods` chooses one.

::

    objective            the interface, objectives without parameters, the pairs of a batch
    registry             objectives by the name in `training.objective`
    distances            contrastive, margin, triplet and Bayesian triplet loss
    similarities         InfoNCE, SupCon, SNCA, smooth AP, SimCLR, MCInfoNCE and others
    proxies              cross-entropy, center loss, SPCE; proxies as points or distributions
    von_mises_fisher     the von Mises-Fisher distribution with gradients

Objectives that train a posterior::

    online_laplace       the contrastive loss with an online Laplace posterior
    learned_variances    a second head: predicted loss, PFE, HIB
"""

from index_builder.objectives.distances import (
    BayesianTripletLoss,
    ContrastiveLoss,
    contrastive_loss,
)
from index_builder.objectives.learned_variances import (
    HedgedInstanceLoss,
    LossPrediction,
    MutualLikelihoodLoss,
)
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
