"""From a configuration to the objective it asks for."""

from __future__ import annotations

import torch
from torch import Tensor

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.posterior import (
    BayesianTripletConfig,
    HedgedInstanceConfig,
    OnlineLaplaceConfig,
)
from index_builder.networks import MetricEncoder
from index_builder.networks.initialisation import drawn_from
from index_builder.objectives.bayesian_triplet import BayesianTripletLoss
from index_builder.objectives.contrastive import ContrastiveLoss
from index_builder.objectives.hedged_instance import HedgedInstanceLoss
from index_builder.objectives.objective import Objective
from index_builder.objectives.online_laplace import OnlineLaplaceLoss
from index_builder.posteriors import MinibatchPlan, UncertaintyModule, VarianceHead


def build_objective(
    config: BuildConfig, encoder: MetricEncoder, labels: Tensor, generator: torch.Generator
) -> Objective:
    """The objective of ``config.posterior``, for training ``encoder``.

    Parameters
    ----------
    labels : (N,) int64 codes of the training images, from 0 without gaps.
    generator : draws what the objective draws.
    """
    asked = config.posterior
    if isinstance(asked, BayesianTripletConfig):
        prior_variance = asked.prior_variance or 1 / config.network.embedding_dim
        head = VarianceHead(
            encoder.trunk.n_features,
            config.network.embedding_dim,
            isotropic=asked.variance == "isotropic",
            initial_variance=prior_variance,
        )
        return BayesianTripletLoss(
            head,
            prior=asked.prior,
            prior_variance=prior_variance,
            kl_weight=asked.kl_weight,
            margin=asked.margin,
            mining=asked.mining,
            normalised=asked.normalised,
            n_triplets=asked.n_triplets,
            generator=generator,
        )
    if isinstance(asked, OnlineLaplaceConfig):
        return OnlineLaplaceLoss(
            encoder.last_layer,
            labels,
            MinibatchPlan(
                n_labels=config.training.labels_per_batch,
                n_images=config.training.images_per_label,
            ),
            margin=config.training.margin,
            structure=asked.structure,
            approximation=asked.approximation,
            split=asked.split,
            scaling=asked.scaling,
            memory_factor=asked.memory_factor,
            prior_precision=asked.training_prior_precision,
            initial_precision=asked.initial_precision,
            n_samples=asked.n_samples,
            generator=generator,
        )
    if isinstance(asked, HedgedInstanceConfig):
        return HedgedInstanceLoss(
            initial_module(encoder, generator),
            kl_weight=asked.kl_weight,
            n_samples=asked.n_samples,
            generator=generator,
        )
    return ContrastiveLoss(config.training.margin)


def initial_module(encoder: MetricEncoder, generator: torch.Generator) -> UncertaintyModule:
    """An untrained uncertainty module for ``encoder``, drawn from ``generator``.

    Its variances add up to ½ at first, as Shi & Jain's e⁻⁷ in each of 512 dimensions do.
    """
    dim = encoder.last_layer.out_features
    with drawn_from(generator):
        return UncertaintyModule(encoder.trunk.n_features, dim, initial_variance=0.5 / dim)
