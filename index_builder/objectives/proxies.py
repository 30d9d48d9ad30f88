"""Objectives with a proxy for each label: ProxyNCA++ and ProxyAnchor."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.networks.trunk import drawn_from
from index_builder.objectives.objective import Objective, mean_of


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
    learning_rate : learning rate of the proxies.
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
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.proxies = nn.Parameter(random_directions(n_labels, embedding_dim, generator))
        self.distance = distance
        self.temperature = temperature
        self.learning_rate = learning_rate

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
    learning_rate : learning rate of the proxies.
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
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.proxies = nn.Parameter(random_directions(n_labels, embedding_dim, generator))
        self.margin = margin
        self.alpha = alpha
        self.learning_rate = learning_rate

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
