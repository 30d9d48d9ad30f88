from __future__ import annotations

import pytest
import torch

from index_builder.networks import learned_whitening

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.arange(400) % 8
SCALES = torch.linspace(0.2, 4, 12, dtype=torch.float64)
CENTRES = torch.randn(8, 12, generator=GENERATOR, dtype=torch.float64)
FEATURES = CENTRES[LABELS] + SCALES * torch.randn(400, 12, generator=GENERATOR, dtype=torch.float64)


def whitening(features: torch.Tensor, labels: torch.Tensor, dim: int) -> torch.Tensor:
    """From blocks of uneven length."""
    return learned_whitening(features.split(150), labels, dim)


def covariance_within(rows: torch.Tensor) -> torch.Tensor:
    centres = torch.stack([rows[label == LABELS].mean(0) for label in range(8)])
    within = rows - centres[LABELS]
    return within.T @ within / (len(rows) - 8)


def test_differences_within_labels_are_whitened_up_to_the_shrinkage() -> None:
    weight = whitening(FEATURES, LABELS, 12)
    before = covariance_within(FEATURES)
    # W C Wᵀ = I − λ W Wᵀ for W (C + λ I) Wᵀ = I, with λ the mean eigenvalue.
    shrunk = before + before.diagonal().mean() * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(weight @ shrunk @ weight.T, torch.eye(12, dtype=torch.float64))


def test_it_is_the_mahalanobis_metric_in_closed_form() -> None:
    """‖W(φ − φ')‖² = (φ − φ')ᵀ M (φ − φ') with M = WᵀW, the inverse covariance, shrunk."""
    weight = whitening(FEATURES, LABELS, 12)
    metric = weight.T @ weight
    covariance = covariance_within(FEATURES)
    shrunk = covariance + covariance.diagonal().mean() * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(metric, torch.linalg.inv(shrunk))
    few = whitening(FEATURES, LABELS, 5)
    assert torch.linalg.eigvalsh(few.T @ few).min() > -1e-12  # of fewer dimensions: no negative one
    difference = FEATURES[0] - FEATURES[1]
    torch.testing.assert_close(
        (weight @ difference).square().sum(), difference @ metric @ difference
    )


def test_the_directions_kept_are_those_in_which_images_differ_most() -> None:
    whole = FEATURES @ whitening(FEATURES, LABELS, 12).T
    few = FEATURES @ whitening(FEATURES, LABELS, 5).T
    torch.testing.assert_close(few, whole[:, :5])
    spread = whole.var(0)
    assert (spread[:-1] >= spread[1:]).all()


def test_it_helps_where_labels_differ_along_quiet_features() -> None:
    def nearest_is_right(rows: torch.Tensor) -> float:
        unit = torch.nn.functional.normalize(rows)
        nearest = (unit @ unit.T).fill_diagonal_(-2).argmax(1)
        return float((LABELS[nearest] == LABELS).double().mean())

    whitened = FEATURES @ whitening(FEATURES, LABELS, 12).T
    assert nearest_is_right(whitened) > nearest_is_right(FEATURES) + 0.05


def test_the_same_features_give_the_same_layer() -> None:
    first = whitening(FEATURES.float(), LABELS, 4)
    assert first.dtype == torch.float32
    assert torch.equal(first, whitening(FEATURES.float(), LABELS, 4))
    assert (first.gather(1, first.abs().argmax(1, keepdim=True)) > 0).all()


def test_more_dimensions_than_features_are_refused() -> None:
    with pytest.raises(ValueError, match="12 features"):
        whitening(FEATURES, LABELS, 13)
