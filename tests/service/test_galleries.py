"""Bundles are exchanged while they are asked, and no answer is made of two."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.changes import open_live
from model_store.bundles.directory import activate, current_id, previous_id
from model_store.bundles.galleries import GalleryEntry
from model_store.bundles.manifest import ENCODER_FILE, read_manifest
from model_store.bundles.signatures import (
    new_key,
    read_private_key,
    read_public_key,
    write_signature,
)
from model_store.encoder.contract import Embeddings
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import (
    ActivationRefused,
    BundleNotFound,
    EncoderStopped,
    GalleryNotFound,
    NotReady,
    PointerUnreadable,
    QuotaExceeded,
    SampleNotFound,
    VouchError,
)
from model_store.gallery import Delete, NewItem, Thumbnail, Upsert, Vector
from model_store.images import ImageLimits
from service.decoding.decoder import ThreadDecoder
from service.encoding.cache import ProcessCache
from service.http.routes.items import get_sample
from service.observability.metrics import Telemetry
from service.scheduling import FairShare, Threads
from service.serving.created import CreatedGalleries, ListedGallery
from service.serving.engine import EngineResources, SearchEngine
from service.serving.queries import SearchParameters
from service.serving.registry import Galleries
from tests.support.bundle_copies import flip_a_byte, republished, unlinked
from tests.support.waiting import TIMEOUT_S, until, wait_until

pytestmark = pytest.mark.anyio

ASKED = SearchParameters(limit=3)
PERIOD_S = 0.05


@pytest.fixture
def root(digits_bundle: Path, tmp_path: Path) -> Path:
    """A directory of two bundles, the first of them current."""
    first = republished(digits_bundle, tmp_path / "root", description="first")
    republished(digits_bundle, tmp_path / "root", description="second")
    activate(tmp_path / "root", first)
    (tmp_path / "root" / "PREVIOUS").unlink()
    return tmp_path / "root"


@pytest.fixture
def ids(root: Path) -> tuple[str, str]:
    first = current_id(root)
    assert first is not None
    [second] = [path.name for path in root.iterdir() if path.is_dir() and path.name != first]
    return first, second


open_here = partial(open_bundle, provider="cpu", threads=1)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def resources(threads: ThreadPoolExecutor, telemetry: Telemetry) -> EngineResources:
    decoder = ThreadDecoder(threads, ImageLimits())
    return EngineResources(ProcessCache(2**20), decoder, Threads(threads, FairShare(2)), telemetry)


@pytest.fixture
async def galleries(
    root: Path, resources: EngineResources, telemetry: Telemetry
) -> AsyncIterator[Galleries]:
    galleries = Galleries(
        open_here,
        lambda bundle: SearchEngine.start(bundle, resources),
        PERIOD_S,
        telemetry.activation,
    )
    await galleries.add(open_here(root))
    yield galleries
    await galleries.close()


def served(galleries: Galleries) -> Bundle:
    [engine] = galleries.engines()
    return engine.bundle


async def test_another_bundle_is_served_from_then_on(
    galleries: Galleries, root: Path, ids: tuple[str, str], digit: bytes
) -> None:
    switched = await galleries.activate("digits", ids[1])
    assert (switched.bundle_id, switched.previous_id, switched.persisted) == (*ids[::-1], True)
    assert served(galleries).manifest.gallery["description"] == "second"
    assert (current_id(root), previous_id(root)) == ids[::-1]
    async with galleries.lease("digits") as engine:
        assert (await engine.search(digit, ASKED)).answer.matches


async def test_every_attempt_is_counted(
    galleries: Galleries, telemetry: Telemetry, root: Path, ids: tuple[str, str]
) -> None:
    def count(outcome: str) -> float | None:
        labels = {"gallery": "digits", "outcome": outcome}
        return telemetry.registry.get_sample_value("vouch_bundle_activations_total", labels)

    await galleries.activate("digits", ids[0])  # is served already
    assert (count("activated"), count("refused")) == (0, 0)  # an alert can see the first one
    await galleries.activate("digits", ids[1])
    await galleries.rollback("digits")
    assert (count("activated"), count("refused")) == (2, 0)
    flip_a_byte(unlinked(root / ids[1] / ENCODER_FILE))
    for unfit in (ids[1], "unknown"):
        with pytest.raises(VouchError):
            await galleries.activate("digits", unfit)
    assert (count("activated"), count("refused")) == (2, 2)


async def test_back_and_forth(galleries: Galleries, root: Path, ids: tuple[str, str]) -> None:
    with pytest.raises(ActivationRefused, match="no previous bundle"):
        await galleries.rollback("digits")
    await galleries.activate("digits", ids[1])
    for wanted in (ids[0], ids[1]):
        assert (await galleries.rollback("digits")).bundle_id == wanted
        assert served(galleries).manifest.id == current_id(root) == wanted


async def test_what_was_served_before_a_restart_is_known(
    galleries: Galleries, root: Path, ids: tuple[str, str]
) -> None:
    (root / "PREVIOUS").write_text(ids[1])
    assert (await galleries.rollback("digits")).bundle_id == ids[1]


async def test_a_request_ends_with_the_engine_it_began_with(
    galleries: Galleries, ids: tuple[str, str], digit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[str]()
    close = SearchEngine.close

    async def noting(engine: SearchEngine) -> None:
        closed.append(engine.bundle.manifest.id)
        await close(engine)

    monkeypatch.setattr(SearchEngine, "close", noting)
    async with galleries.lease("digits") as one, galleries.lease("digits") as other:
        await galleries.activate("digits", ids[1])
        await asyncio.sleep(0.05)
        assert closed == []
        for engine in (one, other):
            assert (await engine.search(digit, ASKED)).answer.matches
            assert engine.bundle.manifest.id == ids[0]
    await until(lambda: closed == [ids[0]])


async def test_a_bad_bundle_is_refused_and_the_good_one_served_on(
    galleries: Galleries, root: Path, ids: tuple[str, str], digit: bytes
) -> None:
    flip_a_byte(unlinked(root / ids[1] / ENCODER_FILE))
    with pytest.raises(ActivationRefused, match=r"differs from its manifest"):
        await galleries.activate("digits", ids[1])
    assert served(galleries).manifest.id == current_id(root) == ids[0]
    async with galleries.lease("digits") as engine:
        assert (await engine.search(digit, ASKED)).answer.matches


async def test_a_bundle_of_nobody_trusted_is_refused_and_a_signed_one_served(
    root: Path, ids: tuple[str, str], tmp_path: Path, resources: EngineResources, digit: bytes
) -> None:
    public = read_public_key(new_key(tmp_path / "publisher.key"))
    private = read_private_key(tmp_path / "publisher.key")
    first, second = (root / bundle_id for bundle_id in ids)
    write_signature(first, read_manifest(first), private)
    trusting = partial(open_here, trusted=[public])
    start = partial(SearchEngine.start, resources=resources)
    galleries = Galleries(trusting, start, PERIOD_S)
    await galleries.add(trusting(root))
    try:
        with pytest.raises(ActivationRefused, match=rf"{second.name} is not signed"):
            await galleries.activate("digits", second.name)
        assert served(galleries).manifest.id == first.name
        write_signature(second, read_manifest(second), private)
        await galleries.activate("digits", second.name)
        assert served(galleries).manifest.id == second.name
        async with galleries.lease("digits") as lease:
            assert (await lease.search(digit, ASKED)).answer.matches
    finally:
        await galleries.close()


async def test_one_that_opens_but_does_not_answer_is_refused(
    galleries: Galleries, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(
        encoder: OnnxEncoder, images: NDArray[np.uint8], at_once: int | None = None
    ) -> Embeddings:
        raise EncoderStopped("no memory")

    monkeypatch.setattr("service.encoding.batching._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(OnnxEncoder, "encode", fail)
    with pytest.raises(ActivationRefused, match=r"did not answer a canary: no memory"):
        await galleries.activate("digits", ids[1])
    assert served(galleries).manifest.id == ids[0]


async def test_another_gallery_does_not_take_its_place(
    galleries: Galleries, root: Path, ids: tuple[str, str]
) -> None:
    other = republished(root / ids[0], root, name="letters")
    with pytest.raises(ActivationRefused, match="'letters', not 'digits'"):
        await galleries.activate("digits", other)


@pytest.mark.parametrize("name", ["0" * 16, "..", "../root", "", ".", "CURRENT"])
async def test_only_bundles_can_be_activated(galleries: Galleries, name: str) -> None:
    with pytest.raises(BundleNotFound):
        await galleries.activate("digits", name)


async def test_a_gallery_must_be_served(galleries: Galleries, ids: tuple[str, str]) -> None:
    for attempt in (galleries.activate("letters", ids[1]), galleries.rollback("letters")):
        with pytest.raises(GalleryNotFound, match="no gallery 'letters'"):
            await attempt


async def test_what_is_named_itself_stays(
    root: Path, ids: tuple[str, str], galleries: Galleries
) -> None:
    await galleries.add(open_here(root / ids[0]))
    assert [one.id for one in await galleries.history(served(galleries))] == [ids[0]]
    with pytest.raises(ActivationRefused, match="directory that contains the bundles"):
        await galleries.activate("digits", ids[1])


async def test_current_is_followed_back_to_what_it_named_before(
    galleries: Galleries, root: Path, ids: tuple[str, str]
) -> None:
    """However the service came to serve another bundle meanwhile, and whenever it looks."""
    watching = asyncio.create_task(galleries.watch())
    for _ in range(3):
        await galleries.activate("digits", ids[1])
        activate(root, ids[0])  # mostly before the watch has looked again
        await until(lambda: served(galleries).manifest.id == ids[0])
    watching.cancel()


async def test_a_look_at_current_that_comes_late_is_forgotten(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before an activation and considered after it, it names what nobody wants any more."""
    await galleries.activate("digits", ids[1])
    late, seen = [ids[0]], []

    def read(root: Path) -> str | None:
        seen.append(late.pop() if late else current_id(root))
        return seen[-1]

    monkeypatch.setattr("service.serving.served.current_id", read)
    watching = asyncio.create_task(galleries.watch())
    await until(lambda: len(seen) > 1)  # it was looked at again before following it
    assert served(galleries).manifest.id == ids[1]
    activate(root, ids[0])
    await until(lambda: served(galleries).manifest.id == ids[0])
    watching.cancel()


async def test_where_current_cannot_be_written_it_is_overruled_until_it_changes(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(root: Path, bundle_id: str) -> None:
        raise OSError(30, "Read-only file system")

    watching = asyncio.create_task(galleries.watch())
    with monkeypatch.context() as patched:
        patched.setattr("service.serving.registry.activate", read_only)
        assert not (await galleries.activate("digits", ids[1])).persisted
    await asyncio.sleep(5 * PERIOD_S)
    assert served(galleries).manifest.id == ids[1]
    activate(root, ids[1])
    await until(lambda: not galleries._following._overruled)
    activate(root, ids[0])
    await until(lambda: served(galleries).manifest.id == ids[0])
    watching.cancel()


async def test_of_what_is_refused_once_it_is_wanted_no_more_nothing_is_said(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`CURRENT` names again what is served, before the other bundle has failed to open."""
    begun, may_fail = threading.Event(), threading.Event()

    def bad(*_: object) -> Bundle:
        begun.set()
        assert may_fail.wait(TIMEOUT_S)
        raise BundleNotFound("It is gone.")

    monkeypatch.setattr("service.serving.served.Opener._open_within", bad)
    activate(root, ids[1])
    await galleries.require_current()
    assert await asyncio.to_thread(begun.wait, 10)
    activate(root, ids[0])
    await galleries.require_current()
    may_fail.set()
    assert await galleries._following.changed_over("digits")
    await galleries.require_current()
    assert galleries.refused == {}


async def test_current_that_can_be_read_again_is_complained_of_no_more(
    galleries: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a disk was away for a moment: nothing was written to it meanwhile."""

    def away(_: Path) -> None:
        raise PointerUnreadable("CURRENT cannot be read (Input/output error).")

    await galleries.require_current()
    with monkeypatch.context() as patched:
        patched.setattr("service.serving.served.file_mark", lambda _: None)
        patched.setattr("service.serving.served.current_id", away)
        await galleries.require_current()
        assert "cannot be read" in galleries.refused["digits"]
    await galleries.require_current()
    assert galleries.refused == {}


def late_look(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the next look at `CURRENT` wait with what it has read; return its begin and its end."""
    begun, may_end = threading.Event(), threading.Event()

    def read(root: Path) -> str | None:
        named = current_id(root)
        if not begun.is_set():
            begun.set()
            assert may_end.wait(TIMEOUT_S)
        return named

    monkeypatch.setattr("service.serving.served.current_id", read)
    return begun, may_end


async def test_a_look_that_began_before_current_was_spoilt_does_not_approve_of_it(
    galleries: Galleries, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read what `CURRENT` named before."""
    begun, may_end = late_look(monkeypatch)
    looking = asyncio.create_task(galleries.require_current())
    assert await asyncio.to_thread(begun.wait, 10)
    (root / "CURRENT").write_bytes(b"../x")
    await galleries.require_current()
    may_end.set()
    await looking
    assert "names no bundle" in galleries.refused["digits"]


async def test_a_look_that_began_before_current_was_overruled_does_not_lift_it(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found that `CURRENT` names what was served when it began."""
    begun, may_end = late_look(monkeypatch)
    monkeypatch.setattr("service.serving.registry.persist", lambda _directory: False)
    looking = asyncio.create_task(galleries.require_current())
    assert await asyncio.to_thread(begun.wait, 10)
    assert not (await galleries.activate("digits", ids[1])).persisted
    may_end.set()
    await looking
    async with galleries.lease("digits"):
        assert not await galleries._following.changed_over("digits")
    assert served(galleries).manifest.id == ids[1]


async def test_a_change_over_that_waits_does_not_undo_an_activation(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`CURRENT` was written before it, so that the activation is the later decision."""
    monkeypatch.setattr("service.serving.registry.persist", lambda _directory: False)
    assert not (await galleries.activate("digits", ids[1])).persisted
    followed = await galleries.activate("digits", ids[0], follow=True)
    assert followed.bundle_id == served(galleries).manifest.id == ids[1]


async def test_an_activation_once_begun_is_brought_to_its_end(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if whoever asked for it has gone away, or was not answered in time."""
    begun, may_open = threading.Event(), threading.Event()

    def slowly(directory: Path) -> Bundle:
        begun.set()
        assert may_open.wait(TIMEOUT_S)
        return open_here(directory)

    opener = replace(galleries._opener, open_bundle=slowly)
    monkeypatch.setattr(galleries, "_opener", opener)
    asking = asyncio.create_task(galleries.activate("digits", ids[1]))
    assert await asyncio.to_thread(begun.wait, 10)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert served(galleries).manifest.id == ids[0]
    may_open.set()
    await until(lambda: served(galleries).manifest.id == ids[1])
    assert current_id(root) == ids[1]


async def test_a_bundle_that_takes_long_to_open_leaves_the_old_one_ready(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open = threading.Event()

    def slowly(directory: Path) -> Bundle:
        assert may_open.wait(TIMEOUT_S)
        return open_here(directory)

    opener = replace(galleries._opener, open_bundle=slowly)
    monkeypatch.setattr(galleries, "_opener", opener)
    watching = asyncio.create_task(galleries.watch())
    activate(root, ids[1])
    [engine], begun_at = galleries.engines(), time.monotonic()
    await until(lambda: engine.canary_at > begun_at + 10 * PERIOD_S)
    await galleries.require_current()
    assert served(galleries).manifest.id == ids[0]
    may_open.set()
    await until(lambda: served(galleries).manifest.id == ids[1])
    watching.cancel()


def is_ready(galleries: Galleries) -> bool:
    try:
        galleries.require_ready()
    except NotReady:
        return False
    return True


async def test_current_is_followed_and_a_bad_one_is_not(
    galleries: Galleries, root: Path, ids: tuple[str, str]
) -> None:
    watching = asyncio.create_task(galleries.watch())
    activate(root, ids[1])
    await until(lambda: served(galleries).manifest.id == ids[1])
    activate(root, "0" * 16)
    await until(lambda: "digits" in galleries.refused)
    assert "no bundle '0000000000000000'" in galleries.refused["digits"]
    assert served(galleries).manifest.id == ids[1]
    activate(root, ids[0])
    await until(lambda: served(galleries).manifest.id == ids[0])
    await until(lambda: galleries.refused == {})
    watching.cancel()


@pytest.mark.parametrize("garbage", ["\ufeffx\n".encode("utf-16"), b"", b"\xff" * 99, b"../x"])
async def test_garbage_in_current_is_said_and_the_watch_goes_on(
    galleries: Galleries,
    root: Path,
    ids: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
    garbage: bytes,
) -> None:
    watching = asyncio.create_task(galleries.watch())
    (root / "CURRENT").write_bytes(garbage)
    await until(lambda: "digits" in galleries.refused)
    assert "names no bundle" in galleries.refused["digits"]
    [engine], seen_at = galleries.engines(), time.monotonic()
    await until(lambda: engine.canary_at > seen_at + 2 * PERIOD_S)  # canaries are sent on
    await galleries.require_current()
    async with galleries.lease("digits") as lease:
        assert lease.bundle.manifest.id == ids[0]
        with pytest.raises(PointerUnreadable, match="names no bundle"):
            lease.bundle.require_live().commit([Delete("unknown")])
    said = [one for one in caplog.records if one.message == "CURRENT cannot be read"]
    assert len(said) == 1
    assert not watching.done()
    activate(root, ids[1])
    await until(lambda: served(galleries).manifest.id == ids[1])
    await until(lambda: galleries.refused == {})
    watching.cancel()


async def test_ready_is_who_answered_a_canary_lately(
    galleries: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    galleries.require_ready()
    watching = asyncio.create_task(galleries.watch())
    await asyncio.sleep(6 * PERIOD_S)
    await until(lambda: is_ready(galleries))

    def fail(
        encoder: OnnxEncoder, images: NDArray[np.uint8], at_once: int | None = None
    ) -> Embeddings:
        raise EncoderStopped("gone")

    with monkeypatch.context() as patched:
        patched.setattr("service.encoding.batching._FIRST_PAUSE_S", 0.01)
        patched.setattr(OnnxEncoder, "encode", fail)
        await until(lambda: not is_ready(galleries))
        with pytest.raises(NotReady, match="digits"):
            galleries.require_ready()

    await until(lambda: is_ready(galleries))
    watching.cancel()


@pytest.mark.parametrize("damage", ["overwritten", "cut", "removed"])
async def test_a_file_that_was_changed_under_it_makes_it_not_ready(
    galleries: Galleries, root: Path, ids: tuple[str, str], damage: str
) -> None:
    """Until it is what it was; that somebody touched it is no matter."""
    watching = asyncio.create_task(galleries.watch())
    file = root / ids[0] / "evaluation.json"
    content = file.read_bytes()
    os.utime(file)
    [engine], touched_at = galleries.engines(), time.monotonic()
    await until(lambda: engine.files_looked_at > touched_at)
    assert engine.changed_file is None
    if damage == "overwritten":
        flip_a_byte(file)
    elif damage == "cut":
        os.truncate(file, 7)
    else:
        file.unlink()
    await until(lambda: engine.changed_file is not None)
    with pytest.raises(NotReady, match=r"evaluation\.json of the bundle of 'digits' was changed"):
        galleries.require_ready()
    file.write_bytes(content)
    await until(lambda: engine.changed_file is None)
    await until(lambda: is_ready(galleries))
    watching.cancel()


async def test_a_look_at_files_that_took_long_lifts_nothing(
    galleries: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has begun since, found that a file was changed, and ended sooner."""
    [engine] = galleries.engines()
    begun, may_end = threading.Event(), threading.Event()

    def hashes() -> None:
        begun.set()
        assert may_end.wait(TIMEOUT_S)

    with monkeypatch.context() as patched:
        patched.setattr(engine.files, "changed", hashes)
        looking = asyncio.create_task(engine.look_at_files())
        assert await asyncio.to_thread(begun.wait, 10)
        patched.setattr(engine.files, "changed", lambda: "evaluation.json")
        await engine.look_at_files()
        may_end.set()
        await looking
        with pytest.raises(NotReady, match=r"evaluation\.json"):
            galleries.require_ready()
    await engine.look_at_files()
    assert engine.changed_file is None


async def test_a_gallery_that_is_described_while_changes_are_heard_of_stays_so(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [engine] = galleries.engines()
    begun, may_end, renewed_of = threading.Event(), threading.Event(), Bundle.renewed

    def renewed(bundle: Bundle) -> Bundle:
        found = renewed_of(bundle)
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        return found

    another = open_live(root, root / ids[0])
    another.commit([Delete(another.snapshot().items(np.array([0]))[0].id)])
    monkeypatch.setattr(Bundle, "renewed", renewed)
    hearing = asyncio.create_task(engine.renew())
    assert await asyncio.to_thread(begun.wait, 10)
    described = GalleryEntry("0" * 16, "digits", "Ten digits", "", "")
    engine.bundle = replace(engine.bundle, entry=described)
    may_end.set()
    await hearing
    assert (engine.bundle.version, engine.bundle.entry) == (1, described)
    another.close()


async def test_a_service_that_ends_lets_a_compaction_take_over_whole(
    galleries: Galleries, root: Path, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread works on: what is about to be the current bundle is not taken away under it."""
    begun, may_end = threading.Event(), threading.Event()

    def slowly(root: Path, bundle_id: str, instead_of: str) -> None:
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        activate(root, bundle_id, instead_of)

    another = open_live(root, root / ids[0])
    another.commit([Delete(another.snapshot().items(np.array([0]))[0].id)])
    another.close()
    monkeypatch.setattr("model_store.bundles.compaction.activate", slowly)
    async with galleries.lease("digits"):
        pass  # it hears of the change
    compacting = asyncio.create_task(galleries.compact("digits"))
    assert await asyncio.to_thread(begun.wait, 30)
    for task in galleries._tasks:
        task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    assert current_id(root) not in ids
    before, after = (open_here(one).retriever.gallery for one in (root / ids[0], root))
    assert after.n_items == before.n_items - 1


async def test_a_quota_counts_what_another_process_has_just_written(
    galleries: Galleries, root: Path, ids: tuple[str, str]
) -> None:
    """While a request embeds its image, for which it has found that there is room."""
    another = open_live(root, root / ids[0])
    async with galleries.lease("digits") as lease:
        most = lease.bundle.retriever.gallery.n_items + 1
        ones = np.ones(lease.bundle.retriever.gallery.dim, np.float32)
        first, second = (
            Upsert(NewItem(name, None, {}, Thumbnail(b"", "image/png")), Vector(ones, ones))
            for name in ("first", "second")
        )
        another.commit([first])
        with pytest.raises(QuotaExceeded, match="Nothing was changed"):
            await galleries.commit(lease, [second], None, {}, most)
    assert another.refresh().n_items == most
    another.close()


async def test_a_gallery_that_cannot_be_read_now_is_listed_without_its_number_of_items(
    galleries: Galleries, root: Path, ids: tuple[str, str]
) -> None:
    def delete_an_item(bundle_id: str) -> None:
        another = open_live(root, root / bundle_id)
        another.commit([Delete(another.snapshot().items(np.array([0]))[0].id)])
        another.close()

    listing, before = CreatedGalleries(galleries, None), served(galleries).retriever.gallery
    delete_an_item(ids[0])
    assert await listing.listed() == [ListedGallery("digits", "", before.n_items - 1, ids[0])]
    activate(root, ids[1])
    delete_an_item(ids[1])
    flip_a_byte(unlinked(root / ids[1] / ENCODER_FILE))
    assert await listing.listed() == [ListedGallery("digits", "", None, ids[1])]


class TestThroughTheDoor:
    @pytest.fixture
    def client(self, start: Callable[..., TestClient], root: Path) -> TestClient:
        return start(open_here(root))

    def test_list_activate_and_roll_back(self, client: TestClient, ids: tuple[str, str]) -> None:
        history = client.get("/v1/galleries/digits/bundles").json()
        assert [one["id"] for one in history["bundles"]] == list(ids)
        assert (history["serving"], history["refused"]) == (ids[0], None)
        path = "/v1/galleries/digits/bundles"
        activated = client.post(f"{path}/{ids[1]}/activate").json()
        assert activated == {
            "gallery": "digits",
            "bundle_id": ids[1],
            "previous_id": ids[0],
            "persisted": True,
        }
        assert client.get("/readyz").json()["galleries"][0]["bundle_id"] == ids[1]
        assert client.post(f"{path}/rollback").json()["bundle_id"] == ids[0]

    def test_history_has_what_the_description_of_the_gallery_has(
        self, client: TestClient, root: Path, ids: tuple[str, str]
    ) -> None:
        gallery = client.get("/v1/galleries/digits").json()
        report = client.get("/v1/galleries/digits/calibration").json()
        first, second = client.get("/v1/galleries/digits/bundles").json()["bundles"]
        outcome = {name: value for name, value in gallery["outcome"].items() if name != "lines"}
        assert first["calibration"] == {
            **outcome,
            **{name: report[name] for name in ("queries", "delta")},
            "written_at": ANY,
        }
        assert (first["n_items"], first["n_labels"]) == (gallery["n_items"], gallery["n_labels"])
        at = [datetime.fromisoformat(one["published_at"]) for one in (first, second)]
        assert at == sorted(at)

    def test_history_lists_a_damaged_bundle_with_a_reason(
        self, client: TestClient, root: Path, ids: tuple[str, str]
    ) -> None:
        (root / ids[1] / "calibration.json").write_bytes(b"{}")
        first, second = client.get("/v1/galleries/digits/bundles").json()["bundles"]
        assert (first["reason"], first["reason_code"]) == (None, None)
        assert (second["n_items"], second["calibration"]) == (None, None)
        assert second["reason_code"]["code"] == "bundle_unreadable"
        assert f"{ids[1]}/calibration.json differs from its manifest" in second["reason"]

    def test_a_bundle_that_was_exchanged_leaves_memory(
        self, start: Callable[..., TestClient], root: Path, ids: tuple[str, str]
    ) -> None:
        """Though Python looks for no garbage among what the service began with."""
        first = open_here(root)
        held = weakref.ref(first.retriever)
        gc.freeze()
        client = start(first)
        del first
        assert held() is not None
        client.post(f"/v1/galleries/digits/bundles/{ids[1]}/activate").raise_for_status()
        wait_until(lambda: held() is None, gc.collect)  # who asks with it may be at it yet

    def test_where_bundles_can_only_be_read_a_restart_serves_the_old(
        self, client: TestClient, ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_only(root: Path, bundle_id: str) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("service.serving.registry.activate", read_only)
        answer = client.post(f"/v1/galleries/digits/bundles/{ids[1]}/activate").json()
        assert (answer["bundle_id"], answer["persisted"]) == (ids[1], False)

    def test_refusals(self, client: TestClient) -> None:
        path = "/v1/galleries/digits/bundles"
        missing = client.post(f"{path}/{'0' * 16}/activate")
        assert (missing.status_code, missing.json()["code"]) == (404, "bundle_not_found")
        nothing = client.post(f"{path}/rollback")
        assert (nothing.status_code, nothing.json()["code"]) == (409, "activation_refused")


async def test_sample_is_found_by_its_whole_id() -> None:
    manifest = SimpleNamespace(samples=[SimpleNamespace(id="12", file="samples/12.png")])
    bundle = SimpleNamespace(name="digits", manifest=manifest, directory=Path("bundle"))
    lease: Any = SimpleNamespace(bundle=bundle)
    for other in ("1", "123", "2"):
        with pytest.raises(SampleNotFound):
            await get_sample(Request({"type": "http", "headers": []}), lease, other)
