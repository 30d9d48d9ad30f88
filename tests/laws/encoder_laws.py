"""What every Encoder, real or fake, keeps."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import Encoder


def images_for(encoder: Encoder, n: int, seed: int) -> NDArray[np.uint8]:
    """Random images at the encoder's input size."""
    preprocessing = encoder.metadata.preprocessing
    shape = (n, preprocessing.height, preprocessing.width, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class EncoderLaws:
    """Inherit, and supply a fixture `encoder`."""

    def test_shapes_and_types(self, encoder: Encoder) -> None:
        out = encoder.encode(images_for(encoder, 3, seed=0))
        assert out.mean.shape == out.variance.shape == (3, encoder.dim)
        assert out.features.shape == (3, encoder.n_features)
        assert {out.mean.dtype, out.variance.dtype, out.features.dtype} == {np.dtype(np.float32)}

    def test_variance_is_not_negative_and_everything_finite(self, encoder: Encoder) -> None:
        out = encoder.encode(images_for(encoder, 4, seed=1))
        assert (out.variance >= 0).all()
        assert all(np.isfinite(part).all() for part in (out.mean, out.variance, out.features))

    @pytest.mark.parametrize("size", [1, 2, 7, 33])
    def test_an_answer_does_not_depend_on_its_batch(self, encoder: Encoder, size: int) -> None:
        images = images_for(encoder, size, seed=2)
        together = encoder.encode(images)
        alone = encoder.encode(images[-1:])
        for part in ("mean", "variance", "features"):
            expected = getattr(alone, part)[0]
            scale = np.abs(expected).max()
            np.testing.assert_allclose(getattr(together, part)[-1], expected, atol=1e-5 * scale)

    @pytest.mark.parametrize("at_once", [1, 2, 5, 9])
    def test_each_batch_gets_the_bits_it_gets_by_itself(
        self, encoder: Encoder, at_once: int
    ) -> None:
        images = images_for(encoder, 5, seed=4)
        found = encoder.encode(images, at_once)
        assert len(found) == 5
        for i in range(0, 5, at_once):
            wanted = encoder.encode(images[i : i + at_once])
            for part in ("mean", "variance", "features"):
                ours, theirs = getattr(found, part)[i : i + at_once], getattr(wanted, part)
                assert ours.tobytes() == theirs.tobytes()

    def test_different_images_differ(self, encoder: Encoder) -> None:
        out = encoder.encode(images_for(encoder, 2, seed=3))
        assert not np.allclose(out.mean[0], out.mean[1])
