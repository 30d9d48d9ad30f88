from __future__ import annotations

import pytest
import torch

from index_builder.posteriors.laplace.curvature import Curvature


def test_sums_scaling_and_cutting_off_act_on_weight_and_bias() -> None:
    first = Curvature(torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([-4.0]))
    second = Curvature(torch.tensor([[1.0, 1.0, -5.0]]), torch.tensor([6.0]))
    total = (first + second * 0.5).rectified()
    assert total.weight.tolist() == [[1.5, 0.0, 0.5]]
    assert total.bias.tolist() == [0.0]


def test_weight_and_bias_of_different_layers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"wanted \(D, F\) and \(D,\)"):
        Curvature(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"wanted \(D, F\) and \(D,\)"):
        Curvature(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"wanted \(D, F\) and \(D,\)"):
        Curvature(torch.ones(3, 3), torch.ones(3, 3))


@pytest.mark.parametrize("n_features", [1, 3])
def test_none_is_as_large_as_the_layer(n_features: int) -> None:
    none = Curvature.zeros_like(torch.ones(2, n_features))
    assert (none.weight.shape, none.bias.shape) == ((2, n_features), (2,))
