"""The table `[training.objective]` of a configuration: what training minimises.

The defaults are those of the papers that the objectives come from, each named in its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from index_builder.configuration.section import Contradiction, Section

Mining = Literal["all", "semihard", "hard"]


OF_VIEWS = frozenset({"simclr", "mc_info_nce"})
"""Objectives that compare two views of each image, which augmentation has to make."""


class _ObjectiveConfig(Section):
    """The settings that all objectives share."""

    kind: str


class _Learning(_ObjectiveConfig):
    """An objective that learns something beside the encoder."""

    learning_rate: float = Field(
        1e-2, gt=0, description="Of what the objective learns beside the encoder."
    )


class ContrastiveConfig(_ObjectiveConfig):
    """Pairs of images (Hadsell et al. 2006; Warburg et al. 2023, Eq. 10 and 11)."""

    kind: Literal["contrastive"] = "contrastive"
    form: Literal["hadsell", "squared_margin", "unsquared"] = Field(
        "hadsell",
        description="At distance d and `training.margin` m, positives and negatives pay. hadsell: "
        "d²/2 and (m − d)₊²/2. squared_margin: d²/2 and (m² − d²)₊/2. unsquared: d and (m − d)₊, "
        "as the Laplace paper's code.",
    )


class TripletConfig(_ObjectiveConfig):
    """Triplets of images (Schroff et al. 2015; Hermans et al. 2017)."""

    kind: Literal["triplet"]
    distance: Literal["euclidean", "squared", "cosine"] = Field(
        "euclidean", description="On the unit sphere; cosine is 1 minus the similarity."
    )
    form: Literal["hinge", "soft"] = Field(
        "hinge", description="soft: log(1 + eˣ) in place of max(0, x), without a margin."
    )
    mining: Mining = Field(
        "all",
        description="hard: the farthest positive and the nearest negative of each anchor. "
        "semihard: triplets whose positive is the nearer one, by less than the margin.",
    )
    margin: float | None = Field(
        None, gt=0, description="Of the hinge; left out: 0.2. Soft triplets have none."
    )

    def contradictions(self) -> Iterator[Contradiction]:
        """Give the keys that need the margin, which soft triplets have not."""
        if self.form == "soft" and self.margin is not None:
            yield "margin", 'form = "soft" has no margin. Drop `margin`.'
        if self.form == "soft" and self.mining == "semihard":
            yield "mining", 'form = "soft" has no margin. Give "all" or "hard".'


class MarginConfig(_Learning):
    """The margin loss with distance-weighted negatives (Wu et al. 2017)."""

    kind: Literal["margin"]
    margin: float = Field(0.2, ge=0, description="Either side of the boundary.")
    boundary: float = Field(
        1.2, gt=0, lt=2, description="Distance between same and different, at first; it is learned."
    )
    cutoff: float = Field(
        0.5, gt=0, lt=1.4, description="Nearer negatives are drawn as if they were at it."
    )


class NPairsConfig(_ObjectiveConfig):
    """One positive among the negatives of a batch, by scalar products (Sohn 2016)."""

    kind: Literal["n_pairs"]
    norm_weight: float = Field(
        2e-3, ge=0, description="Of the embeddings' mean squared length, which nothing else bounds."
    )


class SimilaritiesConfig(_ObjectiveConfig):
    """A softmax over the cosines with all other images of a batch, in one of four forms.

    InfoNCE (van den Oord et al. 2018), soft nearest neighbours (Frosst et al. 2019), supervised
    contrastive (Khosla et al. 2020) and SNCA (Wu et al. 2018), all over the others k ≠ i.
    """

    kind: Literal["info_nce", "soft_nearest_neighbours", "supcon", "snca"]
    temperature: float = Field(0.1, gt=0)


class MultiSimilarityConfig(_ObjectiveConfig):
    """The multi-similarity loss (Wang et al. 2019)."""

    kind: Literal["multi_similarity"]
    alpha: float = Field(2.0, gt=0, description="Sharpness among positives.")
    beta: float = Field(50.0, gt=0, description="Sharpness among negatives.")
    base: float = Field(0.5, ge=-1, le=1, description="Cosine that both are compared with.")


class FastAPConfig(_ObjectiveConfig):
    """Average precision over a histogram of distances (Cakir et al. 2019)."""

    kind: Literal["fast_ap"]
    n_bins: int = Field(10, ge=2)


class SmoothAPConfig(_ObjectiveConfig):
    """Average precision with sigmoids for comparisons (Brown et al. 2020)."""

    kind: Literal["smooth_ap"]
    temperature: float = Field(0.01, gt=0)


class CrossEntropyConfig(_Learning):
    """Classification by the recipe of Boudiaf et al. 2020, sec. 5.3."""

    kind: Literal["cross_entropy"]
    dropout: float = Field(0.5, ge=0, lt=1, description="Of the embedding, in training.")
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="ε, of which each other label gets ε / (K − 1)."
    )


class CenterConfig(_Learning):
    """Cross-entropy with the center loss (Wen et al. 2016)."""

    kind: Literal["center"]
    weight: float = Field(3e-3, ge=0, description="Of half the squared distance to the centre.")


class SimplifiedPairwiseConfig(_ObjectiveConfig):
    """The simplified pairwise cross-entropy (Boudiaf et al. 2020, Eq. 15)."""

    kind: Literal["spce"]


class ProxyNcaConfig(_Learning):
    """ProxyNCA++ (Teh et al. 2020; Kirchhof et al. 2022, Eq. 1)."""

    kind: Literal["proxy_nca"]
    distance: Literal["cosine", "squared"] = Field(
        "cosine",
        description="cosine: minus the similarity. squared: ‖z − p‖² of vectors that are not "
        "normalised.",
    )
    temperature: float = Field(
        0.0556,
        gt=0,
        description="Of cosines; the paper's 1/9 is of ‖z − p‖², which is twice as much.",
    )


class ProxyAnchorConfig(_Learning):
    """ProxyAnchor (Kim et al. 2020)."""

    kind: Literal["proxy_anchor"]
    margin: float = Field(0.1, ge=0)
    alpha: float = Field(32.0, gt=0)


class SphereProxyConfig(_Learning):
    """Proxies that are von Mises-Fisher distributions (Kirchhof et al. 2022, App. C).

    An image is one as well: its concentration is the length of its embedding. They are compared by
    the expected likelihood, the Bhattacharyya coefficient, or KL(image ‖ proxy).
    """

    kind: Literal["el_vmf", "b_vmf", "kl_vmf"]
    temperature: float = Field(1.0, gt=0, description="At first; it is learned.")
    concentration: float = Field(50.0, gt=0, description="Of the proxies at first.")


class NonIsotropicProxyConfig(_Learning):
    """Non-isotropic von Mises-Fisher proxies, images as points (Kirchhof et al. 2022, Eq. 4)."""

    kind: Literal["nivmf"]
    temperature: float = Field(1.0, gt=0, description="At first; it is learned.")
    concentration: float = Field(50.0, gt=0, description="In each dimension, at first.")


class ExpectedLikelihoodConfig(NonIsotropicProxyConfig):
    """Non-isotropic proxies, images as distributions (Kirchhof et al. 2022, Eq. 5-6)."""

    kind: Literal["el_nivmf"]  # type: ignore[assignment]
    n_samples: int = Field(5, ge=1, description="Draws of each image for a step of training.")


class ProxyAnchorRegularisedConfig(ExpectedLikelihoodConfig):
    """ProxyAnchor beside EL-nivMF, with the same proxies (Kirchhof et al. 2022, Eq. 7)."""

    kind: Literal["panc_el_nivmf"]  # type: ignore[assignment]
    weight: float = Field(1.0, ge=0, description="Of ProxyAnchor.")
    margin: float = Field(0.1, ge=0, description="Of ProxyAnchor.")
    alpha: float = Field(32.0, gt=0, description="Of ProxyAnchor.")


class SimClrConfig(_ObjectiveConfig):
    """Two views of each image, no labels (Chen et al. 2020)."""

    kind: Literal["simclr"]
    temperature: float = Field(0.5, gt=0)


class MonteCarloInfoNceConfig(_ObjectiveConfig):
    """Two views of each image, each a von Mises-Fisher distribution (Kirchhof et al. 2023)."""

    kind: Literal["mc_info_nce"]
    concentration: float = Field(
        20.0, gt=0, description="Of two views' directions around each other, κ of the softmax."
    )
    n_samples: int = Field(16, ge=1, description="Draws of each view for a step of training.")


def _table(value: Any) -> Any:  # noqa: ANN401 - a table of the file, its name alone, or a section
    """The table of an objective of which only the kind was given."""
    return {"kind": value} if isinstance(value, str) else value


ObjectiveConfig = Annotated[
    ContrastiveConfig
    | TripletConfig
    | MarginConfig
    | NPairsConfig
    | SimilaritiesConfig
    | MultiSimilarityConfig
    | FastAPConfig
    | SmoothAPConfig
    | CrossEntropyConfig
    | CenterConfig
    | SimplifiedPairwiseConfig
    | ProxyNcaConfig
    | ProxyAnchorConfig
    | SphereProxyConfig
    | NonIsotropicProxyConfig
    | ExpectedLikelihoodConfig
    | ProxyAnchorRegularisedConfig
    | SimClrConfig
    | MonteCarloInfoNceConfig,
    Field(discriminator="kind"),
    BeforeValidator(_table),
]
"""Whatever training minimises: a table, or its ``kind`` alone."""
