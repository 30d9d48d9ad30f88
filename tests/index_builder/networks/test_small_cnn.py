from __future__ import annotations

import torch
from torch import nn

from index_builder.networks.trunk import SmallCNN
from tests.support.narrowing import not_none


def test_features_and_gradients_are_those_of_the_papers_order_of_layers() -> None:
    torch.manual_seed(0)
    trunk = SmallCNN()
    first, _, second, *_ = trunk.layers
    as_published = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    images = torch.randn(5, 3, 28, 28)
    gradients = []
    for network, seen in ((trunk, images), (as_published, images.mean(1, keepdim=True))):
        features = network(seen)
        trunk.zero_grad()
        features.square().sum().backward()
        gradients.append([not_none(weight.grad).clone() for weight in trunk.parameters()])
    torch.testing.assert_close(trunk(images), as_published(images.mean(1, keepdim=True)))
    torch.testing.assert_close(*gradients)
