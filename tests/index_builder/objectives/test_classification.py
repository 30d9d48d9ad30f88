"""Objectives that classify, against sums by hand; and a bound of the paper that does not hold."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from index_builder.objectives.objective import mean_of
from index_builder.objectives.proxies import (
    CenterLoss,
    CrossEntropyLoss,
    simplified_pairwise_cross_entropy,
)
from tests.support.small_batches import LABELS, LIMITS, embeddings, gradient, total

DIM, N_LABELS = 5, 3


def identity() -> nn.Linear:
    """A last layer that changes nothing."""
    layer = nn.Linear(DIM, DIM).double()
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def cross_entropy(dropout: float = 0.0, n_labels: int = N_LABELS) -> CrossEntropyLoss:
    return CrossEntropyLoss(
        DIM, n_labels, dropout=dropout, label_smoothing=0.1, generator=generator()
    ).double()


def randomised(objective: nn.Module) -> None:
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator()))


def test_the_classifier_begins_at_zero() -> None:
    objective = cross_entropy()
    assert not any(value.any() for value in objective.learned().values())
    assert objective(embeddings(), LABELS, identity()).item() == pytest.approx(math.log(N_LABELS))


def test_labels_are_smoothed_as_the_paper_means_it() -> None:
    """1 − ε for the right label, ε / (K − 1) for the others; torch's own smoothing is another."""
    objective, z = cross_entropy(), embeddings()
    randomised(objective)
    logits = z @ objective.classifier.weight.T + objective.classifier.bias
    targets = torch.full((len(LABELS), N_LABELS), 0.1 / 2, dtype=torch.float64)
    targets[torch.arange(len(LABELS)), LABELS] = 0.9
    expected = -(targets * (logits - logits.exp().sum(1, keepdim=True).log())).sum(1).mean()
    value = objective(z, LABELS, identity())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)


def test_dropout_is_the_generators() -> None:
    z = embeddings()
    values = []
    for _ in range(2):
        objective = cross_entropy(dropout=0.5)
        nn.init.ones_(objective.classifier.weight)
        nn.init.eye_(objective.classifier.weight)
        values.append([objective(z, LABELS, identity()).item() for _ in range(2)])
    assert values[0] == values[1]
    assert values[0][0] != values[0][1]


def test_one_class_has_nothing_to_tell() -> None:
    labels, z = LIMITS["no negative"], embeddings(4)
    value = cross_entropy(n_labels=1)(z, labels, identity())
    assert value.item() == 0
    assert not gradient(value, z).any()


def test_center_loss_pulls_to_the_centre_of_the_label() -> None:
    objective = CenterLoss(DIM, N_LABELS, weight=0.3, generator=generator()).double()
    randomised(objective)
    z = embeddings()
    terms = []
    for row, label in zip(z, LABELS.tolist(), strict=True):
        logits = objective.classifier.weight @ row + objective.classifier.bias
        surprise = logits.exp().sum().log() - logits[label]
        terms.append(surprise + 0.3 / 2 * ((row - objective.centres[label]) ** 2).sum())
    expected = torch.stack(terms).mean()
    value = objective(z, LABELS, identity())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        gradient(value, objective.centres), gradient(expected, objective.centres)
    )


def spce_by_loops(z: Tensor, labels: Tensor) -> Tensor:
    n, names = len(labels), labels.unique().tolist()
    pull = total(z[i] @ z[j] for i in range(n) for j in range(n) if labels[i] == labels[j])
    push = total(
        total(
            (total(z[i] @ z[j] for j in range(n) if labels[j] == k) / n).exp() for k in names
        ).log()
        for i in range(n)
    )
    return -pull / n**2 + push / n


@pytest.mark.parametrize("labels", [LABELS, *LIMITS.values()], ids=["three", *LIMITS])
def test_spce_is_equation_15(labels: Tensor) -> None:
    z = embeddings(len(labels))
    value, expected = simplified_pairwise_cross_entropy(z, labels), spce_by_loops(z, labels)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-12)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)


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


class TestPairwiseCrossEntropy:
    """Boudiaf et al. 2020, Proposition 1: the cross-entropy is at least this. It is not."""

    @staticmethod
    def problem(seed: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 3, (40,), generator=draw)
        centres = torch.randn(3, 2, generator=draw, dtype=torch.float64)
        noise = torch.randn(40, 2, generator=draw, dtype=torch.float64)
        return centres[labels] + noise, labels

    @staticmethod
    def optimum(z: Tensor, labels: Tensor) -> Tensor:
        weight = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(z @ weight.T, labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        return weight.detach()

    def test_the_value_is_equation_12(self) -> None:
        z, labels = self.problem(0)
        weight = torch.tensor([[1.0, 0.5], [-0.3, 0.2], [0.1, -0.7]], dtype=torch.float64)
        n, names = len(labels), range(3)
        p = (z @ weight.T).softmax(1)
        blocks = [
            total((p[i, k] - p[i, k] ** 2) * torch.outer(z[i], z[i]) for i in range(n)) / n
            for k in names
        ]
        least = min(torch.linalg.eigvalsh(block)[0] for block in blocks)
        soft = [total(p[i, k] * z[i] for i in range(n)) / n for k in names]
        same = total(z[i] @ z[j] for i in range(n) for j in range(n) if labels[i] == labels[j])
        contrast = total(
            total((z[i] @ mean / least).exp() for mean in soft).log() for i in range(n)
        )
        penalty = total(mean @ mean for mean in soft)
        expected = -same / (2 * least * n**2) + contrast / n - penalty / (2 * least)
        assert pairwise_cross_entropy(z, labels, weight).item() == pytest.approx(expected.item())

    def test_its_bound_on_the_cross_entropy_is_false(self) -> None:
        violated = 0
        for seed in range(10):
            z, labels = self.problem(seed)
            weight = self.optimum(z, labels)
            entropy = nn.functional.cross_entropy(z @ weight.T, labels)
            violated += int(pairwise_cross_entropy(z, labels, weight) > entropy)
        assert violated == 10

    def test_of_fewer_images_than_dimensions_there_is_none(self) -> None:
        z, weight = embeddings(3), torch.zeros(2, DIM, dtype=torch.float64)
        value = pairwise_cross_entropy(z, torch.tensor([0, 0, 1]), weight)
        assert not math.isfinite(value.item()) or abs(value.item()) > 1e10
