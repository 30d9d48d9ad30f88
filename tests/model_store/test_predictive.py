from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.encoder.contract import Encoder
from model_store.predictive import Predictive, predict
from model_store.sphere import base_noise, mean_resultant_length, spherical_variance
from tests.laws.encoder_laws import EncoderLaws, images_for
from tests.support.fakes import FakeEncoder


class TestFakeEncoder(EncoderLaws):
    @pytest.fixture
    def encoder(self) -> Encoder:
        return FakeEncoder()


def some_predictive(seed: int = 0) -> Predictive:
    encoder = FakeEncoder(seed=seed)
    return predict(encoder.encode(images_for(encoder, 1, seed)), np.array([1.5]))[0]


def test_the_samples_are_the_predictive_distribution() -> None:
    encoder = FakeEncoder()
    embeddings = encoder.encode(images_for(encoder, 2, seed=5))
    (first, second) = predict(embeddings, np.zeros(2))
    for row, predictive in enumerate((first, second)):
        generator = np.random.default_rng(row)
        drawn = embeddings.mean[row] + np.sqrt(
            embeddings.variance[row]
        ) * generator.standard_normal((40_000, encoder.dim))
        drawn /= np.linalg.norm(embeddings.mean[row])
        samples = predictive.samples(base_noise("n", 40_000, encoder.dim))
        np.testing.assert_allclose(samples.mean(0), drawn.mean(0), atol=5e-3)
        np.testing.assert_allclose(samples.std(0), drawn.std(0), rtol=0.03, atol=1e-4)


def test_spherical_variance_is_one_minus_the_length_of_the_mean_sample() -> None:
    generator = np.random.default_rng(0)
    mean = generator.standard_normal((1, 200)).astype(np.float32)
    variance = generator.uniform(0.2, 0.9, (1, 200)).astype(np.float32)
    drawn = mean + np.sqrt(variance) * generator.standard_normal((20_000, 200))
    length = np.linalg.norm((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).mean(0))
    assert spherical_variance(mean, variance)[0] == pytest.approx(1 - length, rel=0.02)


def test_its_concentration_has_the_same_mean_resultant_length() -> None:
    predictive = some_predictive()
    length = mean_resultant_length(predictive.concentration, 6)
    assert 1 - length == pytest.approx(predictive.spherical_variance, rel=1e-9)


def test_the_same_image_gives_the_same_samples() -> None:
    one, other = some_predictive(), some_predictive()
    noise = base_noise("n", 13, len(one.direction))
    np.testing.assert_array_equal(one.samples(noise), other.samples(noise))


def test_bytes_come_back_bit_for_bit() -> None:
    predictive = some_predictive()
    back = Predictive.from_bytes(predictive.to_bytes())
    assert back is not None
    noise = base_noise("n", 13, len(predictive.direction))
    np.testing.assert_array_equal(back.samples(noise), predictive.samples(noise))
    np.testing.assert_array_equal(back.direction, predictive.direction)
    np.testing.assert_array_equal(back.variance, predictive.variance)
    assert back.spherical_variance == predictive.spherical_variance
    assert back.outlier_score == predictive.outlier_score


@given(st.binary(max_size=200))
def test_other_bytes_are_no_predictive_distribution(data: bytes) -> None:
    assert Predictive.from_bytes(data) is None


def test_a_truncated_entry_is_noticed() -> None:
    data = some_predictive().to_bytes()
    assert all(Predictive.from_bytes(data[:n]) is None for n in range(len(data)))
