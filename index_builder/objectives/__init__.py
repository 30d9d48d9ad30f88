"""Objectives: what training minimises, for each posterior."""

from index_builder.objectives.bayesian_triplet import BayesianTripletLoss
from index_builder.objectives.build import build_objective, initial_module
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
    "build_objective",
    "contrastive_loss",
    "initial_module",
]
