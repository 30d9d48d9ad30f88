"""What the steps `train` and `fit` left, read back: encoders, and encoders with their posterior."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from index_builder.configuration import BuildConfig
from index_builder.export import ProbabilisticEncoder
from index_builder.networks import MetricEncoder, load_encoder
from index_builder.networks.small_cnn import SmallCNN
from index_builder.posterior_configuration import (
    CONTRASTIVE,
    DeterministicConfig,
    EnsembleConfig,
)
from index_builder.posteriors import (
    DropoutPosterior,
    EnsemblePosterior,
    load_ensemble,
    load_posterior,
)
from index_builder.run import Run
from model_store.errors import ConfigError
from model_store.images import Preprocessing

TRAINING_REPORT = "training.json"


class DropoutEncoder(nn.Module):
    """Monte Carlo dropout with the posterior's fixed masks within the trunk.

    The features that it gives are those of the whole network, nothing dropped.
    """

    def __init__(self, encoder: MetricEncoder, posterior: DropoutPosterior) -> None:
        super().__init__()
        self.encoder = encoder
        self.posterior = posterior

    @property
    def preprocessing(self) -> Preprocessing:
        """How an upright RGB image becomes the input."""
        return self.encoder.preprocessing

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding mean and variance, and features, of ``images`` (B, H, W, 3) uint8."""
        trunk = self.encoder.trunk
        assert isinstance(trunk, SmallCNN)  # noqa: S101 - the configuration allows no other
        pixels = self.encoder.standardised(images)
        passes = trunk.masked_features(pixels, self.posterior.masks)
        return *self.posterior.combine(passes), trunk(pixels)


class EnsembleEncoder(nn.Module):
    """A deep ensemble in one graph.

    The features that it gives are the first member's: those of members trained apart have nothing
    in common, and M times as many would cost the outlier detector M times as much.
    """

    def __init__(self, members: Sequence[MetricEncoder], posterior: EnsemblePosterior) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.preprocessing = members[0].preprocessing
        self.posterior = posterior
        self._features = [member.features for member in members]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding mean and variance, and features, of ``images`` (B, H, W, 3) uint8."""
        features = [features_of(images) for features_of in self._features]
        return *self.posterior.predict(features), features[0]


FittedEncoder = ProbabilisticEncoder | DropoutEncoder | EnsembleEncoder


def load_fitted(config: BuildConfig, run: Run) -> FittedEncoder:
    """The encoder with its posterior, as `fit` left it: images to mean, variance and features.

    Raises
    ------
    StepNotReady : it is not fitted.
    ConfigError : it was trained with another configuration.
    """
    if isinstance(config.posterior, EnsembleConfig):
        members = trained_members(config, run)
        return EnsembleEncoder(members, load_ensemble(run.require(run.posterior, "fit")))
    encoder = trained_encoder(config, run)
    posterior = load_posterior(run.require(run.posterior, "fit"))
    if isinstance(posterior, DropoutPosterior) and len(posterior.masks):
        return DropoutEncoder(encoder, posterior)
    return ProbabilisticEncoder(encoder, posterior)


def trained_encoder(config: BuildConfig, run: Run) -> MetricEncoder:
    """The encoder that `train` left, in evaluation mode.

    Raises
    ------
    StepNotReady : it is not trained.
    ConfigError : it was trained with another configuration.
    """
    checkpoint = run.require(run.checkpoint, "train")
    _require_unchanged(config, run)
    return load_encoder(config.network, checkpoint)


def trained_members(config: BuildConfig, run: Run) -> list[MetricEncoder]:
    """The encoders of an ensemble, likewise."""
    run.require(run.directory / TRAINING_REPORT, "train")
    _require_unchanged(config, run)
    return [
        trained_encoder(member, run.member(number))
        for number, member in enumerate(member_configs(config))
    ]


def member_configs(config: BuildConfig) -> list[BuildConfig]:
    """What each member of an ensemble is trained by: an encoder alone, with a seed of its own.

    The first member's is that of the build, so that it is the deterministic baseline; the others'
    come from that seed and the member's number, so that builds of different seeds share none. The
    data are divided by the build's own seed, for all members.
    """
    asked = config.posterior
    assert isinstance(asked, EnsembleConfig)  # noqa: S101 - the caller has looked
    others = np.random.SeedSequence(config.seed).generate_state(asked.n_members - 1)
    alone = DeterministicConfig(method="deterministic")
    return [
        config.model_copy(update={"seed": seed, "posterior": alone})
        for seed in (config.seed, *map(int, others))
    ]


def _require_unchanged(config: BuildConfig, run: Run) -> None:
    then, now = run.read_json(TRAINING_REPORT)["config"], config.model_dump(mode="json")
    parts = ["dataset", "network", "training", "seed"]
    if not {then["posterior"]["method"], now["posterior"]["method"]} <= CONTRASTIVE:
        parts.append("posterior")
    changed = [part for part in parts if then[part] != now[part]]
    if changed:
        raise ConfigError(
            f"{run.directory} was trained with another `{'`, `'.join(changed)}` than the "
            "configuration has now. Run `vouch-build train` again, or name another --run."
        )
