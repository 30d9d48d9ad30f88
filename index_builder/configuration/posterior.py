"""The table `[posterior]` of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from index_builder.configuration.section import Contradiction, Section


class _LaplaceConfig(Section):
    """The settings that both kinds of Laplace posterior share."""

    method: str
    approximation: Literal["full", "positives", "fixed"] = Field(
        "fixed",
        description="How the curvature is kept positive, which negative pairs make indefinite.",
    )
    split: Literal["euclidean", "arccos"] = Field(
        "euclidean",
        description="Whether normalisation belongs to the network (euclidean) or to the loss "
        "(arccos).",
    )
    scaling: Literal["per_anchor", "global"] = Field(
        "per_anchor",
        description="How pairs of images are weighted. per_anchor: the pairs of every image count "
        "the same together. global: every pair counts the same, as in the paper's Eq. 13, so that "
        "large labels dominate. Of labels of one size the two are the same.",
    )
    structure: Literal["kronecker", "diagonal"] = Field(
        "kronecker",
        description="What is kept of the curvature. kronecker: the covariance of the features and "
        "that of the outputs. diagonal: each weight alone, as in the papers; it cannot know which "
        "combinations of features the training images had.",
    )
    prior_precision: float | None = Field(
        None, gt=0, examples=[1.0], description="Left out: `prior_chosen_by` chooses it."
    )
    prior_chosen_by: Literal["validation", "curvature", "marginal_likelihood"] = Field(
        "validation",
        description="validation: by how well the uncertainty of a pair tells wrong first results "
        "and absent kinds, for labels and images that the posterior was not fitted to; as "
        "`curvature` where there are too few. curvature: a fixed fraction of the mean curvature of "
        "the training images. marginal_likelihood: by the evidence of the training images.",
    )
    prior_scale: Literal["isotropic", "features"] = Field(
        "isotropic",
        description="Of a Kronecker-factored posterior. isotropic: the prior precision is the same "
        "for all weights. features: that of a weight is in units of its feature's curvature.",
    )
    temperature: Annotated[float, Field(gt=0)] | Literal["validation"] = Field(
        "validation",
        description="Of the posterior, whose variances are multiplied by it. validation: chosen by "
        "how well sampled neighbours predict the label of images that the posterior was not fitted "
        "to; 1 where there are no such images, or where they do not identify one.",
    )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        structure = "" if self.structure == "diagonal" else f"{self.structure}_"
        return f"{self.method}_{structure}{self.approximation}_{self.split}"


class LaplaceConfig(_LaplaceConfig):
    """The Laplace posterior of the last layer, fitted once training is over."""

    method: Literal["laplace"] = "laplace"


class OnlineLaplaceConfig(_LaplaceConfig):
    """The Laplace posterior of the last layer, kept up while training."""

    method: Literal["online_laplace"]
    memory_factor: float = Field(
        1e-3, gt=0, le=1, description="Share of a minibatch in the average of the curvature."
    )
    n_samples: int = Field(
        0, ge=0, description="Last layers drawn for each step; 0 takes the step at the mean."
    )
    initial_precision: float = Field(
        1e6, ge=0, description="Keeps drawn layers near the mean at first; forgotten in training."
    )
    training_prior_precision: float = Field(
        1.0, gt=0, description="While training; afterwards the prior is chosen as above."
    )


class BayesianTripletConfig(Section):
    """A variance head on the features, trained with the Bayesian triplet loss."""

    method: Literal["bayesian_triplet"]
    variance: Literal["isotropic", "diagonal"] = Field(
        "diagonal", description="One variance an image, or one for each dimension."
    )
    prior: Literal["gaussian", "von_mises_fisher"] = Field(
        "gaussian", description="What the embedding's distribution is pulled towards."
    )
    prior_variance: float | None = Field(
        None, gt=0, description="Of each dimension; left out: 1 / embedding_dim."
    )
    kl_weight: float = Field(1e-6, ge=0, description="Of the divergence from the prior.")
    normalised: bool = Field(
        True,
        description="Compare embeddings on the unit sphere. false: unnormalised, as in the "
        "Gaussian "
        "form of the paper's supplement; what is served is their direction.",
    )
    margin: float = Field(0.0, ge=0, description="In squared distance, by which positives lead.")
    mining: Literal["all", "semihard", "hard"] = Field(
        "all", description="Which triplets within the miner's margin train."
    )
    n_triplets: int = Field(5000, ge=1, description="Drawn from a minibatch, at most.")

    def contradictions(self) -> Iterator[Contradiction]:
        """Give the keys that the von Mises-Fisher prior does not go with."""
        if self.prior == "von_mises_fisher" and self.variance == "diagonal":
            yield "prior", 'the von Mises-Fisher prior needs variance = "isotropic".'
        if self.prior == "von_mises_fisher" and not self.normalised:
            yield "normalised", "the von Mises-Fisher prior is one on the sphere. Drop it."

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        form = "" if self.normalised else "_not_normalised"
        return f"{self.method}_{self.variance}_{self.prior}{form}"


class DeterministicConfig(Section):
    """No posterior: every image's embedding is certain."""

    method: Literal["deterministic"]

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return self.method


class MonteCarloDropoutConfig(Section):
    """Dropout that stays on: what the network says with parts of it missing (Gal 2016)."""

    method: Literal["mc_dropout"]
    n_passes: int | None = Field(
        None,
        ge=2,
        description="Through small_cnn, with network.dropout_inside; left out: 20. Dropout on the "
        "features alone needs none.",
    )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return self.method


class EnsembleConfig(Section):
    """Encoders trained apart from each other, and how far they disagree."""

    method: Literal["ensemble"]
    n_members: int = Field(5, ge=2, description="Each trained as the encoder alone would be.")

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return f"{self.method}_of_{self.n_members}"


class EmbeddingNormConfig(Section):
    """The length of an embedding as the concentration of a von Mises-Fisher distribution."""

    method: Literal["embedding_norm"]
    temperature: Annotated[float, Field(gt=0)] | Literal["validation"] = Field(
        "validation",
        description="By which the length is divided. validation: chosen by how well sampled "
        "neighbours predict the label of images that the encoder was not trained on; 1 where there "
        "are no such images.",
    )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return self.method


class LossPredictionConfig(Section):
    """An uncertainty that is trained to say how badly an image will be found."""

    method: Literal["loss_prediction"]
    form: Literal["ranking", "squared"] = Field(
        "ranking",
        description="ranking: the head orders images by their loss, as pretrained visual "
        "uncertainties do. squared: it predicts the loss itself.",
    )
    epochs: int = Field(5, ge=1, description="Of the head, over the training images.")
    learning_rate: float = Field(1e-3, gt=0)
    temperature: Annotated[float, Field(gt=0)] | Literal["validation"] = Field(
        "validation",
        description="By which a predicted loss is multiplied to be a variance. validation: chosen "
        "as that of embedding_norm.",
    )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return f"{self.method}_{self.form}"


class FaceEmbeddingConfig(Section):
    """Probabilistic face embeddings: variances learned for a fixed encoder."""

    method: Literal["pfe"]
    epochs: int = Field(5, ge=1, description="Of the variances, over the training images.")
    learning_rate: float = Field(1e-3, gt=0)

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return self.method


class HedgedInstanceConfig(Section):
    """Hedged instance embeddings: means and variances learned together."""

    method: Literal["hib"]
    kl_weight: float = Field(1e-4, ge=0, description="Of the divergence from the prior.")
    n_samples: int = Field(8, ge=1, description="Of each embedding, for a step of training.")

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return self.method


POST_HOC = frozenset(
    {"laplace", "embedding_norm", "loss_prediction", "deterministic", "mc_dropout", "pfe"}
)
"""Methods whose encoder is trained with `training.objective` alone, once; the rest comes after."""

OF_ANY_OBJECTIVE = POST_HOC | {"ensemble"}
"""Methods whose encoders are trained with `training.objective`; others bring their own loss."""


def _method(value: Any) -> str:  # noqa: ANN401 - a table of the file, or a section already made
    """Method of a posterior table; one that names none is the post-hoc Laplace posterior."""
    if isinstance(value, dict):
        return str(value.get("method", "laplace"))
    return str(getattr(value, "method", None))


PosteriorConfig = Annotated[
    Annotated[LaplaceConfig, Tag("laplace")]
    | Annotated[OnlineLaplaceConfig, Tag("online_laplace")]
    | Annotated[BayesianTripletConfig, Tag("bayesian_triplet")]
    | Annotated[DeterministicConfig, Tag("deterministic")]
    | Annotated[MonteCarloDropoutConfig, Tag("mc_dropout")]
    | Annotated[EnsembleConfig, Tag("ensemble")]
    | Annotated[EmbeddingNormConfig, Tag("embedding_norm")]
    | Annotated[LossPredictionConfig, Tag("loss_prediction")]
    | Annotated[FaceEmbeddingConfig, Tag("pfe")]
    | Annotated[HedgedInstanceConfig, Tag("hib")],
    Discriminator(_method),
]
"""The method by which the encoder learns its uncertainty."""
