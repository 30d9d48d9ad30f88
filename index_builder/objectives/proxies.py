"""Objectives with trained parameters for each label: a classifier, centres, or proxies.

A proxy is a point, or a distribution on the sphere. The embedding z of an image represents a von
Mises-Fisher distribution with direction z / ‖z‖ and concentration ‖z‖ (Kirchhof et al. 2022, sec.
3.2). The natural parameter of this distribution is z. All values of distributions are computed in
float64, with exact normalisers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from index_builder.networks.trunk import drawn_from, dropped_out
from index_builder.objectives.objective import Objective, mean_of
from index_builder.objectives.von_mises_fisher import (
    kl_divergence,
    log_bhattacharyya_coefficient,
    log_expected_likelihood,
    log_normaliser,
    sample_von_mises_fisher,
)


class CrossEntropyLoss(Objective):
    """Cross-entropy of a linear classifier on raw embeddings (Boudiaf et al. 2020, sec. 5.3).

    Weights and biases start at zero, and dropout is applied to the embedding. As in the paper,
    label smoothing gives ε / (K − 1) to each wrong label; torch gives ε / K to all labels.

    Parameters
    ----------
    embedding_dim : D.
    n_labels : K.
    dropout : share of the embedding's dimensions that are dropped.
    label_smoothing : ε.
    generator : draws the dropout masks.
    """

    sampling = "shuffled"

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        dropout: float,
        label_smoothing: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.classifier = nn.Linear(embedding_dim, n_labels)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.dropout = dropout
        self.smoothing = label_smoothing * n_labels / max(1, n_labels - 1)
        self.generator = generator

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        embeddings = dropped_out(last_layer(features), self.dropout, self.generator)
        return nn.functional.cross_entropy(
            self.classifier(embeddings), labels, label_smoothing=self.smoothing
        )


class CenterLoss(Objective):
    """Cross-entropy plus half the squared distance to a learned centre of the label.

    The loss is that of Wen et al. 2016. Both terms are averaged over the images. The centres are
    trained by gradient descent.

    Parameters
    ----------
    embedding_dim : D.
    n_labels : K.
    weight : λ, weight of the distances.
    generator : draws the initial classifier.
    """

    sampling = "shuffled"

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        weight: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        with drawn_from(generator):
            self.classifier = nn.Linear(embedding_dim, n_labels)
        self.centres = nn.Parameter(torch.zeros(n_labels, embedding_dim))
        self.weight = weight

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        embeddings = last_layer(features)
        pull = (embeddings - self.centres[labels]).square().sum(1) / 2
        loss = nn.functional.cross_entropy(self.classifier(embeddings), labels)
        total: Tensor = loss + self.weight * pull.mean()
        return total


def simplified_pairwise_cross_entropy(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of a classifier with weights θ_k = 1/n Σ_{j: y_j = k} z_j.

    −1/n² Σ_{i, j: y_i = y_j} z_i·z_j + 1/n Σ_i log Σ_k exp(1/n Σ_{j: y_j = k} z_i·z_j) (Boudiaf et
    al. 2020, Eq. 15). k runs over the labels of the batch. The sums include pairs of an image with
    itself.

    Parameters
    ----------
    embeddings : (B, D), not normalised.
    labels : (B,) int64.
    """
    _, codes = labels.unique(return_inverse=True)
    members = nn.functional.one_hot(codes).to(embeddings)
    logits = embeddings @ (members.T @ embeddings).T / len(labels)
    return nn.functional.cross_entropy(logits, codes)


def random_directions(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Draw unit vectors (n, D), uniform on the sphere."""
    with drawn_from(generator):
        return nn.functional.normalize(torch.randn(n, dim))


class ProxyNcaLoss(Objective):
    """−log exp(−d(z, p_y) / t) / Σ_c exp(−d(z, p_c) / t) over all proxies p_c, p_y included.

    ProxyNCA++ (Teh et al. 2020), as in Kirchhof et al. 2022, Eq. 1, but with the sign corrected.

    Parameters
    ----------
    embedding_dim : D.
    n_labels : number of proxies.
    distance : ``cosine``, −cos(z, p); or ``squared``, ‖z − p‖² of unnormalised vectors.
    temperature : t.
    generator : draws the proxies.
    """

    sampling = "shuffled"

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        distance: Literal["cosine", "squared"],
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.proxies = nn.Parameter(random_directions(n_labels, embedding_dim, generator))
        self.distance = distance
        self.temperature = temperature

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        embeddings = last_layer(features)
        if self.distance == "cosine":
            logits = nn.functional.normalize(embeddings) @ nn.functional.normalize(self.proxies).T
        else:
            logits = -(embeddings[:, None] - self.proxies).square().sum(-1)
        return nn.functional.cross_entropy(logits / self.temperature, labels)


class ProxyAnchorLoss(Objective):
    """`proxy_anchor_loss` with learned proxies.

    Parameters
    ----------
    embedding_dim : D.
    n_labels : number of proxies.
    margin, alpha : see `proxy_anchor_loss`.
    generator : draws the proxies.
    """

    sampling = "shuffled"

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        margin: float,
        alpha: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.proxies = nn.Parameter(random_directions(n_labels, embedding_dim, generator))
        self.margin = margin
        self.alpha = alpha

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return proxy_anchor_loss(
            last_layer(features), labels, self.proxies, self.margin, self.alpha
        )


def proxy_anchor_loss(
    embeddings: Tensor, labels: Tensor, proxies: Tensor, margin: float, alpha: float
) -> Tensor:
    """The ProxyAnchor loss (Kim et al. 2020, Eq. 4).

    The loss is the sum of two terms. The first term is log(1 + Σ_z e^{−α(cos(z, p) − δ)}) over the
    images z of the label of proxy p. This term is averaged over the proxies that have images in the
    batch. The second term is log(1 + Σ_z e^{α(cos(z, p) + δ)}) over the images z of all other
    labels. This term is averaged over all proxies.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64, rows of ``proxies``.
    proxies : (K, D), of any length.
    margin, alpha : δ and α.
    """
    cosines = nn.functional.normalize(embeddings) @ nn.functional.normalize(proxies).T
    own = nn.functional.one_hot(labels, len(proxies)).bool()
    pull = (-alpha * (cosines - margin)).masked_fill(~own, -torch.inf).logsumexp(0)
    push = (alpha * (cosines + margin)).masked_fill(own, -torch.inf).logsumexp(0)
    nothing = torch.zeros_like(pull)
    return mean_of(torch.logaddexp(nothing, pull), own.any(0).sum()) + mean_of(
        torch.logaddexp(nothing, push)
    )


_SHORTEST = 1e-6
"""Minimum length of an embedding; the length has no derivative at zero."""


class _DistributionProxies(Objective):
    """−log exp(−d(ρ_y, ζ) / t) / Σ_c exp(−d(ρ_c, ζ) / t) (Kirchhof et al. 2022, Eq. 2 and 6).

    The sign is corrected. The learned temperature t divides the logarithm of the mean over draws,
    as in Eq. 5-6. In Algorithm 1 of the paper, t is inside the mean.
    """

    sampling = "shuffled"

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return self.loss(last_layer(features), labels)

    def loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Loss of ``embeddings`` (B, D)."""
        logits = self.log_likelihoods(embeddings.double()) / self.log_temperature.double().exp()
        return nn.functional.cross_entropy(logits, labels).to(embeddings)

    @abstractmethod
    def log_likelihoods(self, embeddings: Tensor) -> Tensor:
        """Return −d from ``embeddings`` (B, D) float64 to all proxies, (B, K)."""


class SphereProxyLoss(_DistributionProxies):
    """Isotropic proxies in closed form: EL-vMF, B-vMF and KL-vMF (Kirchhof et al. 2022, App. C).

    Parameters
    ----------
    embedding_dim : D.
    n_labels : number of proxies.
    overlap : −d: the log expected likelihood (Eq. 25), the log Bhattacharyya coefficient (Eq. 24),
        or −KL(image ‖ proxy) (Eq. 39, corrected).
    concentration : initial concentration of the proxies.
    temperature : initial t.
    generator : draws the proxies' directions.
    """

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        overlap: Literal["el_vmf", "b_vmf", "kl_vmf"],
        concentration: float,
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__(temperature)
        self.directions = nn.Parameter(random_directions(n_labels, embedding_dim, generator))
        self.log_concentrations = nn.Parameter(torch.full((n_labels,), math.log(concentration)))
        self.overlap = overlap

    def log_likelihoods(self, embeddings: Tensor) -> Tensor:
        """Return −d to all proxies, (B, K)."""
        directions = nn.functional.normalize(self.directions.double())
        kappa = embeddings.norm(dim=1).clamp_min(_SHORTEST)[:, None]
        others = self.log_concentrations.double().exp()
        cosines = embeddings @ directions.T / kappa
        dim = embeddings.shape[1]
        if self.overlap == "el_vmf":
            return log_expected_likelihood(kappa, others, cosines, dim)
        if self.overlap == "b_vmf":
            return log_bhattacharyya_coefficient(kappa, others, cosines, dim)
        return -kl_divergence(kappa, others, cosines, dim)


class NonIsotropicProxyLoss(_DistributionProxies):
    """Non-isotropic proxies; −d is the log density of an image's direction (Kirchhof et al. 2022).

    Parameters
    ----------
    embedding_dim : D.
    n_labels : number of proxies.
    concentration : initial concentration of each dimension.
    temperature : initial t.
    generator : draws the proxies' directions.
    """

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        concentration: float,
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__(temperature)
        self.directions = nn.Parameter(random_directions(n_labels, embedding_dim, generator))
        self.log_concentrations = nn.Parameter(
            torch.full((n_labels, embedding_dim), math.log(concentration))
        )

    def log_likelihoods(self, embeddings: Tensor) -> Tensor:
        """Log densities of the images' directions, (B, K)."""
        return self.log_densities(nn.functional.normalize(embeddings))

    def log_densities(self, points: Tensor) -> Tensor:
        """Log densities of unit ``points`` (..., D) float64 under all proxies, (..., K)."""
        directions = nn.functional.normalize(self.directions.double())
        return non_isotropic_log_density(points, directions, self.log_concentrations.double().exp())


class ExpectedLikelihoodLoss(NonIsotropicProxyLoss):
    """EL-nivMF: the mean density over samples of the image's distribution (Kirchhof 2022, Eq. 5).

    Parameters
    ----------
    n_samples : N, number of samples of each image.
    generator : draws proxies and samples of images.
    others : see `NonIsotropicProxyLoss`.
    """

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        n_samples: int,
        generator: torch.Generator,
        **others: Any,  # noqa: ANN401 - of the base class
    ) -> None:
        super().__init__(embedding_dim, n_labels, generator=generator, **others)
        self.n_samples = n_samples
        self.generator = generator

    def log_likelihoods(self, embeddings: Tensor) -> Tensor:
        """Logs of the mean densities, (B, K)."""
        kappa = embeddings.norm(dim=1).clamp_min(_SHORTEST)
        drawn = sample_von_mises_fisher(
            embeddings / kappa[:, None], kappa, self.n_samples, self.generator
        )
        return self.log_densities(drawn).logsumexp(0) - math.log(self.n_samples)


class RegularisedProxyAnchorLoss(ExpectedLikelihoodLoss):
    """EL-nivMF plus ProxyAnchor; both losses use the same proxy directions (Kirchhof 2022, Eq. 7).

    Parameters
    ----------
    weight : ω, weight of ProxyAnchor.
    margin, alpha : parameters of ProxyAnchor.
    others : see `ExpectedLikelihoodLoss`.
    """

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        weight: float,
        margin: float,
        alpha: float,
        **others: Any,  # noqa: ANN401 - of the base class
    ) -> None:
        super().__init__(embedding_dim, n_labels, **others)
        self.weight = weight
        self.margin = margin
        self.alpha = alpha

    def loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Loss of ``embeddings`` (B, D)."""
        anchored = proxy_anchor_loss(embeddings, labels, self.directions, self.margin, self.alpha)
        return super().loss(embeddings, labels) + self.weight * anchored


def non_isotropic_log_density(points: Tensor, directions: Tensor, concentrations: Tensor) -> Tensor:
    """Return the normalised log density of non-isotropic von Mises-Fisher distributions.

    The log density is log C_D(‖Kμ‖) + ‖Kμ‖ cos(Kx, Kμ) + Σ log κ_d − D log ‖Kx‖, with K = diag κ.
    The map x → Kx / ‖Kx‖ has the surface element det K / ‖Kx‖^D. Kirchhof et al. 2022, Eq. 4 and
    14-22, use Π κ_d / ‖Kμ‖ instead. With this factor, the density does not integrate to 1. For K =
    κ I the distribution is von Mises-Fisher.

    Parameters
    ----------
    points : (..., D) unit.
    directions : (K, D) unit, μ.
    concentrations : (K, D) above 0, κ.

    Returns
    -------
    (..., K)
    """
    dim = points.shape[-1]
    stretched = concentrations * directions
    peak = stretched.norm(dim=1)
    lengths = (points.square() @ concentrations.square().T).sqrt()
    along = points @ (concentrations * stretched).T / lengths  # ‖Kμ‖ cos(Kx, Kμ)
    return log_normaliser(peak, dim) + along + concentrations.log().sum(1) - dim * lengths.log()
