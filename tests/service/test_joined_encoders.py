"""What several processes send at the same time is encoded together, and fails alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import EncoderStopped, EncodingFailed
from service.encoding.batch_size import Batches
from service.encoding.joined import JoinedEncoder
from tests.laws.encoder_laws import EncoderLaws, images_for
from tests.support.fakes import FakeEncoder
from tests.support.waiting import TIMEOUT_S, wait_until

Images = NDArray[np.uint8]
SPOILT = 255


class Watched(FakeEncoder):
    """One that remembers its turns; the first waits until it may begin."""

    def __init__(self, fails: Callable[[Images], Exception | None] = lambda _: None) -> None:
        super().__init__()
        self.turns: list[tuple[int, int | None]] = []
        self.may_begin = threading.Event()
        self._fails = fails

    def encode(self, images: Images, at_once: int | None = None) -> Embeddings:
        self.turns.append((len(images), at_once))
        assert self.may_begin.wait(TIMEOUT_S)
        error = self._fails(images)
        if error is not None:
            raise error
        return super().encode(images, at_once)


class TestItIsAnEncoder(EncoderLaws):
    @pytest.fixture
    def encoder(self) -> JoinedEncoder:
        return JoinedEncoder(FakeEncoder(), Batches(1, 4))


def asked_at_once(joined: JoinedEncoder, encoder: Watched, parts: list[Images]) -> list[object]:
    """Have the first part wait at work until all others wait behind it; what becomes of each."""

    def ask(part: Images) -> object:
        try:
            return joined.encode(part, joined.batches.size)
        except (EncoderStopped, EncodingFailed) as error:
            return error

    with ThreadPoolExecutor(len(parts)) as threads:
        asked = []
        for n, part in enumerate(parts):
            asked.append(threads.submit(ask, part))
            wait_until(lambda n=n: len(joined._waiting) == n and encoder.turns)  # type: ignore[misc]
        encoder.may_begin.set()
        return [one.result() for one in asked]


def parts_of(sizes: list[int]) -> list[Images]:
    images = images_for(FakeEncoder(), sum(sizes), seed=5) % SPOILT
    return np.split(images, np.cumsum(sizes)[:-1])


def assert_own(outcome: object, part: Images) -> None:
    assert isinstance(outcome, Embeddings)
    assert outcome.mean.tobytes() == FakeEncoder().encode(part).mean.tobytes()


@pytest.mark.parametrize(
    ("batches", "sizes", "turns"),
    [
        (Batches(1, 4), [1, 1, 1, 1], [1, 3]),
        (Batches(1, 4), [1, 2, 1, 3, 1, 1], [1, 3, 4, 1]),  # in their order, four at most
        (Batches(2, 1), [1, 1, 1, 1], [1, 2, 1]),
        (Batches(1, 1), [1, 1, 1], [1, 1, 1]),
        (Batches(1, 2), [1, 5, 1], [1, 5, 1]),  # one's own are its own affair
    ],
)
def test_what_waits_is_encoded_in_one_turn_and_each_gets_its_own(
    batches: Batches, sizes: list[int], turns: list[int]
) -> None:
    encoder = Watched()
    parts = parts_of(sizes)
    outcomes = asked_at_once(JoinedEncoder(encoder, batches), encoder, parts)
    assert encoder.turns == [(n, batches.size) for n in turns]
    for outcome, part in zip(outcomes, parts, strict=True):
        assert_own(outcome, part)


def test_a_turn_is_padded_as_a_whole() -> None:
    encoder = Watched()
    parts = parts_of([1, 2, 3])
    outcomes = asked_at_once(JoinedEncoder(encoder, Batches(4, 2), padded=True), encoder, parts)
    assert encoder.turns == [(4, 4), (8, 4)]
    for outcome, part in zip(outcomes, parts, strict=True):
        assert_own(outcome, part)


@pytest.mark.parametrize("kind", [EncoderStopped, EncodingFailed])
def test_nobodys_images_fail_over_those_of_another(kind: type[Exception]) -> None:
    encoder = Watched(lambda images: kind("spoilt") if (images == SPOILT).any() else None)
    parts = parts_of([1, 1, 2, 1])
    parts[2] = np.full_like(parts[2], SPOILT)
    outcomes = asked_at_once(JoinedEncoder(encoder, Batches(1, 8)), encoder, parts)
    assert [n for n, _ in encoder.turns] == [1, 4, 1, 2, 1]
    assert isinstance(outcomes[2], kind)
    for n in (0, 1, 3):
        assert_own(outcomes[n], parts[n])


def test_an_encoder_that_is_killed_over_several_costs_none_of_them() -> None:
    deaths = iter([None, EncoderStopped("killed")])
    encoder = Watched(lambda _: next(deaths, None))
    parts = parts_of([1, 1, 1])
    for outcome, part in zip(
        asked_at_once(JoinedEncoder(encoder, Batches(1, 8)), encoder, parts), parts, strict=True
    ):
        assert_own(outcome, part)


def test_what_does_not_fit_together_is_encoded_apart() -> None:
    encoder = Watched()
    parts = parts_of([1, 1, 1])
    parts[1] = parts[1].astype(np.float32)
    outcomes = asked_at_once(JoinedEncoder(encoder, Batches(1, 8)), encoder, parts)
    assert [n for n, _ in encoder.turns] == [1, 1, 1]
    assert all(isinstance(outcome, Embeddings) for outcome in outcomes)
