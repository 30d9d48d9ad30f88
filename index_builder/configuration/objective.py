"""The table `[training.objective]` of a configuration: the loss of the training.

The docstring of each class names the paper that the defaults come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from index_builder.configuration.schema import Contradiction, Section

Mining = Literal["all", "semihard", "hard"]


OF_VIEWS = frozenset({"simclr", "mc_info_nce"})
"""Objectives that compare two augmented views of each image."""


class _ObjectiveConfig(Section):
    """The settings that all objectives share."""

    kind: str


class _Learning(_ObjectiveConfig):
    """An objective that has trainable parameters."""

    learning_rate: float = Field(
        1e-2, gt=0, description="Learning rate of the objective's own parameters."
    )


class ContrastiveConfig(_ObjectiveConfig):
    """Pairs of images (Hadsell et al. 2006; Warburg et al. 2023, Eq. 10 and 11)."""

    kind: Literal["contrastive"] = "contrastive"
    form: Literal["hadsell", "squared_margin", "unsquared"] = Field(
        "hadsell",
        description="Losses of a positive and of a negative at distance d; m is `training.margin`. "
        "hadsell: d²/2 and (m − d)₊²/2. squared_margin: d²/2 and (m² − d²)₊/2. unsquared: d and "
        "(m − d)₊, as in the code of the Laplace paper.",
    )


class TripletConfig(_ObjectiveConfig):
    """Triplets of images (Schroff et al. 2015; Hermans et al. 2017)."""

    kind: Literal["triplet"]
    distance: Literal["euclidean", "squared", "cosine"] = Field(
        "euclidean", description="Distance on the unit sphere; cosine is 1 − similarity."
    )
    form: Literal["hinge", "soft"] = Field(
        "hinge", description="hinge: max(0, x). soft: log(1 + eˣ), without a margin."
    )
    mining: Mining = Field(
        "all",
        description="all: all triplets. hard: the farthest positive and the nearest negative of "
        "each anchor. semihard: triplets whose positive is nearer than the negative by less "
        "than the margin.",
    )
    margin: float | None = Field(
        None, gt=0, description="Margin of the hinge. If not set: 0.2. Soft triplets have none."
    )

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys that need a margin; soft triplets have no margin."""
        if self.form == "soft" and self.margin is not None:
            yield "margin", 'form = "soft" has no margin. Drop `margin`.'
        if self.form == "soft" and self.mining == "semihard":
            yield "mining", 'form = "soft" has no margin. Set "all" or "hard".'


class MarginConfig(_Learning):
    """The margin loss with distance-weighted negatives (Wu et al. 2017)."""

    kind: Literal["margin"]
    margin: float = Field(0.2, ge=0, description="Margin on each side of the boundary.")
    boundary: float = Field(
        1.2,
        gt=0,
        lt=2,
        description="Initial distance of the boundary between positives and negatives. The "
        "distance is learned in training.",
    )
    cutoff: float = Field(
        0.5,
        gt=0,
        lt=1.4,
        description="Minimum distance in the sampling weights of negatives. A smaller distance is "
        "replaced by this minimum.",
    )


class NPairsConfig(_ObjectiveConfig):
    """The N-pairs loss: one positive against all negatives of a batch (Sohn 2016)."""

    kind: Literal["n_pairs"]
    norm_weight: float = Field(
        2e-3, ge=0, description="Weight of the penalty on the mean squared length of embeddings."
    )


class SimilaritiesConfig(_ObjectiveConfig):
    """A softmax over the cosines of an image with all other images of a batch.

    The four forms are InfoNCE (van den Oord et al. 2018), soft nearest neighbours (Frosst et al.
    2019), supervised contrastive (Khosla et al. 2020) and SNCA (Wu et al. 2018). All sums are over
    k ≠ i.
    """

    kind: Literal["info_nce", "soft_nearest_neighbours", "supcon", "snca"]
    temperature: float = Field(0.1, gt=0)


class MultiSimilarityConfig(_ObjectiveConfig):
    """The multi-similarity loss (Wang et al. 2019)."""

    kind: Literal["multi_similarity"]
    alpha: float = Field(2.0, gt=0, description="Sharpness among positives.")
    beta: float = Field(50.0, gt=0, description="Sharpness among negatives.")
    base: float = Field(0.5, ge=-1, le=1, description="Reference cosine of all pairs.")


class FastAPConfig(_ObjectiveConfig):
    """FastAP: average precision computed from a histogram of distances (Cakir et al. 2019)."""

    kind: Literal["fast_ap"]
    n_bins: int = Field(10, ge=2)


class SmoothAPConfig(_ObjectiveConfig):
    """Smooth-AP: average precision with sigmoids instead of comparisons (Brown et al. 2020)."""

    kind: Literal["smooth_ap"]
    temperature: float = Field(0.01, gt=0)


class CrossEntropyConfig(_Learning):
    """Classification by the recipe of Boudiaf et al. 2020, sec. 5.3."""

    kind: Literal["cross_entropy"]
    dropout: float = Field(0.5, ge=0, lt=1, description="Dropout rate of the embedding.")
    label_smoothing: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Label smoothing ε: each of the K − 1 wrong labels has the "
        "target probability ε / (K − 1).",
    )


class CenterConfig(_Learning):
    """Cross-entropy with the center loss (Wen et al. 2016)."""

    kind: Literal["center"]
    weight: float = Field(
        3e-3,
        ge=0,
        description="Weight of the center loss: half the squared "
        "distance of an embedding to its label's center.",
    )


class SimplifiedPairwiseConfig(_ObjectiveConfig):
    """The simplified pairwise cross-entropy (Boudiaf et al. 2020, Eq. 15)."""

    kind: Literal["spce"]


class ProxyNcaConfig(_Learning):
    """ProxyNCA++ (Teh et al. 2020; Kirchhof et al. 2022, Eq. 1)."""

    kind: Literal["proxy_nca"]
    distance: Literal["cosine", "squared"] = Field(
        "cosine",
        description="Distance of an embedding z to a proxy p. cosine: the negative cosine. "
        "squared: ‖z − p‖² without normalisation.",
    )
    temperature: float = Field(
        0.0556,
        gt=0,
        description="Temperature of the softmax over cosines. The paper's temperature 1/9 is for "
        "‖z − p‖², which is twice 1 − cosine.",
    )


class ProxyAnchorConfig(_Learning):
    """ProxyAnchor (Kim et al. 2020)."""

    kind: Literal["proxy_anchor"]
    margin: float = Field(0.1, ge=0)
    alpha: float = Field(32.0, gt=0)


class SphereProxyConfig(_Learning):
    """Proxies that are von Mises-Fisher distributions (Kirchhof et al. 2022, App. C).

    An image is also a von Mises-Fisher distribution; its concentration is the length of the
    embedding. Images and proxies are compared by the expected likelihood (el_vmf), by the
    Bhattacharyya coefficient (b_vmf), or by KL(image ‖ proxy) (kl_vmf).
    """

    kind: Literal["el_vmf", "b_vmf", "kl_vmf"]
    temperature: float = Field(1.0, gt=0, description="Initial temperature; it is learned.")
    concentration: float = Field(50.0, gt=0, description="Initial concentration of proxies.")


class NonIsotropicProxyConfig(_Learning):
    """Non-isotropic von Mises-Fisher proxies; images are points (Kirchhof et al. 2022, Eq. 4)."""

    kind: Literal["nivmf"]
    temperature: float = Field(1.0, gt=0, description="Initial temperature; it is learned.")
    concentration: float = Field(50.0, gt=0, description="Initial concentration in each dimension.")


class ExpectedLikelihoodConfig(NonIsotropicProxyConfig):
    """Non-isotropic proxies; images are distributions (Kirchhof et al. 2022, Eq. 5-6)."""

    kind: Literal["el_nivmf"]  # type: ignore[assignment]
    n_samples: int = Field(5, ge=1, description="Samples per image and training step.")


class ProxyAnchorRegularisedConfig(ExpectedLikelihoodConfig):
    """The sum of ProxyAnchor and EL-nivMF with the same proxies (Kirchhof et al. 2022, Eq. 7)."""

    kind: Literal["panc_el_nivmf"]  # type: ignore[assignment]
    weight: float = Field(1.0, ge=0, description="Weight of ProxyAnchor.")
    margin: float = Field(0.1, ge=0, description="Margin of ProxyAnchor.")
    alpha: float = Field(32.0, gt=0, description="Scale α of ProxyAnchor.")


class SimClrConfig(_ObjectiveConfig):
    """SimCLR: compares two views of each image, without labels (Chen et al. 2020)."""

    kind: Literal["simclr"]
    temperature: float = Field(0.5, gt=0)


class MonteCarloInfoNceConfig(_ObjectiveConfig):
    """Two views of each image; a view is a von Mises-Fisher distribution (Kirchhof et al. 2023)."""

    kind: Literal["mc_info_nce"]
    concentration: float = Field(
        20.0, gt=0, description="Concentration κ in the softmax over the cosines of two views."
    )
    n_samples: int = Field(16, ge=1, description="Samples per view and training step.")


def _table(value: Any) -> Any:  # noqa: ANN401 - a table of the file, its name alone, or a section
    """Return the table of an objective; the value may be only the name of its kind."""
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
"""The loss of the training: a table, or only the name of its ``kind``."""
