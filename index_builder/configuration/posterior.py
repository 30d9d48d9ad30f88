"""The table `[posterior]` of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from index_builder.configuration.schema import Contradiction, Section


class _Posterior(Section):
    """What all posteriors have."""

    method: str

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return self.method


class _LaplaceConfig(_Posterior):
    """The settings of both kinds of Laplace posterior."""

    approximation: Literal["full", "positives", "fixed"] = Field(
        "fixed",
        description="How to keep the curvature positive, because negative pairs can make it "
        "indefinite. full: all terms, with the sum clipped at zero. positives: only positive "
        "pairs. fixed: one image of each pair is held constant.",
    )
    split: Literal["euclidean", "arccos"] = Field(
        "euclidean",
        description="Where embeddings are normalised: in the network (euclidean) or in the loss "
        "(arccos).",
    )
    scaling: Literal["per_anchor", "global"] = Field(
        "per_anchor",
        description="Weights of pairs in the curvature. per_anchor: every image has the same "
        "total weight. global: every pair has the same weight, as in the paper's Eq. 13, so "
        "large labels dominate. If all labels have the same size, both weights are equal.",
    )
    structure: Literal["kronecker", "diagonal"] = Field(
        "kronecker",
        description="Structure of the curvature. kronecker: covariance of the features times "
        "covariance of the outputs. diagonal: one value per weight, as in the papers. A "
        "diagonal curvature ignores the correlation of features.",
    )
    prior_precision: float | None = Field(
        None,
        gt=0,
        examples=[1.0],
        description="Prior precision. If not set: chosen by `prior_chosen_by`.",
    )
    prior_chosen_by: Literal["validation", "curvature", "marginal_likelihood"] = Field(
        "validation",
        description="How to choose the prior precision. validation: the value for which the "
        "uncertainty detects wrong first results and absent labels with the highest AUROC. The "
        "AUROC is measured on labels and images that the fit has not used. With too few such "
        "images, `curvature` is used. curvature: a fixed fraction of the mean curvature of the "
        "training images. marginal_likelihood: the value with the highest marginal likelihood of "
        "the training images.",
    )
    prior_scale: Literal["isotropic", "features"] = Field(
        "isotropic",
        description="Prior precision of a Kronecker-factored posterior. isotropic: the same "
        "precision for all weights. features: the precision of a weight is proportional to "
        "the curvature of its feature.",
    )
    temperature: Annotated[float, Field(gt=0)] | Literal["validation"] = Field(
        "validation",
        description="Factor that multiplies the posterior's variances. validation: the best "
        "factor for predicting labels from the neighbours of sampled embeddings. The factor is "
        "chosen with images that the fit has not used. It is 1 without such images, or if the "
        "best candidate is the smallest or the largest candidate.",
    )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        structure = "" if self.structure == "diagonal" else f"{self.structure}_"
        return f"{self.method}_{structure}{self.approximation}_{self.split}"


class LaplaceConfig(_LaplaceConfig):
    """The Laplace posterior of the last layer, fitted after training."""

    method: Literal["laplace"] = "laplace"


class OnlineLaplaceConfig(_LaplaceConfig):
    """The Laplace posterior of the last layer, updated during training."""

    method: Literal["online_laplace"]
    memory_factor: float = Field(
        1e-3,
        gt=0,
        le=1,
        description="Weight of a minibatch in the moving average of the curvature.",
    )
    n_samples: int = Field(
        0, ge=0, description="Number of sampled last layers per training step. 0: only the mean."
    )
    initial_precision: float = Field(
        1e6,
        ge=0,
        description="Initial precision, which decays in training. A high initial precision keeps "
        "the first samples near the mean.",
    )
    training_prior_precision: float = Field(
        1.0,
        gt=0,
        description="Prior precision during training. After training, `prior_precision` is used.",
    )


class BayesianTripletConfig(_Posterior):
    """A variance head on the features, trained with the Bayesian triplet loss."""

    method: Literal["bayesian_triplet"]
    variance: Literal["isotropic", "diagonal"] = Field(
        "diagonal", description="One variance per image, or one per dimension."
    )
    prior: Literal["gaussian", "von_mises_fisher"] = Field(
        "gaussian", description="Prior distribution of an embedding."
    )
    prior_variance: float | None = Field(
        None, gt=0, description="Prior variance per dimension. If not set: 1 / embedding_dim."
    )
    kl_weight: float = Field(1e-6, ge=0, description="Weight of the KL divergence from the prior.")
    normalised: bool = Field(
        True,
        description="Compare embeddings on the unit sphere. false: training does not normalise "
        "embeddings, as in the Gaussian form of the paper's supplement. The service always "
        "compares directions.",
    )
    margin: float = Field(
        0.0, ge=0, description="Margin between positives and negatives, in squared distance."
    )
    mining: Literal["all", "semihard", "hard"] = Field(
        "all", description="Triplets to train on, among all triplets within the margin."
    )
    n_triplets: int = Field(5000, ge=1, description="Maximum triplets per minibatch.")

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys that the von Mises-Fisher prior does not support."""
        if self.prior == "von_mises_fisher" and self.variance == "diagonal":
            yield "prior", 'the von Mises-Fisher prior needs variance = "isotropic".'
        if self.prior == "von_mises_fisher" and not self.normalised:
            yield (
                "normalised",
                "the von Mises-Fisher prior needs the unit sphere. Drop `normalised`.",
            )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        form = "" if self.normalised else "_not_normalised"
        return f"{self.method}_{self.variance}_{self.prior}{form}"


class DeterministicConfig(_Posterior):
    """The encoder has no posterior, so embeddings have no variance."""

    method: Literal["deterministic"]


class MonteCarloDropoutConfig(_Posterior):
    """Monte Carlo dropout: embeddings with dropout at inference (Gal 2016)."""

    method: Literal["mc_dropout"]
    n_passes: int | None = Field(
        None,
        ge=2,
        description="Number of forward passes through small_cnn, with network.dropout_inside. If "
        "not set: 20. Dropout on the features alone needs no forward passes.",
    )


class EnsembleConfig(_Posterior):
    """Independently trained encoders; their disagreement is the variance of an embedding."""

    method: Literal["ensemble"]
    n_members: int = Field(5, ge=2, description="Number of encoders, trained separately.")

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return f"{self.method}_of_{self.n_members}"


class EmbeddingNormConfig(_Posterior):
    """The length of an embedding is the concentration of a von Mises-Fisher distribution."""

    method: Literal["embedding_norm"]
    temperature: Annotated[float, Field(gt=0)] | Literal["validation"] = Field(
        "validation",
        description="Number that divides the embedding's length. validation: the best number for "
        "predicting labels from the neighbours of sampled embeddings. The number is chosen with "
        "images that the encoder was not trained on. It is 1 without such images.",
    )


class LossPredictionConfig(_Posterior):
    """An uncertainty trained to predict the retrieval loss of an image."""

    method: Literal["loss_prediction"]
    form: Literal["ranking", "squared"] = Field(
        "ranking",
        description="Training of the head. ranking: the head ranks images by loss, as in "
        "pretrained visual uncertainties. squared: the head predicts the loss, with a squared "
        "error.",
    )
    epochs: int = Field(5, ge=1, description="Epochs of the head.")
    learning_rate: float = Field(1e-3, gt=0)
    temperature: Annotated[float, Field(gt=0)] | Literal["validation"] = Field(
        "validation",
        description="Factor that converts the predicted loss to a variance. validation: chosen in "
        "the same way as for embedding_norm.",
    )

    @property
    def name(self) -> str:
        """The name of the posterior in served answers."""
        return f"{self.method}_{self.form}"


class FaceEmbeddingConfig(_Posterior):
    """Probabilistic face embeddings: variances learned for a fixed encoder."""

    method: Literal["pfe"]
    epochs: int = Field(5, ge=1, description="Epochs of the variances.")
    learning_rate: float = Field(1e-3, gt=0)


class HedgedInstanceConfig(_Posterior):
    """Hedged instance embeddings: means and variances learned together."""

    method: Literal["hib"]
    kl_weight: float = Field(1e-4, ge=0, description="Weight of the KL divergence from the prior.")
    n_samples: int = Field(8, ge=1, description="Samples per embedding and training step.")


POST_HOC = frozenset(
    {"laplace", "embedding_norm", "loss_prediction", "deterministic", "mc_dropout", "pfe"}
)
"""Methods that train the encoder once with `training.objective`, and fit the uncertainty
afterwards."""

OF_ANY_OBJECTIVE = POST_HOC | {"ensemble"}
"""Methods that train encoders with `training.objective`. All other methods have their own loss."""


def _method(value: Any) -> str:  # noqa: ANN401 - a table of the file, or a section already made
    """Return the method of a posterior table; the default method is ``laplace``."""
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
"""The method that estimates the uncertainty of embeddings."""
