"""The service as its users meet it: a process of its own, asked over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright

from model_store.bundles.bundle import Bundle, open_bundle
from tests.end_to_end.browsers import launched
from tests.end_to_end.keys import KeysFile
from tests.end_to_end.processes import TIMEOUT_S, Redis, Service
from tests.end_to_end.shown_page import Shown
from tests.end_to_end.stage import stage
from tests.support.forked_decoders import forked

ShownAs = Callable[..., Shown]


@pytest.fixture(autouse=True)
def _decoders_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index_builder.indexing.engines._started", forked)


@pytest.fixture(scope="module")
def service(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that no other file asks: verdicts follow the drift of all that has been asked."""
    with Service(digits_bundle, tmp_path_factory.mktemp("service") / "service.log") as running:
        yield running


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Redis]:
    """A Redis server for one test."""
    with Redis(tmp_path / "redis.log") as running:
        yield running


@pytest.fixture
def keys_file(tmp_path: Path) -> KeysFile:
    """A file of keys, empty as yet."""
    return KeysFile(tmp_path / "keys.json")


@pytest.fixture(scope="session")
def library(digits_bundle: Path) -> Bundle:
    """The same bundle, asked from Python."""
    return open_bundle(digits_bundle, "cpu", threads=1)


@pytest.fixture(scope="session")
def own_images(library: Bundle) -> dict[str, bytes]:
    """Pictures of 320 gallery items, lossless, by item: each is its own nearest neighbour."""
    gallery = library.retriever.gallery
    rows = np.random.default_rng(0).permutation(gallery.n_items)[:320]
    ids = [item.id for item in gallery.items(rows)]
    return {item_id: gallery.thumbnail(item_id).data for item_id in ids}


@pytest.fixture(scope="session")
def pictures(own_images: dict[str, bytes]) -> list[bytes]:
    """Some of them."""
    return list(own_images.values())[:32]


@pytest.fixture(scope="session")
def belonging(library: Bundle) -> list[bytes]:
    """Sample queries that the gallery has a match for."""
    return _samples(library, belongs=True)


@pytest.fixture(scope="session")
def samples(library: Bundle) -> list[bytes]:
    """All sample queries, those of another world among them."""
    return _samples(library, belongs=True) + _samples(library, belongs=False)


def _samples(bundle: Bundle, *, belongs: bool) -> list[bytes]:
    chosen = [sample for sample in bundle.manifest.samples if sample.belongs == belongs]
    assert chosen
    return [(bundle.directory / sample.file).read_bytes() for sample in chosen]


@pytest.fixture
def shown(shown_as: ShownAs) -> Iterator[Shown]:
    """A page that is not open yet; nothing but the browser is waited for."""
    expect.set_options(timeout=20_000)
    yield shown_as()
    expect.set_options(timeout=1000 * TIMEOUT_S)


@pytest.fixture
def fresh(browser: Browser) -> Iterator[Shown]:
    """The same for a test that does to it what cannot be undone."""
    expect.set_options(timeout=20_000)
    shown = Shown(browser)
    yield shown
    shown.close()
    expect.set_options(timeout=1000 * TIMEOUT_S)


@pytest.fixture(scope="module")
def shown_as(browser: Browser) -> Iterator[ShownAs]:
    """Return such a page in a browser's context of these options: the one that there was, renewed.

    No two of the same options are used at a time.
    """
    pages: dict[str, Shown] = {}

    def shown(**context: Any) -> Shown:
        key = repr(context)
        if key in pages:
            pages[key].renew()
        else:
            pages[key] = Shown(browser, **context)
        return pages[key]

    yield shown
    for one in pages.values():
        one.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real one."""
    expect.set_options(timeout=1000 * TIMEOUT_S)
    with sync_playwright() as playwright:
        try:
            browser = launched(playwright, stage().option)
        except Error as error:
            pytest.skip(f"no browser starts here: {error.message.splitlines()[0]}")
        yield browser
        browser.close()
