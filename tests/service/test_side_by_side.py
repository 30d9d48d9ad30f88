"""Several batches of one call go side by side, and one alone on all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import EncoderError
from service.encoding.process import SideBySide
from tests.support.fakes import FakeEncoder
from tests.support.waiting import TIMEOUT_S

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 5, 5, 3), dtype=np.uint8)


class Meeting(FakeEncoder):
    """Encodes a batch only once so many are being encoded; notes their sizes."""

    def __init__(self, n: int, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.sizes: list[int] = []
        self._all_here = threading.Barrier(n, timeout=TIMEOUT_S)

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        self._all_here.wait()
        self.sizes.append(len(images) if at_once is None else -at_once)
        return super().encode(images)


def same(one: Embeddings, other: Embeddings) -> bool:
    return all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in ("mean", "variance", "features")
    )


def test_batches_go_side_by_side_and_come_in_order() -> None:
    whole, narrow = Meeting(1), Meeting(3)
    encoder = SideBySide(whole, lambda: narrow, 3)
    assert same(encoder.encode(IMAGES, 2), FakeEncoder().encode(IMAGES))
    assert sorted(narrow.sizes) == [1, 2, 2]
    assert whole.sizes == []


@pytest.mark.parametrize("at_once", [None, 5, 8])
def test_a_single_batch_has_all_threads(at_once: int | None) -> None:
    whole = Meeting(1)
    encoder = SideBySide(whole, lambda: pytest.fail("it is opened once it is needed"), 3)
    assert same(encoder.encode(IMAGES, at_once), FakeEncoder().encode(IMAGES))
    assert whole.sizes == [5]


def gone() -> FakeEncoder:
    raise EncoderError("The file is gone.")


@pytest.mark.parametrize("open_narrow", [gone, lambda: Meeting(2, seed=1)], ids=["gone", "another"])
def test_without_an_encoder_of_one_thread_batches_go_one_by_one(
    open_narrow: Callable[[], FakeEncoder],
) -> None:
    whole = Meeting(1)
    encoder = SideBySide(whole, open_narrow, 2)
    for _ in range(2):
        assert same(encoder.encode(IMAGES, 2), FakeEncoder().encode(IMAGES))
    assert whole.sizes == [-2, -2]


def test_an_image_that_cannot_be_embedded_fails_the_call_and_no_other() -> None:
    class Failing(FakeEncoder):
        def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
            if not images.any():
                raise ValueError("it shows nothing")
            return super().encode(images)

    encoder = SideBySide(FakeEncoder(), Failing, 2)
    with pytest.raises(ValueError, match="shows nothing"):
        encoder.encode(np.concatenate([IMAGES, np.zeros_like(IMAGES)]), 5)
    assert same(encoder.encode(IMAGES, 2), FakeEncoder().encode(IMAGES))
