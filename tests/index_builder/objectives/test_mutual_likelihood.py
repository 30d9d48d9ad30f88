"""The mutual likelihood score against torch.distributions and autograd."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from index_builder.objectives import MutualLikelihoodLoss
from index_builder.objectives.learned_variances import mutual_likelihood_score
from index_builder.posteriors.learned_variances import UncertaintyModule
from tests.support.narrowing import not_none

N_FEATURES, DIM = 7, 5
LABELS = torch.tensor([2, 0, 2, 0, 2, 1])


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def features(generator: torch.Generator) -> Tensor:
    return torch.randn(len(LABELS), N_FEATURES, generator=generator, dtype=torch.float64)


@pytest.fixture
def loss() -> MutualLikelihoodLoss:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = UncertaintyModule(N_FEATURES, DIM, initial_variance=0.1)
        nn.init.constant_(module.scale, 0.7)
    return MutualLikelihoodLoss(module).double()


@pytest.fixture
def layer() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Linear(N_FEATURES, DIM).double()


def test_the_score_is_the_density_of_the_difference_at_zero(generator: torch.Generator) -> None:
    delta = torch.randn(4, DIM, generator=generator, dtype=torch.float64)
    variance = torch.rand(4, DIM, generator=generator, dtype=torch.float64) + 0.01
    expected = Normal(delta, variance.sqrt()).log_prob(torch.zeros(())).sum(1)
    torch.testing.assert_close(mutual_likelihood_score(delta, variance), expected)


def test_the_score_is_the_expected_likelihood_of_one_embedding_under_the_other() -> None:
    generator = torch.Generator().manual_seed(3)
    means = torch.tensor([[0.3, -0.2], [0.0, 0.4]], dtype=torch.float64)
    variances = torch.tensor([[0.2, 0.5], [0.4, 0.1]], dtype=torch.float64)
    noise = torch.randn(400_000, 2, generator=generator, dtype=torch.float64)
    drawn = means[0] + variances[0].sqrt() * noise
    density = Normal(means[1], variances[1].sqrt()).log_prob(drawn).sum(1).exp()
    score = mutual_likelihood_score(means[0] - means[1], variances[0] + variances[1])
    assert score.exp().item() == pytest.approx(density.mean().item(), rel=0.01)


def test_the_loss_is_that_of_all_pairs_of_one_label(
    loss: MutualLikelihoodLoss, features: Tensor, layer: nn.Linear
) -> None:
    mean = layer(features) / layer(features).norm(dim=1, keepdim=True)
    variance = loss.module(features)
    scores = [
        Normal(mean[i] - mean[j], (variance[i] + variance[j]).sqrt()).log_prob(torch.zeros(()))
        for i, j in itertools.combinations(range(len(LABELS)), 2)
        if LABELS[i] == LABELS[j]
    ]
    assert len(scores) == 4
    expected = -torch.stack(scores).sum(1).mean()
    torch.testing.assert_close(loss(features, LABELS, layer), expected)


def test_the_encoder_stays_as_it_is(
    loss: MutualLikelihoodLoss, features: Tensor, layer: nn.Linear
) -> None:
    loss(features, LABELS, layer).backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    assert all(parameter.grad is not None for parameter in loss.parameters())


def test_a_minibatch_without_a_pair_teaches_nothing(
    loss: MutualLikelihoodLoss, features: Tensor, layer: nn.Linear
) -> None:
    value = loss(features, torch.arange(len(LABELS)), layer)
    value.backward()
    assert value == 0
    assert all(not not_none(parameter.grad).any() for parameter in loss.parameters())


def test_variances_end_as_wide_as_labels_are_scattered(layer: nn.Linear) -> None:
    """Where s = Δ² the score of a pair is largest: the variances must find the scatter."""
    generator = torch.Generator().manual_seed(4)
    cluster = torch.arange(120) % 3
    centres = 3 * torch.randn(3, N_FEATURES, generator=generator, dtype=torch.float64)
    scatter = torch.tensor([0.02, 0.2, 0.6], dtype=torch.float64)[cluster, None]
    noise = torch.randn(120, N_FEATURES, generator=generator, dtype=torch.float64)
    features = centres[cluster] + scatter * noise
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        loss = MutualLikelihoodLoss(UncertaintyModule(N_FEATURES, DIM, 0.1)).double()
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-2)
    for _ in range(400):
        optimizer.zero_grad()
        loss(features, cluster, layer).backward()
        optimizer.step()
    with torch.inference_mode():
        variance = loss.module(features)
        unit = nn.functional.normalize(layer(features))
    for label in range(3):
        spread = unit[cluster == label].var(0).sum()
        learned = variance[cluster == label].mean(0).sum()
        assert learned.item() == pytest.approx(spread.item(), rel=0.5), label
