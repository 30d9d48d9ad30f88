"""The application in this process, over a real bundle."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.manifest import Manifest
from model_store.encoder.contract import Encoder
from model_store.encoder.onnx import OnnxEncoder, _start_session
from model_store.gallery import FaissGallery, NewItem, Thumbnail, write_faiss_gallery
from model_store.retriever import Retriever
from service.app import create_app
from service.encoding.batching import largest_useful_batch, useful_turn
from service.settings import Settings
from tests.end_to_end.keys import KeysFile
from tests.end_to_end.processes import Redis
from tests.support.fakes import FakeEncoder
from tests.support.local_client import LocalClient

StartClient = Callable[..., TestClient]

ODD_IDS = ["plain", "shoes/left 1.jpg", "50% off?", "#1 & more", "Füße/グリーン", "a+b=c;d", "/"]
NO_NUMBERS = {"plain": {"weight": math.nan, "deep": [math.inf, {"far": -math.inf}]}}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have set up a service of their own."""
    for name in [name for name in os.environ if name.startswith("VOUCH_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _what_was_opened_is_freed() -> Iterator[None]:
    """Look for galleries and encoders that are held in cycles: Python sees little of their memory.

    Without, the process of these tests grows to ten gigabytes.
    """
    yield
    global _resident_bytes  # noqa: PLW0603
    if psutil.Process().memory_info().rss > _resident_bytes + GROWTH_BYTES:
        gc.collect()
        _resident_bytes = psutil.Process().memory_info().rss


GROWTH_BYTES = 500 * 2**20
_resident_bytes = 0


@pytest.fixture(autouse=True)
def _encoders_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of tests start an engine, and an encoder of one fingerprint is one encoder."""
    for measure in (largest_useful_batch, useful_turn):
        name = f"service.encoding.queues.{measure.__name__}"
        monkeypatch.setattr(name, partial(_measured, measure))


_MEASURED: dict[tuple[Any, ...], int] = {}


def _measured(measure: Callable[..., int], encoder: Encoder, *limits: int) -> int:
    if not isinstance(encoder, OnnxEncoder):
        return measure(encoder, *limits)
    key = measure, encoder.fingerprint, limits
    if key not in _MEASURED:
        _MEASURED[key] = measure(encoder, *limits)
    return _MEASURED[key]


@pytest.fixture(autouse=True)
def _sessions_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of tests open a bundle of the same few encoders, whose sessions keep no state."""
    monkeypatch.setattr("model_store.encoder.onnx._start_session", _shared_session)


_shared_session = lru_cache(maxsize=4)(_start_session)


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that the service runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def bundle(digits_bundle: Path) -> Bundle:
    """The digits, opened as the current bundle of their directory."""
    return open_bundle(digits_bundle.parent, "cpu", threads=1)


@pytest.fixture(scope="session")
def bare_bundle(uncalibrated_bundle: Path) -> Bundle:
    """The digits without a decision layer, opened."""
    return open_bundle(uncalibrated_bundle, "cpu", threads=1)


@pytest.fixture(scope="session")
def digit(bundle: Bundle) -> bytes:
    """An image file that belongs."""
    return sample_of(bundle, belongs=True)


@pytest.fixture(scope="session")
def stranger(bundle: Bundle) -> bytes:
    """An image file from another world: the last sample is an outlier."""
    return sample_of(bundle, belongs=False)


def sample_of(bundle: Bundle, *, belongs: bool) -> bytes:
    files = [sample.file for sample in bundle.manifest.samples if sample.belongs == belongs]
    return (bundle.directory / files[-1]).read_bytes()


@pytest.fixture
def start(bundle: Bundle) -> Iterator[StartClient]:
    """Start the application, by default over the digits, with settings of one's own."""
    started: list[TestClient] = []

    def start_one(*bundles: Bundle, **settings: Any) -> TestClient:
        # Decoders in processes are tried in tests of their own: starting them takes a second.
        given = {"decoders": 0, "recalibrate": False, **settings}
        app = create_app(Settings(**given), bundles or [bundle])
        # A failure of the service is to be seen as a client sees it.
        client = LocalClient(app, raise_server_exceptions=False)
        started.append(client.__enter__())
        return started[-1]

    yield start_one
    for client in started:
        client.__exit__(None, None, None)


@pytest.fixture
def client(start: StartClient) -> TestClient:
    """The application over the digits, with default settings."""
    return start()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Redis]:
    """A Redis server for one test."""
    with Redis(tmp_path / "redis.log") as running:
        yield running


@pytest.fixture
def keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeysFile:
    """A file of keys, empty as yet, whose changes are noticed at once."""
    monkeypatch.setattr("service.access.keys.LOOK_AFTER_S", 0.0)
    return KeysFile(tmp_path / "keys.json")


@pytest.fixture
def odd_bundle(tmp_path: Path, bundle: Bundle) -> Bundle:
    """A gallery whose owner names items as people do."""
    encoder = FakeEncoder()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (len(ODD_IDS), 5, 5, 3), dtype=np.uint8)
    items = [
        NewItem(
            name,
            None,
            {"named": name} | NO_NUMBERS.get(name, {}),
            Thumbnail(name.encode(), "image/png"),
        )
        for name in ODD_IDS
    ]
    write_faiss_gallery(tmp_path, encoder.encode(images), items, encoder.fingerprint)
    manifest = Manifest(
        gallery={"name": "odd", "description": ""},
        encoder={"fingerprint": encoder.fingerprint},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    return Bundle(tmp_path, manifest, Retriever(encoder, FaissGallery(tmp_path), None))
