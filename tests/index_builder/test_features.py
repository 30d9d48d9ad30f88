from __future__ import annotations

import pytest
import torch

from index_builder.configuration.encoder import NetworkConfig
from index_builder.datasets.small_images import digits
from index_builder.networks import MetricEncoder, build_encoder
from index_builder.networks.encoder import all_features


def encoder_of(seed: int) -> MetricEncoder:
    return build_encoder(NetworkConfig(), torch.Generator().manual_seed(seed)).eval()


def test_features_are_those_of_each_image_however_many_are_computed_at_once() -> None:
    encoder = encoder_of(0)
    images = digits().at(range(300))
    expected = encoder.features(torch.from_numpy(images.prepared(encoder.preprocessing)))
    torch.testing.assert_close(all_features(encoder, images), expected)


def test_what_a_trunk_was_asked_it_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, images, asked = encoder_of(1), digits(), []
    features = MetricEncoder.features

    def watched(self: MetricEncoder, batch: torch.Tensor) -> torch.Tensor:
        asked.append(len(batch))
        return features(self, batch)

    monkeypatch.setattr(MetricEncoder, "features", watched)
    first = all_features(encoder, images.at(range(200)))
    assert sum(asked) == 200
    with torch.no_grad():  # what is learned of the features changes none of them
        encoder.last_layer.weight.zero_()
    some = all_features(encoder, images.at(range(150, 10, -3)))
    assert sum(asked) == 200
    torch.testing.assert_close(some, first[list(range(150, 10, -3))], rtol=0, atol=0)
    other = all_features(encoder_of(2), images.at(range(200)))
    assert sum(asked) == 400
    assert not torch.allclose(other, first)
