from __future__ import annotations

import torch

from index_builder.configuration import NetworkConfig
from index_builder.datasets.digits import digits
from index_builder.features import all_features
from index_builder.networks import build_encoder


def test_features_are_those_of_each_image_however_many_are_computed_at_once() -> None:
    encoder = build_encoder(NetworkConfig(), torch.Generator().manual_seed(0)).eval()
    images = digits().subset(range(300))
    expected = encoder.features(torch.from_numpy(images.prepared(encoder.preprocessing)))
    torch.testing.assert_close(all_features(encoder, images), expected)
