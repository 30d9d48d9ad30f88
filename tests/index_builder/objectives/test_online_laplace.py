"""Online Laplace as an objective: what it accumulates while a real training loop runs."""

from __future__ import annotations

import torch
from torch import nn

from index_builder.objectives import OnlineLaplaceLoss, contrastive_loss
from index_builder.posteriors import fit_laplace


def objective(layer: nn.Linear, n_samples: int = 0) -> OnlineLaplaceLoss:
    return OnlineLaplaceLoss(
        layer,
        200,
        margin=1.0,
        approximation="fixed",
        split="euclidean",
        memory_factor=0.02,
        prior_precision=5.0,
        initial_precision=100.0,
        n_samples=n_samples,
        generator=torch.Generator().manual_seed(0),
    )


LABELS = torch.arange(200) % 4
CENTRES = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
FEATURES = CENTRES[LABELS] + 0.7 * torch.randn(200, 6, generator=torch.Generator().manual_seed(2))


def test_the_point_form_minimises_the_contrastive_loss_and_the_prior() -> None:
    layer = nn.Linear(6, 3)
    value = objective(layer)(FEATURES[:20], LABELS[:20], layer)
    squares = layer.weight.square().sum() + layer.bias.square().sum()
    expected = contrastive_loss(layer(FEATURES[:20]), LABELS[:20], 1.0) + 5.0 / 400 * squares
    torch.testing.assert_close(value, expected)


def test_what_it_leaves_is_near_the_post_hoc_curvature() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    online = objective(layer)
    order = torch.Generator().manual_seed(3)
    for _ in range(400):
        chosen = [
            torch.nonzero(c == LABELS).flatten()[torch.randperm(50, generator=order)[:6]]
            for c in range(4)
        ]
        rows = torch.cat(chosen)
        online(FEATURES[rows], LABELS[rows], layer)
    state = online.state_dict()
    assert set(state) == {"weight_curvature", "bias_curvature"}
    left = OnlineLaplaceLoss.curvature(state)
    fit = fit_laplace(
        lambda: [FEATURES], LABELS, layer.weight, layer.bias, margin=1.0, prior_precision=1.0
    )
    ratio = left.weight.sum() / (200 * fit.weight_curvature.sum())
    assert abs(float(ratio) - 1) < 0.1


def test_the_expectation_form_trains_through_drawn_layers() -> None:
    layer = nn.Linear(6, 3)
    online = objective(layer, n_samples=3)
    values = [float(online(FEATURES[:40], LABELS[:40], layer).detach()) for _ in range(4)]
    assert len(set(values)) == 4
    online(FEATURES[:40], LABELS[:40], layer).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().min() > 0
