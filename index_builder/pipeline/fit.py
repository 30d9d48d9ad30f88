"""From a trained encoder to the posterior that its configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.posterior import (
    BayesianTripletConfig,
    DeterministicConfig,
    FaceEmbeddingConfig,
    HedgedInstanceConfig,
    LaplaceConfig,
    MonteCarloDropoutConfig,
    OnlineLaplaceConfig,
)
from index_builder.datasets import LabelledImages, Splits
from index_builder.networks import MetricEncoder
from index_builder.networks.dropout import dropout_masks
from index_builder.networks.features import all_features, repeatable_blocks
from index_builder.networks.small_cnn import SmallCNN
from index_builder.objectives import (
    HedgedInstanceLoss,
    MutualLikelihoodLoss,
    OnlineLaplaceLoss,
    initial_module,
)
from index_builder.posteriors import (
    Approximation,
    DropoutPosterior,
    EnsemblePosterior,
    LaplaceFit,
    PointPosterior,
    Posterior,
    UncertaintyModule,
    UncertaintyModulePosterior,
    VarianceHeadPosterior,
    fit_ensemble,
    fit_laplace,
    laplace_of_curvature,
)
from index_builder.posteriors.laplace.fit import LaplacePosterior
from index_builder.posteriors.laplace.validation import (
    Criterion,
    norm_correlation,
    select_by_validation,
    temper_by_validation,
)
from index_builder.posteriors.laplace.votes import vote_log_likelihood
from index_builder.posteriors.variance_head import UNIT_MEAN
from index_builder.progress import console
from index_builder.training.loop import train
from model_store.errors import CalibrationError

PRIOR_FACTORS = np.logspace(-2, 6, 33)
"""Prior precisions that validation tries, over the likeliest."""

TEMPERATURES = np.logspace(-9, 3, 25)
"""Temperatures that validation tries: at the ends samples never, and always, leave the mean."""

NOTHING_BUT_NORM = 0.95
"""Correlation from which the uncertainty is no more than the length of the features."""

N_VALIDATION = 1_000
"""Validation images that vote on prior or temperature: the optimum is flat, more hardly move it."""

MIN_CORRELATED = 30
"""Validation images that a correlation can be read off."""

N_VOTERS = 10_000
"""Training images among which their neighbours are looked for, likewise."""

N_ALIGNING = 10_000
"""Training images that members of an ensemble are turned by: many times the D that it takes."""

N_PASSES = 20
"""Passes of Monte Carlo dropout within the trunk: the variance is then known to a third of
itself."""


def fit_posterior(
    config: BuildConfig, encoder: MetricEncoder, splits: Splits, learned: Mapping[str, Tensor]
) -> tuple[Posterior, dict[str, Any]]:
    """Return the posterior of ``encoder`` and a report of how it came about.

    Parameters
    ----------
    config : of an encoder alone; the posterior of an ensemble is `fit_members`'.
    encoder : trained, in evaluation mode.
    splits : the data of the build.
    learned : what the training objective left, see `Objective.learned`.

    Raises
    ------
    CalibrationError : no prior precision can be chosen.
    """
    asked = config.posterior
    if isinstance(asked, LaplaceConfig | OnlineLaplaceConfig):
        return _laplace(asked, config, encoder, splits, learned)
    if isinstance(asked, BayesianTripletConfig):
        layer = encoder.last_layer.state_dict(prefix="last_layer.")
        state = {**layer, **learned, UNIT_MEAN: torch.tensor(asked.normalised)}
        return VarianceHeadPosterior.from_state(state), {}
    if isinstance(asked, FaceEmbeddingConfig):
        return _face_embeddings(asked, config, encoder, splits.training)
    if isinstance(asked, HedgedInstanceConfig):
        module = UncertaintyModule(encoder.trunk.n_features, encoder.last_layer.out_features)
        module.load_state_dict(HedgedInstanceLoss.module_state(learned))
        return UncertaintyModulePosterior(encoder.last_layer, module, unit_mean=False), {}
    if isinstance(asked, MonteCarloDropoutConfig):
        posterior = _dropout(asked, config, encoder)
        return posterior, {"n_passes": len(posterior.masks)}
    assert isinstance(asked, DeterministicConfig)  # noqa: S101 - an ensemble is no single encoder
    return PointPosterior.of(encoder.last_layer), {}


def fit_members(
    members: Sequence[MetricEncoder], images: LabelledImages, seed: int
) -> tuple[EnsemblePosterior, dict[str, Any]]:
    """Return the posterior of an ensemble and a report of how it came about.

    Parameters
    ----------
    members : trained, in evaluation mode.
    images : that they were trained on; at most `N_ALIGNING` of them turn the members.
    seed : chooses those.
    """
    chosen = images.subset(np.random.default_rng(seed).permutation(len(images))[:N_ALIGNING])
    fitted = fit_ensemble(
        [member.last_layer for member in members],
        [all_features(member, chosen) for member in members],
    )
    before, after = zip(*fitted.agreement, strict=True)
    return fitted.posterior, {
        "n_members": len(members),
        "agreement_with_first": {"as_trained": list(before), "turned": list(after)},
    }


def _dropout(
    asked: MonteCarloDropoutConfig, config: BuildConfig, encoder: MetricEncoder
) -> DropoutPosterior:
    """Monte Carlo dropout, as the encoder was trained with it."""
    inside = config.network.dropout_inside
    return DropoutPosterior(
        encoder.last_layer.weight.detach(),
        encoder.last_layer.bias.detach(),
        torch.tensor(config.network.dropout),
        dropout_masks(
            (asked.n_passes or N_PASSES) if inside else 0,
            SmallCNN.hidden_shape if inside else (),
            config.network.dropout,
            torch.Generator().manual_seed(config.seed),
        ),
    )


def _face_embeddings(
    asked: FaceEmbeddingConfig, config: BuildConfig, encoder: MetricEncoder, images: LabelledImages
) -> tuple[Posterior, dict[str, Any]]:
    """Variances learned for a trained encoder, from the features of its training images."""
    generator = torch.Generator().manual_seed(config.seed)
    encoder.requires_grad_(requires_grad=False)
    features = all_features(encoder, images)
    module = initial_module(encoder, generator)
    history = train(
        encoder,
        MutualLikelihoodLoss(module),
        lambda rows: features[rows],
        torch.from_numpy(images.label_codes()),
        config.training.model_copy(
            update={"epochs": asked.epochs, "learning_rate": asked.learning_rate}
        ),
        generator,
    )
    posterior = UncertaintyModulePosterior(encoder.last_layer, module, unit_mean=True)
    return posterior, {"epochs": [asdict(epoch) for epoch in history]}


def _laplace(
    asked: LaplaceConfig | OnlineLaplaceConfig,
    config: BuildConfig,
    encoder: MetricEncoder,
    splits: Splits,
    learned: Mapping[str, Tensor],
) -> tuple[Posterior, dict[str, Any]]:
    """The Laplace posterior, its prior and temperature chosen as the configuration says."""
    fitted, approximation = _fit_laplace(asked, config, encoder, splits.training, learned)
    chooses_prior = asked.prior_precision is None and asked.prior_chosen_by == "validation"
    if len(splits.validation) and (asked.temperature == "validation" or chooses_prior):
        criterion = _votes(encoder, fitted, splits, config.seed)
        if chooses_prior:
            candidates = fitted.prior_precision * PRIOR_FACTORS
            fitted = select_by_validation(fitted, candidates.tolist(), criterion)
        else:
            fitted = temper_by_validation(fitted, TEMPERATURES.tolist(), criterion)
    if asked.temperature != "validation":
        fitted = fitted.tempered(asked.temperature)
    correlation = _norm_correlation(encoder, fitted.posterior, splits, config.seed)
    known = "unknown" if correlation is None else f"{correlation:.3f}"
    console.print(
        f"{asked.name}: {fitted.prior_share:.1%} of the precision is prior; the uncertainty "
        f"correlates with the length of the features at {known}"
    )
    if correlation is not None and correlation > NOTHING_BUT_NORM:
        console.print(
            "[yellow]The posterior says nothing beyond the length of the features. "
            "Take structure = 'kronecker', or a smaller prior_precision.[/]"
        )
    searched = fitted.temperature_search
    return fitted.posterior, {
        "structure": fitted.structure,
        "approximation": approximation,
        "prior_precision": fitted.prior_precision,
        "prior_chosen_by": fitted.prior_chosen_by,
        "prior_search": asdict(fitted.prior_search),
        "prior_share": fitted.prior_share,
        "norm_correlation": correlation,
        "temperature": fitted.temperature,
        "temperature_search": None if searched is None else asdict(searched),
        "data_scale": fitted.data_scale,
        "curvature": fitted.summary(),
        "log_marginal_likelihood": fitted.log_marginal_likelihood,
    }


def _norm_correlation(
    encoder: MetricEncoder, posterior: LaplacePosterior, splits: Splits, seed: int
) -> float | None:
    """Correlation, in logs, of the uncertainty Σv / ‖m‖² with ‖φ‖² / ‖m‖², its value without data.

    Over validation images, or training images where there are few; None where all are alike.
    """
    images = splits.validation if len(splits.validation) >= MIN_CORRELATED else splits.training
    chosen = np.random.default_rng(seed).permutation(len(images))[:N_VALIDATION]
    features = all_features(encoder, images.subset(np.sort(chosen)))
    return norm_correlation(posterior, features)


def _fit_laplace(
    asked: LaplaceConfig | OnlineLaplaceConfig,
    config: BuildConfig,
    encoder: MetricEncoder,
    images: LabelledImages,
    learned: Mapping[str, Tensor],
) -> tuple[LaplaceFit, Approximation]:
    """The Laplace posterior before validation has its say, and how its curvature is approximated.

    Of a network that was not trained with the margin, all negatives may lie inside it, where the
    terms of `fixed` cancel; then the positives alone are taken.
    """
    layer = encoder.last_layer.weight.detach(), encoder.last_layer.bias.detach()
    chosen_by: Literal["curvature", "marginal_likelihood"] = "curvature"
    if asked.prior_chosen_by != "curvature":
        chosen_by = "marginal_likelihood"  # which validation searches around
    if isinstance(asked, OnlineLaplaceConfig):
        fitted = laplace_of_curvature(
            *layer,
            OnlineLaplaceLoss.curvature(learned) * (1 / len(images)),
            data_scale=float(len(images)),
            prior_precision=asked.prior_precision,
            prior_chosen_by=chosen_by,
            prior_scale=asked.prior_scale,
        )
        return fitted, asked.approximation
    fit = partial(
        fit_laplace,
        repeatable_blocks(encoder, images),
        torch.from_numpy(images.label_codes()),
        *layer,
        structure=asked.structure,
        split=asked.split,
        margin=config.training.margin,
        scaling=asked.scaling,
        prior_precision=asked.prior_precision,
        prior_chosen_by=chosen_by,
        prior_scale=asked.prior_scale,
        generator=torch.Generator().manual_seed(config.seed),
    )
    try:
        return fit(approximation=asked.approximation), asked.approximation
    except CalibrationError:
        if asked.approximation != "fixed":
            raise
        return fit(approximation="positives"), "positives"


def _votes(encoder: MetricEncoder, fitted: LaplaceFit, splits: Splits, seed: int) -> Criterion:
    """Return a criterion: how well votes of a posterior's samples predict validation labels."""
    shuffle = np.random.default_rng(seed)
    names = sorted({*splits.training.labels, *splits.validation.labels})

    def drawn(images: LabelledImages, most: int) -> tuple[Tensor, Tensor]:
        chosen = images.subset(shuffle.permutation(len(images))[:most])
        codes = torch.tensor([names.index(label) for label in chosen.labels])
        return all_features(encoder, chosen), codes

    queries, query_labels = drawn(splits.validation, N_VALIDATION)
    found, found_labels = drawn(splits.training, N_VOTERS)
    return vote_log_likelihood(
        fitted.posterior,
        queries,
        query_labels,
        found,
        found_labels,
        torch.Generator().manual_seed(seed),
    )
