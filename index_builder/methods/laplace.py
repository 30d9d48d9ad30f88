"""The Laplace posterior of the last layer, fitted after or during training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import to_numpy
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import LaplaceConfig, OnlineLaplaceConfig
from index_builder.datasets import LabelledImages, Splits
from index_builder.datasets.splits import with_label
from index_builder.methods.method import Method, Report, Trained
from index_builder.methods.validation import N_VALIDATION, say_if_unidentified, votes
from index_builder.posteriors.laplace.curvature import Approximation
from index_builder.posteriors.laplace.fit import (
    LaplaceFit,
    LaplacePosterior,
    fit_laplace,
    laplace_of_curvature,
)
from index_builder.posteriors.laplace.held_out import (
    FRACTIONS,
    MIN_IMAGES,
    HeldOut,
    correlated_pairs,
    fit_correlation,
    norm_correlation,
    some_of_each,
    temper_by_validation,
    total_variances,
    validate,
)
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.progress import console
from index_builder.vectors.encoder import LinearEncoder, features_of, repeatable_blocks
from index_builder.whitening import learned_whitening
from model_store.errors import CalibrationError, DatasetError
from model_store.machine import one_blas_thread
from model_store.predictive import Correlation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from index_builder.networks import MetricEncoder
    from index_builder.objectives import OnlineLaplaceLoss

Floats = NDArray[np.float32]

TEMPERATURES = np.logspace(-9, 3, 25)
"""Candidate temperatures of a validation. With the smallest temperature, all samples are nearly
equal to the mean. With the largest temperature, the samples are nearly independent of the mean."""

NOTHING_BUT_NORM = 0.95
"""If the correlation of the uncertainty with the norm of the features is above this value, the
uncertainty contains no more information than the norm."""

MIN_PAIRED = 20
"""Minimum number of validation images for estimating the correlation between the errors of a query
and of an item."""

MIN_CORRELATED = 30
"""Minimum number of validation images for estimating the correlation between the uncertainty and
the norm of the features."""


class Laplace(Method):
    """A Laplace posterior; the configuration determines how prior and temperature are chosen."""

    settings: LaplaceConfig | OnlineLaplaceConfig
    is_post_hoc: ClassVar[bool]

    @abstractmethod
    def curvature_fit(
        self, config: EncoderConfig, trained: Trained, images: LabelledImages
    ) -> tuple[LaplaceFit, Approximation]:
        """Return the fit before any validation, and the approximation that the fit used."""

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[LaplacePosterior, Report]:
        """Fit the posterior, and choose its prior and temperature."""
        (trained,) = members
        settings, encoder = self.settings, trained.linear
        fitted, approximation = self.curvature_fit(config, trained, splits.training)
        chooses_prior = (
            settings.prior_precision is None and settings.prior_chosen_by == "validation"
        )
        held_out = None
        if chooses_prior or (settings.temperature == "validation" and self.is_post_hoc):
            held_out = self._validated(
                config, trained, splits, fitted, approximation, chooses_prior=chooses_prior
            )
        if held_out is not None and chooses_prior:
            fitted = fitted.with_prior(held_out.fraction, held_out.prior)
        if settings.temperature != "validation":
            fitted = fitted.tempered(settings.temperature)
        elif held_out is not None and self.is_post_hoc:
            fitted = fitted.tempered_by(held_out.temperature)
        elif len(splits.validation):
            of_images = partial(features_of, encoder)
            criterion = votes(of_images, fitted.posterior, splits, config.seed)
            fitted = temper_by_validation(fitted, TEMPERATURES.tolist(), criterion)
        correlation = _norm_correlation(encoder, fitted.posterior, splits, config.seed)
        name = settings.model_copy(update={"approximation": approximation}).name
        _say(name, fitted, correlation, held_out)
        report = _report(fitted, approximation, correlation, held_out)
        of_pairs = _pair_correlation(encoder, fitted.posterior, splits, config.seed, held_out)
        return fitted.posterior, {"method": name, "pair_correlation": of_pairs, **report}

    @property
    def prior_chosen_by(self) -> Literal["curvature", "marginal_likelihood"]:
        """The criterion for the prior of the first fit; validation can replace this prior later."""
        likeliest = self.settings.prior_chosen_by == "marginal_likelihood"
        return "marginal_likelihood" if likeliest else "curvature"

    def _validated(
        self,
        config: EncoderConfig,
        trained: Trained,
        splits: Splits,
        fitted: LaplaceFit,
        approximation: Approximation,
        *,
        chooses_prior: bool,
    ) -> HeldOut | None:
        """Choose the prior and the temperature on held-out labels and images; see `validate`.

        A last layer in closed form (whitening of frozen features) is fitted again without the
        held-out images, so every image can be a query. A trained layer is not fitted again, so only
        validation images can be queries.
        """
        network, settings, seed = config.network, self.settings, config.seed
        is_fitted = network.last_layer == "whitening" and not config.training.epochs
        names = {name: code for code, name in enumerate(sorted(set(splits.training.labels)))}
        learned, new = (
            _some(images, names, seed) for images in (splits.training, splits.validation)
        )
        if not is_fitted and not len(new):
            return None
        if not fitted.curvature.mean > 0:
            return None  # with zero curvature the posterior is the prior, and all folds are equal
        weight, bias = trained.linear.weight, trained.linear.bias
        features = np.concatenate([features_of(trained.linear, part) for part in (learned, new)])
        labels = np.array([names[label] for label in learned.labels + new.labels])
        enough = np.bincount(labels)[labels] >= MIN_IMAGES
        is_new = np.arange(len(labels)) >= len(learned)

        def fit_fold(rows: NDArray[np.int64]) -> tuple[LaplaceFit, Floats, Floats]:
            some, of_some = features[rows], labels[rows]
            layer = weight
            if is_fitted:
                layer = learned_whitening([some], of_some, len(weight)).astype(np.float32)
            fit = fit_laplace(
                lambda: [some],
                np.unique(of_some, return_inverse=True)[1],
                layer,
                bias,
                structure=settings.structure,
                approximation=approximation,
                split=settings.split,
                margin=config.training.margin,
                scaling=settings.scaling,
                prior_scale=settings.prior_scale,
                data_scale=None if is_fitted else fitted.data_scale,
                seed=seed,
            )
            return fit, layer, bias

        fractions: tuple[float, ...] = FRACTIONS[settings.structure]
        if not chooses_prior:
            fractions = (fitted.prior_precision / (fitted.data_scale * fitted.curvature.mean),)
        may_ask = enough if is_fitted else is_new
        try:
            with one_blas_thread():
                return validate(
                    features, labels, may_ask, fit_fold, fractions, seed, divided=is_fitted
                )
        except (CalibrationError, DatasetError):
            return None  # folds are too small for a fit


@dataclass(frozen=True)
class PostHocLaplace(Laplace):
    """The Laplace posterior of a trained encoder."""

    settings: LaplaceConfig
    is_post_hoc = True

    def curvature_fit(
        self, config: EncoderConfig, trained: Trained, images: LabelledImages
    ) -> tuple[LaplaceFit, Approximation]:
        """Fit the posterior to all pairs of training images.

        If the network was not trained with the contrastive loss, it is possible that all negatives
        are inside the margin. The terms of the approximation `fixed` then cancel, and the
        approximation `positives` is used instead.
        """
        settings = self.settings
        fit = partial(
            fit_laplace,
            repeatable_blocks(trained.linear, images),
            images.label_codes(),
            trained.linear.weight,
            trained.linear.bias,
            structure=settings.structure,
            split=settings.split,
            margin=config.training.margin,
            scaling=settings.scaling,
            prior_precision=settings.prior_precision,
            prior_chosen_by=self.prior_chosen_by,
            prior_scale=settings.prior_scale,
            seed=config.seed,
        )
        try:
            return fit(approximation=settings.approximation), settings.approximation
        except CalibrationError:
            if settings.approximation != "fixed":
                raise
            console.print(
                "approximation = 'fixed' gives no curvature, because all negatives are inside the "
                "margin. 'positives' is used instead."
            )
            return fit(approximation="positives"), "positives"


@dataclass(frozen=True)
class OnlineLaplace(Laplace):
    """The Laplace posterior that is updated during training."""

    settings: OnlineLaplaceConfig
    is_post_hoc = False

    def objective(
        self,
        config: EncoderConfig,
        encoder: MetricEncoder,
        labels: Tensor,
        generator: torch.Generator,
    ) -> OnlineLaplaceLoss:
        """Return the contrastive loss; it also updates the curvature at each step."""
        from index_builder.objectives import OnlineLaplaceLoss  # noqa: PLC0415 - it needs torch
        from index_builder.posteriors.laplace.minibatches import (  # noqa: PLC0415 - it needs torch
            MinibatchPlan,
        )

        settings = self.settings
        return OnlineLaplaceLoss(
            encoder.last_layer,
            labels,
            MinibatchPlan(
                n_labels=config.training.labels_per_batch,
                n_images=config.training.images_per_label,
            ),
            margin=config.training.margin,
            structure=settings.structure,
            approximation=settings.approximation,
            split=settings.split,
            scaling=settings.scaling,
            memory_factor=settings.memory_factor,
            prior_precision=settings.training_prior_precision,
            initial_precision=settings.initial_precision,
            n_samples=settings.n_samples,
            generator=generator,
        )

    def curvature_fit(
        self, config: EncoderConfig, trained: Trained, images: LabelledImages
    ) -> tuple[LaplaceFit, Approximation]:
        """Return the fit; its curvature is the running average that the training has computed."""
        from index_builder.objectives import OnlineLaplaceLoss  # noqa: PLC0415 - it needs torch

        settings = self.settings
        learned = {name: to_numpy(value) for name, value in trained.learned.items()}
        fitted = laplace_of_curvature(
            trained.linear.weight,
            trained.linear.bias,
            OnlineLaplaceLoss.curvature(learned) * (1 / len(images)),
            data_scale=float(len(images)),
            prior_precision=settings.prior_precision,
            prior_chosen_by=self.prior_chosen_by,
            prior_scale=settings.prior_scale,
        )
        return fitted, settings.approximation


def _some(images: LabelledImages, names: Mapping[str, int], seed: int) -> LabelledImages:
    """Return images for the validation; labels that are not in ``names`` are left out."""
    known = images.at(with_label(images, names.keys(), wanted=True))
    codes = np.array([names[label] for label in known.labels], dtype=np.int64)
    return known.at(some_of_each(codes, len(names), seed))


def _say(
    name: str, fitted: LaplaceFit, correlation: float | None, held_out: HeldOut | None
) -> None:
    """Print the prior's share of the precision, and the results of the validation."""
    known = "unknown" if correlation is None else f"{correlation:.3f}"
    console.print(
        f"{name}: the prior is {fitted.prior_share:.1%} of the precision; the correlation of "
        f"uncertainty and feature norm is {known}"
    )
    if held_out is not None:
        duties = {
            "wrong first results": held_out.wrong_auroc,
            "absent labels": held_out.absent_auroc,
        }
        told = [f"{duty} {value:.2f}" for duty, value in duties.items() if value is not None]
        console.print(
            f"validation on {held_out.n_queries} held-out queries, {held_out.n_wrong} of them "
            f"with a wrong first result, and {held_out.n_absent} absent queries; AUROC: "
            f"{', '.join(told) or 'undefined'}"
        )
        tried = sorted(held_out.prior.candidates)
        if fitted.prior_chosen_by == "validation" and held_out.fraction in {tried[0], tried[-1]}:
            end = "smallest" if held_out.fraction == tried[0] else "largest"
            console.print(
                f"The prior precision is {held_out.fraction:g} times the mean curvature, the {end} "
                f"candidate of {', '.join(f'{one:g}' for one in tried)}."
            )
    if fitted.temperature_search is not None:
        say_if_unidentified(fitted.temperature_search)
    by_validation = fitted.prior_chosen_by == "validation"
    if correlation is not None and correlation > NOTHING_BUT_NORM and not by_validation:
        console.print(
            "[yellow]The posterior adds no information to the norm of the features. Use structure "
            "= 'kronecker', or a smaller prior_precision.[/]"
        )


def _report(
    fitted: LaplaceFit,
    approximation: Approximation,
    correlation: float | None,
    held_out: HeldOut | None,
) -> Report:
    """Return a description of the fit of the posterior, as JSON values."""
    search = fitted.temperature_search
    return {
        "structure": fitted.structure,
        "approximation": approximation,
        "prior_precision": fitted.prior_precision,
        "prior_chosen_by": fitted.prior_chosen_by,
        "prior_search": asdict(fitted.prior_search),
        "validation": None if held_out is None else asdict(held_out),
        "prior_share": fitted.prior_share,
        "norm_correlation": correlation,
        "temperature": fitted.temperature,
        "temperature_search": None
        if search is None
        else asdict(search) | {"is_identified": search.is_identified},
        "data_scale": fitted.data_scale,
        "curvature": fitted.summary(),
        "log_marginal_likelihood": fitted.log_marginal_likelihood,
    }


def _pair_correlation(
    encoder: LinearEncoder,
    posterior: LaplacePosterior,
    splits: Splits,
    seed: int,
    held_out: HeldOut | None,
) -> Correlation | None:
    """Return the correlation of a pair's errors; None if it cannot be estimated.

    A pair is a validation image and one of its nearest training images. If there are too few
    validation images, the pairs are those of ``held_out``. Pairs of training images are not used:
    with them, the error (ECE) of `rank_stability` on CUB was 0.056, and not 0.032.
    """
    if not isinstance(posterior, KroneckerPosterior):
        return None
    shuffle = np.random.default_rng(seed)
    features, of_items = (
        features_of(encoder, images.at(np.sort(shuffle.permutation(len(images))[:N_VALIDATION])))
        for images in (splits.validation, splits.training)
    )
    if len(features) >= MIN_PAIRED:
        relative = fit_correlation(correlated_pairs(posterior, features, of_items))
    elif held_out is not None and held_out.pair_correlation is not None:
        relative = held_out.pair_correlation
    else:
        return None
    return relative.in_units_of(float(np.median(total_variances(posterior, of_items))))


def _norm_correlation(
    encoder: LinearEncoder, posterior: LaplacePosterior, splits: Splits, seed: int
) -> float | None:
    """Return the correlation of log Σv / ‖m‖² with log ‖φ‖² / ‖m‖²; see `norm_correlation`.

    The correlation is computed from validation images; if there are too few, from training images.
    The result is None if all values are equal.
    """
    images = splits.validation if len(splits.validation) >= MIN_CORRELATED else splits.training
    chosen = np.random.default_rng(seed).permutation(len(images))[:N_VALIDATION]
    features = features_of(encoder, images.at(np.sort(chosen)))
    return norm_correlation(posterior, features)


CLASSES = {"laplace": PostHocLaplace, "online_laplace": OnlineLaplace}
"""The methods of this module by name."""
