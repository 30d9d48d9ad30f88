"""Baselines: no posterior, Monte Carlo dropout, and a deep ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import (
    DeterministicConfig,
    EnsembleConfig,
    MonteCarloDropoutConfig,
)
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.networks import MetricEncoder
from index_builder.networks.encoder import all_features
from index_builder.networks.trunk import SmallCNN, dropout_masks
from index_builder.posteriors.baselines import (
    DropoutPosterior,
    EnsemblePosterior,
    PointPosterior,
    fit_ensemble,
)
from index_builder.posteriors.stored import (
    DropoutEncoder,
    EnsembleEncoder,
    Posterior,
    ProbabilisticEncoder,
)


@dataclass(frozen=True)
class Deterministic(Method):
    """The baseline to which the other methods are compared."""

    settings: DeterministicConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[PointPosterior, Report]:
        """Return the trained last layer unchanged."""
        (trained,) = members
        return PointPosterior.of(trained.encoder.last_layer), {}


N_PASSES = 20
"""Default number of passes through a trunk with dropout. With this number of passes, the relative
error of a variance is about a third."""


@dataclass(frozen=True)
class MonteCarloDropout(Method):
    """Monte Carlo dropout (Gal & Ghahramani 2016), with the dropout shares of training."""

    settings: MonteCarloDropoutConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[DropoutPosterior, Report]:
        """Return the posterior; if the trunk has dropout, draw a mask for each pass."""
        (trained,) = members
        inside = config.network.dropout_inside
        layer = trained.encoder.last_layer
        posterior = DropoutPosterior(
            layer.weight.detach(),
            layer.bias.detach(),
            torch.tensor(config.network.dropout),
            dropout_masks(
                (self.settings.n_passes or N_PASSES) if inside else 0,
                SmallCNN.hidden_shape if inside else (),
                config.network.dropout,
                torch.Generator().manual_seed(config.seed),
            ),
        )
        return posterior, {"n_passes": len(posterior.masks)}

    def assemble(
        self, encoders: Sequence[MetricEncoder], posterior: Posterior
    ) -> ProbabilisticEncoder:
        """Return an encoder that passes an image through the trunk once for each mask."""
        (encoder,) = encoders
        if isinstance(posterior, DropoutPosterior) and len(posterior.masks):
            return DropoutEncoder(encoder, posterior)
        return super().assemble(encoders, posterior)


N_ALIGNING = 10_000
"""Maximum number of training images for aligning the members. The alignment needs only D images."""


@dataclass(frozen=True)
class Ensemble(Method):
    """A deep ensemble (Lakshminarayanan et al. 2017)."""

    settings: EnsembleConfig

    def members(self, config: EncoderConfig) -> list[EncoderConfig]:
        """Return the configurations of deterministic encoders, each with a different seed.

        The first member has the seed of the build, so this member equals the deterministic
        baseline. The seed of each further member is derived from the seed of the build and the
        number of the member. All members use the same split of the data.
        """
        others = np.random.SeedSequence(config.seed).generate_state(self.settings.n_members - 1)
        alone = DeterministicConfig(method="deterministic")
        return [
            config.model_copy(update={"seed": seed, "posterior": alone})
            for seed in (config.seed, *map(int, others))
        ]

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[EnsemblePosterior, Report]:
        """Rotate all members into one space, using at most `N_ALIGNING` training images."""
        images = splits.training
        shuffled = np.random.default_rng(config.seed).permutation(len(images))
        some = images.at(shuffled[:N_ALIGNING])
        fitted = fit_ensemble(
            [member.encoder.last_layer for member in members],
            [all_features(member.encoder, some) for member in members],
        )
        before, after = zip(*fitted.agreement, strict=True)
        return fitted.posterior, {
            "n_members": len(members),
            "agreement_with_first": {"as_trained": list(before), "turned": list(after)},
        }

    def assemble(
        self, encoders: Sequence[MetricEncoder], posterior: Posterior
    ) -> ProbabilisticEncoder:
        """Return one module that contains all members."""
        return EnsembleEncoder(encoders, posterior)


CLASSES = {"deterministic": Deterministic, "mc_dropout": MonteCarloDropout, "ensemble": Ensemble}
"""The methods of this module by name."""
