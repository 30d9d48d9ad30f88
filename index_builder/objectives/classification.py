"""Classification objectives: cross-entropy as in Boudiaf et al., center loss, and SPCE."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.networks.trunk import drawn_from, dropped_out
from index_builder.objectives.objective import Objective, mean_of


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
    learning_rate : learning rate of the classifier.
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
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.classifier = nn.Linear(embedding_dim, n_labels)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.dropout = dropout
        self.smoothing = label_smoothing * n_labels / max(1, n_labels - 1)
        self.generator = generator
        self.learning_rate = learning_rate

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
    learning_rate : learning rate of classifier and centres.
    """

    sampling = "shuffled"

    def __init__(
        self,
        embedding_dim: int,
        n_labels: int,
        *,
        weight: float,
        generator: torch.Generator,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        with drawn_from(generator):
            self.classifier = nn.Linear(embedding_dim, n_labels)
        self.centres = nn.Parameter(torch.zeros(n_labels, embedding_dim))
        self.weight = weight
        self.learning_rate = learning_rate

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


def pairwise_cross_entropy(embeddings: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the pairwise cross-entropy of Boudiaf et al. 2020, Eq. 12; not for training.

    Proposition 1 of the paper states that this value is a lower bound of the cross-entropy of any
    linear classifier. The proposition is false: its proof infers that f₂ is convex from the
    diagonal blocks of the Hessian only.

    Parameters
    ----------
    embeddings : (B, D).
    labels : (B,) int64.
    weight : (K, D), weight of the classifier with the probabilities p_ik.

    Returns
    -------
    A scalar. Let λ be the smallest eigenvalue of all A_k = 1/n Σ_i (p_ik − p_ik²) z_i z_iᵀ. The
    result is not finite if λ is zero, for example if there are fewer images than dimensions.
    """
    n = len(labels)
    probabilities = (embeddings @ weight.T).softmax(1)
    spread = probabilities - probabilities.square()
    curvature = torch.einsum("ik,id,ie->kde", spread, embeddings, embeddings) / n
    least = torch.linalg.eigvalsh(curvature).min().clamp_min(0)
    soft_means = probabilities.T @ embeddings / n
    products = embeddings @ embeddings.T
    same = labels[:, None] == labels
    tightness = -(products * same).sum() / (2 * least * n**2)
    contrast = (embeddings @ soft_means.T / least).logsumexp(1)
    penalty = soft_means.square().sum() / (2 * least)
    value: Tensor = tightness + mean_of(contrast) - penalty
    return value
