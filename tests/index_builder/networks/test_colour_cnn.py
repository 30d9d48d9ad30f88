from __future__ import annotations

import torch

from index_builder.configuration.encoder import NetworkConfig
from index_builder.networks import build_encoder


def test_it_sees_colour_and_gives_the_features_it_says() -> None:
    network = NetworkConfig(trunk="colour_cnn", embedding_dim=16)
    encoder = build_encoder(network, torch.Generator().manual_seed(0)).eval()
    red, blue = torch.zeros(2, 1, 32, 32, 3, dtype=torch.uint8)
    red[..., 0], blue[..., 2] = 255, 255
    features = encoder.features(torch.cat([red, blue]))
    assert features.shape == (2, encoder.trunk.n_features)
    assert not torch.allclose(features[0], features[1])
