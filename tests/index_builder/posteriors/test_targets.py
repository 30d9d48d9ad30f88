from __future__ import annotations

import pytest
import torch

from index_builder.posteriors.laplace.curvature import anchor_targets
from index_builder.posteriors.laplace.minibatches import minibatch_targets
from model_store.errors import DatasetError

LABELS = torch.tensor([4, 4, 4, 9, 9, 1])


def test_global_targets_count_the_pairs_of_the_data_set_without_trivial_ones() -> None:
    targets = anchor_targets(LABELS, "global", torch.float64)
    # 3 * 2 + 2 * 1 ordered positive pairs; 3 * 3 + 2 * 4 + 1 * 5 negative ones.
    expected = torch.tensor([1, 1, 1, 1, 1, 0]) / torch.tensor(8.0, dtype=torch.float64)
    torch.testing.assert_close(targets.positive, expected)
    torch.testing.assert_close(targets.negative, torch.full((6,), 1 / 22, dtype=torch.float64))


def test_per_anchor_targets_sum_to_one_over_anchors_that_have_a_positive() -> None:
    targets = anchor_targets(LABELS, "per_anchor", torch.float64)
    n_positive = torch.tensor([2, 2, 2, 1, 1, 0])
    n_negative = torch.tensor([3, 3, 3, 4, 4, 5])
    anchors = torch.tensor([0.2, 0.2, 0.2, 0.2, 0.2, 0.0], dtype=torch.float64)
    torch.testing.assert_close(targets.positive * n_positive, anchors)
    torch.testing.assert_close(targets.negative * n_negative, anchors)


def test_scalings_agree_for_classes_of_equal_size() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 2, 1, 0])
    per_anchor = anchor_targets(labels, "per_anchor", torch.float64)
    of_all = anchor_targets(labels, "global", torch.float64)
    torch.testing.assert_close(per_anchor.positive, of_all.positive)
    torch.testing.assert_close(per_anchor.negative, of_all.negative)


def test_one_class_alone_has_no_negatives() -> None:
    targets = anchor_targets(torch.zeros(4, dtype=torch.int64), "per_anchor", torch.float32)
    assert targets.negative.tolist() == [0, 0, 0, 0]
    torch.testing.assert_close(targets.positive, torch.full((4,), 1 / 12))


def test_data_without_a_positive_pair_are_refused() -> None:
    with pytest.raises(DatasetError, match="No label has two images among 3"):
        anchor_targets(torch.tensor([0, 1, 2]), "per_anchor", torch.float32)


def test_minibatch_targets_follow_equations_20_and_21() -> None:
    is_positive = torch.tensor([True, False, False, True, False])
    is_inside = torch.tensor([True, True, False, False, True])
    targets = minibatch_targets(is_positive, is_inside, torch.float64)
    third = 1 / 3  # negatives outside the margin count in |B_neg|
    expected = torch.tensor([0.5, -third, 0, 0.5, -third], dtype=torch.float64)
    torch.testing.assert_close(targets, expected)


@pytest.mark.parametrize("positive", [True, False])
def test_a_minibatch_of_one_kind_stays_finite(positive: bool) -> None:
    every = torch.ones(3, dtype=torch.bool)
    targets = minibatch_targets(every if positive else ~every, every, torch.float64)
    assert float(targets.sum()) == pytest.approx(1 if positive else -1)
