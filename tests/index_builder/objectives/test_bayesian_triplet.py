"""The Bayesian triplet loss against Monte Carlo, torch.distributions and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from index_builder.objectives import BayesianTripletLoss
from index_builder.objectives.distances import Prior, gaussian_divergence
from index_builder.objectives.von_mises_fisher import kl_divergence_to_uniform
from index_builder.posteriors.learned_variances import VarianceHead

N_FEATURES, DIM = 7, 16


def loss_of(
    *,
    isotropic: bool = False,
    margin: float = 0.0,
    kl_weight: float = 0.0,
    prior: Prior = "gaussian",
    normalised: bool = True,
) -> BayesianTripletLoss:
    head = VarianceHead(N_FEATURES, DIM, isotropic=isotropic, initial_variance=0.05)
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(head.layer.weight, 0, 0.3, generator=generator)
    loss = BayesianTripletLoss(
        head,
        prior=prior,
        prior_variance=0.1,
        kl_weight=kl_weight,
        margin=margin,
        mining="all",
        n_triplets=1000,
        generator=generator,
        normalised=normalised,
    )
    return loss.double()


def embeddings(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = nn.functional.normalize(torch.randn(3, DIM, generator=generator, dtype=torch.float64))
    variance = torch.rand(3, DIM, generator=generator, dtype=torch.float64) * 0.1
    return mean, variance


A, P, N = torch.tensor([0]), torch.tensor([1]), torch.tensor([2])


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_the_likelihood_is_the_probability_that_the_positive_leads_by_the_margin(
    margin: float,
) -> None:
    mean, variance = embeddings()
    ours = loss_of(margin=margin).negative_log_likelihood(mean, variance, A, P, N)
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(200_000, 3, DIM, generator=generator, dtype=torch.float64)
    a, p, n = (mean + variance.sqrt() * noise).unbind(1)
    tau = (a - p).square().sum(1) - (a - n).square().sum(1)
    share = float((tau < -margin).double().mean())
    assert 0.05 < share < 0.95
    # The normal approximation of τ is off by about 0.01 at 16 dimensions.
    assert math.exp(-ours.item()) == pytest.approx(share, abs=0.02)


def test_a_larger_margin_is_harder_to_keep() -> None:
    mean, variance = embeddings()
    without, with_margin = (
        loss_of(margin=margin).negative_log_likelihood(mean, variance, A, P, N).item()
        for margin in (0.0, 0.5)
    )
    assert with_margin > without


def test_a_hopeless_triplet_still_has_a_gradient() -> None:
    mean = torch.zeros(3, DIM)
    mean[0, 0] = mean[2, 0] = 1.0  # the negative lies on the anchor, the positive opposite
    mean[1, 0] = -1.0
    mean.requires_grad_()
    variance = torch.full((3, DIM), 1e-5, requires_grad=True)
    value = loss_of().negative_log_likelihood(mean, variance, A, P, N)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert value.item() > 1e3  # 1e-8 under a logarithm, as published, would end at 18
    assert mean.grad is not None
    assert variance.grad is not None
    assert torch.isfinite(mean.grad).all()
    assert mean.grad[1, 0] < 0
    assert (variance.grad[1] < 0).any()  # wider would be less wrong


def test_the_gaussian_divergence_is_that_of_torch_for_other_sizes_than_a_square() -> None:
    mean, variance = embeddings()
    theirs = kl_divergence(
        Normal(mean, variance.sqrt()), Normal(torch.zeros_like(mean), 0.1**0.5)
    ).sum(1)
    torch.testing.assert_close(gaussian_divergence(mean, variance, 0.1), theirs)


def test_the_divergence_from_the_sphere_is_that_of_the_concentration() -> None:
    mean, _ = embeddings()
    variance = torch.tensor([[0.01], [0.1], [100.0]], dtype=torch.float64).expand(3, DIM)
    ours = loss_of(isotropic=True, prior="von_mises_fisher").divergence(mean, variance)
    torch.testing.assert_close(ours, kl_divergence_to_uniform(1 / variance[:, 0], DIM))
    assert (ours > 0).all()  # κ − D log 2, as published, is negative here
    assert ours[2] < 1e-4


def test_its_slope_is_right_thousands_of_deviations_out() -> None:
    mean = torch.zeros(3, DIM)
    mean[0, 0] = mean[2, 0] = 1.0
    mean[1, 0] = -1.0
    for variance in (1e-5, 1e-7, 1e-8):
        spread = torch.full((3, DIM), variance)
        margin = torch.tensor(0.3, requires_grad=True)
        loss = loss_of()
        loss.margin = margin  # type: ignore[assignment] # a tensor, for its gradient
        (value,) = loss.negative_log_likelihood(mean, spread, A, P, N)
        value.backward()
        # −log Φ(−x) falls as x far out (Mills' ratio), and x as (m + E[τ]) / std τ with m.
        deviation = (2 * value.detach().double()).sqrt()
        std = 4.3 / deviation  # E[τ] = 4 here
        assert margin.grad is not None
        assert margin.grad.item() == pytest.approx((deviation / std).item(), rel=0.01)


@pytest.mark.parametrize("prior", ["gaussian", "von_mises_fisher"])
def test_the_whole_loss_is_differentiable_by_all_that_it_learns(prior: Prior) -> None:
    loss = loss_of(isotropic=True, kl_weight=1e-2, margin=0.1, prior=prior)
    layer = nn.Linear(N_FEATURES, DIM).double()
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(8, N_FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])

    def value(weight: Tensor, head: Tensor) -> Tensor:
        with torch.no_grad():
            layer.weight.copy_(weight)
            loss.head.layer.weight.copy_(head)
        found: Tensor = loss(features, labels, layer)
        return found

    weight, head = layer.weight.detach().clone(), loss.head.layer.weight.detach().clone()
    value(weight, head).backward()
    for parameter, place in ((layer.weight, 0), (loss.head.layer.weight, 1)):
        assert parameter.grad is not None
        step = torch.zeros_like(parameter)
        step[0, 2] = 1e-6
        up = [weight + step, head] if place == 0 else [weight, head + step]
        down = [weight - step, head] if place == 0 else [weight, head - step]
        slope = (value(*up) - value(*down)).item() / 2e-6
        assert parameter.grad[0, 2].item() == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_length_of_a_mean_counts_where_it_is_not_normalised(normalised: bool) -> None:
    """A last layer twice as large, by torch's divergence and Monte Carlo of the margin."""
    loss = loss_of(kl_weight=0.3, normalised=normalised)
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(3, N_FEATURES, generator=generator, dtype=torch.float64)
    layer = nn.Linear(N_FEATURES, DIM).double()
    nn.init.normal_(layer.weight, std=0.1, generator=generator)
    nn.init.normal_(layer.bias, std=0.1, generator=generator)
    labels = torch.tensor([0, 0, 1])  # two triplets: either image of label 0 is the anchor
    values = []
    for _ in range(2):
        mean = layer(features).detach()
        if normalised:
            mean = mean / mean.norm(dim=1, keepdim=True)
        spread = loss.head(features).detach()
        expected = 0.3 * kl_divergence(Normal(mean, spread.sqrt()), Normal(0.0, 0.1**0.5)).sum(1)
        leads = [
            loss.negative_log_likelihood(mean, spread, *torch.tensor([[a], [p], [2]]))
            for a, p in ((0, 1), (1, 0))
        ]
        ours = loss(features, labels, layer).detach()
        torch.testing.assert_close(ours, expected.mean() + torch.stack(leads).mean())
        values.append(float(ours))
        with torch.no_grad():
            layer.weight.mul_(2)
            layer.bias.mul_(2)
    assert (values[0] == pytest.approx(values[1])) is normalised


@pytest.mark.slow
def test_it_orders_images_and_is_wide_where_labels_contradict_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(80) % 4
    labels = torch.where(cluster < 3, cluster, torch.randint(3, (80,), generator=generator))
    centres = 2 * torch.randn(4, N_FEATURES, generator=generator)
    features = centres[cluster] + 0.2 * torch.randn(80, N_FEATURES, generator=generator)
    layer = nn.Linear(N_FEATURES, DIM)
    nn.init.normal_(layer.weight, 0, 0.4, generator=generator)
    nn.init.zeros_(layer.bias)
    loss = loss_of(margin=0.1, kl_weight=1e-3).float()
    nn.init.zeros_(loss.head.layer.weight)
    optimizer = torch.optim.Adam([*layer.parameters(), *loss.parameters()], lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        loss(features, labels, layer).backward()
        optimizer.step()
    with torch.inference_mode():
        unit = nn.functional.normalize(layer(features))
        variance = loss.head(features).sum(1)
        nearest = (unit @ unit.T).fill_diagonal_(-2).argmax(1)
    clear = cluster < 3
    assert (labels[nearest] == labels)[clear].all()
    assert variance[~clear].mean() > 1.5 * variance[clear].mean()
