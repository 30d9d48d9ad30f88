"""One gallery at work: what it caches, and where it computes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.encoder.contract import Embeddings
from model_store.errors import UnsupportedImage
from model_store.gallery import parse_filter
from model_store.images import ImageLimits
from model_store.retriever import Retriever
from service.decoding.decoder import Prepared, ThreadDecoder
from service.encoding.cache import Cache, ProcessCache
from service.observability.metrics import Telemetry
from service.scheduling import N_RUNS, FairShare, Threads
from service.serving.engine import EngineResources, SearchEngine
from service.serving.lease import Lease
from service.serving.queries import SearchParameters
from tests.support.spoilt_encoders import is_plain, spoil
from tests.support.waiting import TIMEOUT_S

pytestmark = pytest.mark.anyio

ROOM = 2**20
ASKED = SearchParameters(limit=3)

Original = Callable[..., object]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2, thread_name_prefix="worker") as executor:
        yield executor


def resources(executor: ThreadPoolExecutor, cache: Cache | None = None) -> EngineResources:
    decoder = ThreadDecoder(executor, ImageLimits())
    return EngineResources(
        cache or ProcessCache(ROOM), decoder, Threads(executor, FairShare(2)), Telemetry()
    )


@pytest.fixture
async def engine(bundle: Bundle, executor: ThreadPoolExecutor) -> AsyncIterator[SearchEngine]:
    engine = await SearchEngine.start(bundle, resources(executor))
    yield engine
    await engine.close()


async def test_the_same_bytes_are_encoded_once(
    engine: SearchEngine,
    bundle: Bundle,
    digit: bytes,
    stranger: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = []
    encode = bundle.retriever.encoder.encode

    def counting(images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        encoded.append(len(images))
        return encode(images, at_once)

    monkeypatch.setattr(bundle.retriever.encoder, "encode", counting)
    found = [
        await Lease(engine, engine.bundle).search(image, ASKED)
        for image in (digit, stranger, digit, digit)
    ]
    assert [one.cache for one in found] == ["miss", "miss", "hit", "hit"]
    assert encoded == [1, 1]
    assert found[0].answer.matches == found[2].answer.matches


async def test_bundles_that_decide_differently_do_not_share_entries(
    bundle: Bundle, bare_bundle: Bundle, executor: ThreadPoolExecutor, digit: bytes
) -> None:
    """They have the same encoder, but only one of them measures outlier scores."""
    cache = ProcessCache(ROOM)
    bare = await SearchEngine.start(bare_bundle, resources(executor, cache))
    calibrated = await SearchEngine.start(bundle, resources(executor, cache))
    assert np.isnan(
        (await Lease(bare, bare.bundle).search(digit, ASKED)).answer.predictive.outlier_score
    )
    found = await Lease(calibrated, calibrated.bundle).search(digit, ASKED)
    assert found.cache == "miss"
    assert found.answer.decision.assessment.outlier_p_value is not None


async def test_replicas_of_a_bundle_share_entries(
    bundle: Bundle, executor: ThreadPoolExecutor, digit: bytes
) -> None:
    cache = ProcessCache(ROOM)
    one, other = [await SearchEngine.start(bundle, resources(executor, cache)) for _ in range(2)]
    await Lease(one, one.bundle).search(digit, ASKED)
    assert (await Lease(other, other.bundle).search(digit, ASKED)).cache == "hit"


async def test_the_event_loop_goes_on_while_an_image_is_encoded(
    engine: SearchEngine, bundle: Bundle, digit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    encode = bundle.retriever.encoder.encode

    def slow(images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        begun.set()
        assert released.wait(TIMEOUT_S), "nobody else could run"
        return encode(images, at_once)

    monkeypatch.setattr(bundle.retriever.encoder, "encode", slow)
    searching = asyncio.create_task(Lease(engine, engine.bundle).search(digit, ASKED))
    assert await asyncio.to_thread(begun.wait, 30)
    released.set()
    assert (await searching).cache == "miss"


async def test_nothing_is_computed_on_the_event_loop(
    engine: SearchEngine, bundle: Bundle, digit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, str] = {}
    retriever = bundle.retriever
    for owner, name in (
        (retriever.encoder, "encode"),
        (retriever, "predictives"),
        (retriever.gallery, "candidates"),
        (retriever.gallery, "items"),
    ):
        original: Original = getattr(owner, name)

        def noting(*args: object, name: str = name, original: Original = original) -> object:
            threads[name] = threading.current_thread().name
            return original(*args)

        monkeypatch.setattr(owner, name, noting)
    for _ in ("miss", "hit"):
        threads.clear()
        await Lease(engine, engine.bundle).search(digit, ASKED)
        assert all(thread.startswith(("worker", "encode")) for thread in threads.values()), threads
        assert {"candidates", "items"} <= set(threads)


async def test_an_image_that_cannot_be_decoded_is_not_kept(engine: SearchEngine) -> None:
    for _ in range(2):
        with pytest.raises(UnsupportedImage):
            await Lease(engine, engine.bundle).search(b"text", ASKED)


@pytest.mark.parametrize(
    ("is_local", "in_the_loop"), [(True, [True, False, True]), (False, [False] * 3)]
)
async def test_quick_searches_on_this_machine_are_done_in_the_event_loop_unless_they_filter(
    is_local: bool,
    in_the_loop: list[bool],
    bundle: Bundle,
    executor: ThreadPoolExecutor,
    digit: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(bundle.retriever.gallery), "is_local", is_local)
    engine = await SearchEngine.start(bundle, resources(executor))
    monkeypatch.setattr("service.scheduling.QUICK_S", math.inf)
    monkeypatch.setattr("service.scheduling.LATE_S", math.inf)
    found_by: list[threading.Thread] = []
    find = Retriever.find

    def noted(*args: Any, **options: Any) -> Answer:
        found_by.append(threading.current_thread())
        return find(*args, **options)

    monkeypatch.setattr(Retriever, "find", noted)
    filtered = replace(ASKED, where=parse_filter({"nothing": 1}))
    for _ in range(N_RUNS):
        await Lease(engine, engine.bundle).search(digit, ASKED)
    for asked in (ASKED, filtered, ASKED):
        await Lease(engine, engine.bundle).search(digit, asked)
    here = threading.current_thread()
    assert here not in found_by[: N_RUNS - 1]
    assert [thread is here for thread in found_by[-3:]] == in_the_loop
    await engine.close()


async def test_a_canary_does_not_pass_by_decoders_that_hang(
    bundle: Bundle, executor: ThreadPoolExecutor
) -> None:
    engine = await SearchEngine.start(bundle, resources(executor))
    before = engine.canary_at

    class Hanging(ThreadDecoder):
        async def decode(self, *args: object, **options: object) -> Prepared:
            await asyncio.sleep(3600)
            raise AssertionError

    engine._decoder = Hanging(executor, ImageLimits())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.canary(), 0.5)
    assert engine.canary_at == before
    await engine.close()


async def test_encoder_that_cannot_embed_a_picture_of_one_colour_is_served(
    bundle: Bundle, executor: ThreadPoolExecutor, digit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, is_plain)
    engine = await SearchEngine.start(bundle, resources(executor))
    assert (await Lease(engine, engine.bundle).search(digit, ASKED)).answer.matches
    await engine.close()


async def test_the_canary_passes_by_the_cache(bundle: Bundle, executor: ThreadPoolExecutor) -> None:
    class Untouchable(ProcessCache):
        async def get(self, key: str) -> None:
            raise AssertionError("asked")

        async def put(self, key: str, entry: object) -> None:
            raise AssertionError("filled")

    before = time.monotonic()
    engine = await SearchEngine.start(bundle, resources(executor, Untouchable(ROOM)))
    assert await engine.canary() > 0
    assert engine.canary_at > before
