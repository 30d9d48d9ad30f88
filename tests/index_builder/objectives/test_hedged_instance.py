"""The hedged instance loss against brute force, Monte Carlo and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from index_builder.objectives import HedgedInstanceLoss
from index_builder.posteriors.learned_variances import UncertaintyModule

N_FEATURES, DIM = 7, 5
LABELS = torch.tensor([2, 0, 2, 0, 2, 1])


def loss_of(n_samples: int = 3, kl_weight: float = 0.0, seed: int = 0) -> HedgedInstanceLoss:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = UncertaintyModule(N_FEATURES, DIM, initial_variance=0.1)
        nn.init.constant_(module.scale, 0.7)
    generator = torch.Generator().manual_seed(seed)
    return HedgedInstanceLoss(
        module, kl_weight=kl_weight, n_samples=n_samples, generator=generator
    ).double()


@pytest.fixture
def features() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(len(LABELS), N_FEATURES, generator=generator, dtype=torch.float64)


@pytest.fixture
def layer() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(N_FEATURES, DIM).double()


def unit_samples(*shape: int) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return nn.functional.normalize(drawn, dim=-1)


def test_match_probabilities_are_means_over_all_pairs_of_samples() -> None:
    loss, samples = loss_of(), unit_samples(3, 4, DIM)
    match, no_match = loss.log_probabilities(samples)
    slope = math.log1p(math.exp(loss.raw_slope.item()))
    assert slope == pytest.approx(10)
    for i in range(4):
        for j in range(4):
            if i == j:
                continue
            logits = [
                loss.offset.item() - slope * (samples[k, i] - samples[m, j]).norm().item()
                for k in range(3)
                for m in range(3)
            ]
            expected = sum(1 / (1 + math.exp(-logit)) for logit in logits) / 9
            assert match[i, j].exp().item() == pytest.approx(expected)
    off = ~torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close((match.exp() + no_match.exp())[off], torch.ones(12).double())


def test_the_loss_weighs_matches_and_others_alike(features: Tensor, layer: nn.Linear) -> None:
    loss = loss_of()
    noise = torch.randn(
        3, len(LABELS), DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    drawn = layer(features) + loss.module(features).sqrt() * noise
    match, no_match = loss.log_probabilities(drawn / drawn.norm(dim=2, keepdim=True))
    pairs = [(i, j) for i in range(6) for j in range(i)]
    positive = [-match[i, j] for i, j in pairs if LABELS[i] == LABELS[j]]
    negative = [-no_match[i, j] for i, j in pairs if LABELS[i] != LABELS[j]]
    assert (len(positive), len(negative)) == (4, 11)
    expected = (sum(positive) / 4 + sum(negative) / 11) / 2
    torch.testing.assert_close(loss(features, LABELS, layer), expected)


def test_either_image_of_a_pair_pays_for_its_distance_from_the_prior(
    features: Tensor, layer: nn.Linear
) -> None:
    with_prior = loss_of(kl_weight=0.3)
    without = loss_of()(features, LABELS, layer)
    standard = torch.distributions.Normal(0.0, 1.0)
    embedding = torch.distributions.Normal(layer(features), with_prior.module(features).sqrt())
    divergence = torch.distributions.kl_divergence(embedding, standard).sum(1).mean()
    torch.testing.assert_close(
        with_prior(features, LABELS, layer) - without, 0.6 * divergence, rtol=1e-6, atol=0
    )


def test_the_whole_loss_is_differentiable_by_all_that_it_learns(
    features: Tensor, layer: nn.Linear
) -> None:
    loss = loss_of(kl_weight=0.1)
    parameters = {**dict(loss.named_parameters()), "last_layer": layer.weight}

    def value() -> Tensor:
        loss.generator.manual_seed(5)
        found: Tensor = loss(features, LABELS, layer)
        return found

    value().backward()
    for name, parameter in parameters.items():
        place = (0,) * parameter.ndim
        with torch.no_grad():
            parameter[place] += 1e-6
            above = value().item()
            parameter[place] -= 2e-6
            slope = (above - value().item()) / 2e-6
            parameter[place] += 1e-6
        assert parameter.grad is not None
        assert parameter.grad[place].item() == pytest.approx(slope, rel=1e-3, abs=1e-7), name


def test_hopeless_pairs_and_coinciding_samples_are_finite_and_have_a_gradient() -> None:
    loss = loss_of(n_samples=1).float()
    with torch.no_grad():
        loss.raw_slope.fill_(500.0)
        loss.offset.fill_(500.0)
    samples = torch.zeros(1, 3, DIM)
    samples[0, 0, 0] = samples[0, 1, 0] = 1.0
    samples[0, 2, 0] = -1.0
    samples.requires_grad_()
    match, no_match = loss.log_probabilities(samples)
    assert match[0, 2].item() == pytest.approx(-500, rel=1e-3)
    assert no_match[0, 1].item() == pytest.approx(-500, rel=1e-2)
    (match[0, 2] + no_match[0, 1]).backward()
    assert samples.grad is not None
    assert torch.isfinite(samples.grad).all()
    assert loss.offset.grad == pytest.approx(0, abs=1e-3)  # one pulls up, the other down


def test_a_minibatch_of_one_label_is_no_nan(features: Tensor, layer: nn.Linear) -> None:
    value = loss_of()(features, torch.zeros(6, dtype=torch.int64), layer)
    assert torch.isfinite(value)
    assert value > 0


def test_the_same_generator_draws_the_same_loss(features: Tensor, layer: nn.Linear) -> None:
    first, again, other = (loss_of(seed=seed)(features, LABELS, layer) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_it_orders_images_and_is_wide_where_labels_contradict_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(80) % 4
    labels = torch.where(cluster < 3, cluster, torch.randint(3, (80,), generator=generator))
    centres = 2 * torch.randn(4, N_FEATURES, generator=generator)
    features = centres[cluster] + 0.2 * torch.randn(80, N_FEATURES, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layer = nn.Linear(N_FEATURES, DIM)
    loss = loss_of(n_samples=4, kl_weight=1e-4).float()
    optimizer = torch.optim.Adam([*layer.parameters(), *loss.parameters()], lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        loss(features, labels, layer).backward()
        optimizer.step()
    with torch.inference_mode():
        mean, variance = layer(features), loss.module.eval()(features)
        unit = nn.functional.normalize(mean)
        nearest = (unit @ unit.T).fill_diagonal_(-2).argmax(1)
    spread = variance.sum(1) / mean.square().sum(1)
    clear = cluster < 3
    assert (labels[nearest] == labels)[clear].all()
    assert spread[~clear].mean() > 2 * spread[clear].mean()
