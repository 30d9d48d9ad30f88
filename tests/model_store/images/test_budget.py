"""The limits on decoding hold while an image is decoded, and no longer."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator

import pytest

from model_store.images.decode import DecodingBudget, spending

PLENTY = DecodingBudget(cpu_s=10_000.0, memory_bytes=2**40)


@pytest.fixture(autouse=True)
def _limits_as_they_were() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_time_is_counted_while_an_image_is_decoded() -> None:
    with spending(PLENTY):
        left_s, again_s = signal.getitimer(signal.ITIMER_PROF)
        assert left_s == pytest.approx(PLENTY.cpu_s, abs=5)
        assert again_s == 0
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mapped")
def test_memory_is_limited_while_an_image_is_decoded() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    with spending(PLENTY):
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        assert PLENTY.memory_bytes < soft < PLENTY.memory_bytes + 2**38
    assert resource.getrlimit(resource.RLIMIT_AS) == (hard, hard)


def test_after_an_error_as_well() -> None:
    with pytest.raises(MemoryError), spending(PLENTY):
        raise MemoryError
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    assert soft == hard
