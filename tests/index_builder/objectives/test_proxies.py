"""Proxies that are points, against loops and the library."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses
from torch import Tensor

from index_builder.objectives.proxies import ProxyAnchorLoss, ProxyNcaLoss, proxy_anchor_loss
from tests.index_builder.objectives.test_classification import identity
from tests.support.small_batches import LABELS, LIMITS, embeddings, gradient, total, unit

N_LABELS = 4


def proxies() -> Tensor:
    """(4, 5), of which the last has no image."""
    return embeddings(N_LABELS, seed=7)


def nca(distance: str, temperature: float) -> ProxyNcaLoss:
    objective = ProxyNcaLoss(
        5,
        N_LABELS,
        distance=distance,  # type: ignore[arg-type]
        temperature=temperature,
        generator=torch.Generator().manual_seed(0),
    ).double()
    with torch.no_grad():
        objective.proxies.copy_(proxies())
    return objective


@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_proxy_nca(distance: str) -> None:
    objective, z, p, t = nca(distance, 0.3), embeddings(), proxies(), 0.3

    def d(row: Tensor, proxy: Tensor) -> Tensor:
        return -unit(row) @ unit(proxy) if distance == "cosine" else ((row - proxy) ** 2).sum()

    terms = []
    for row, label in zip(z, LABELS.tolist(), strict=True):
        likelihoods = torch.stack([(-d(row, proxy) / t).exp() for proxy in p])
        terms.append(-(likelihoods[label] / likelihoods.sum()).log())
    expected = torch.stack(terms).mean()
    value = objective(z, LABELS, identity())
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient(value, objective.proxies), gradient(expected, p))


def test_proxy_nca_is_the_librarys() -> None:
    """With squared distances of unit vectors, which are 2 − 2 cos, at twice the temperature."""
    library = losses.ProxyNCALoss(N_LABELS, 5, softmax_scale=9)
    library.proxies.data = proxies().detach()
    z = embeddings()
    value, expected = nca("cosine", 1 / 18)(z, LABELS, identity()), library(z, LABELS)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def anchor_by_loops(z: Tensor, labels: Tensor, p: Tensor, margin: float, alpha: float) -> Tensor:
    pull, push = [], []
    for k, proxy in enumerate(p):
        cosines = [unit(row) @ unit(proxy) for row in z]
        own = [c for c, label in zip(cosines, labels.tolist(), strict=True) if label == k]
        others = [c for c, label in zip(cosines, labels.tolist(), strict=True) if label != k]
        if own:
            pull.append(torch.log1p(total((-alpha * (c - margin)).exp() for c in own)))
        if others:
            push.append(torch.log1p(total((alpha * (c + margin)).exp() for c in others)))
    far = total(push) / len(p) if push else torch.zeros(())
    return torch.stack(pull).mean() + far


@pytest.mark.parametrize("labels", [LABELS, *LIMITS.values()], ids=["three", *LIMITS])
def test_proxy_anchor(labels: Tensor) -> None:
    z, p = embeddings(len(labels)), proxies()
    value = proxy_anchor_loss(z, labels, p, 0.2, 8.0)
    expected = anchor_by_loops(z, labels, p, 0.2, 8.0)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient(value, p), gradient(expected, p), rtol=1e-6, atol=1e-9)


def test_proxy_anchor_is_the_librarys() -> None:
    library = losses.ProxyAnchorLoss(N_LABELS, 5, margin=0.2, alpha=8)
    library.proxies.data = proxies().detach()
    z = embeddings()
    value, expected = proxy_anchor_loss(z, LABELS, proxies(), 0.2, 8.0), library(z, LABELS)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)


def test_proxies_are_drawn_from_the_generator_and_learned() -> None:
    first, again, other = (
        ProxyAnchorLoss(
            5, N_LABELS, margin=0.1, alpha=32.0, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    )
    assert torch.equal(first.learned()["proxies"], again.learned()["proxies"])
    assert not torch.equal(first.learned()["proxies"], other.learned()["proxies"])
    assert first.learned()["proxies"].norm(dim=1).tolist() == pytest.approx([1.0] * N_LABELS)


def test_the_gradient_by_the_cosine_is_equation_8() -> None:
    """(p_c − 1) / t for the image's own proxy and p_c / t for another: its own share, not p_y."""
    t, z, p = 0.3, embeddings(1), proxies()
    cosines = unit(z) @ unit(p).T
    shares = (cosines / t).exp() / (cosines / t).exp().sum()
    by_cosine = (shares - torch.tensor([0.0, 1.0, 0.0, 0.0])) / t
    expected = torch.autograd.grad(cosines, z, by_cosine.detach())[0]
    value = nca("cosine", t)(z, torch.tensor([1]), identity())
    torch.testing.assert_close(gradient(value, z), expected, rtol=1e-6, atol=1e-9)
