"""The served galleries; each can switch to another bundle while the service runs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_store.bundles.bundle import Bundle
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import (
    KEPT_BUNDLES,
    activate,
    bundle_directory,
    bundle_ids,
    previous_id,
)
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.history import BundleSummary, bundle_history
from model_store.bundles.retention import prune
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.errors import (
    ActivationRefused,
    GallerySuperseded,
    NotReady,
    StorageBusy,
    VouchError,
    with_reason,
)
from model_store.gallery import Receipt, Retry, Write
from service.observability.logs import RequestRecord
from service.observability.metrics import counted_as
from service.scheduling import Tasks, run_to_its_end
from service.serving.served import Following

from .engine import SearchEngine
from .lease import Lease
from .served import OnDemand, OpenBundle, Opener, Served, ServedGalleries, StartEngine, directory_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Switched:
    """The result of an activation.

    Attributes
    ----------
    bundle_id, previous_id : ids of the bundle that is served now, and of the previous bundle.
    persisted : whether `CURRENT` was written. If so, the same bundle is served after a restart.
    """

    bundle_id: str
    previous_id: str
    persisted: bool


def persist(directory: Path) -> bool:
    """Write a bundle's id to `CURRENT`; return whether this succeeded."""
    try:
        activate(directory.parent, directory.name)
    except OSError:  # for example a read-only mount
        return False
    return True


async def remove_old(bundle: Bundle, keep: int) -> None:
    """Remove old bundles that have a log of changes, except the newest ``keep``; see `prune`."""
    if bundle.root is None:
        return
    for removed in await asyncio.to_thread(prune, bundle.root, keep, compacted=True):
        fields = {"gallery": bundle.name, "bundle": removed}
        logger.info("bundle removed", extra={"fields": fields})


SWITCH_TIMEOUT_S = 5.0
"""Seconds that a request waits for a bundle that is being opened; half of a request's timeout."""

MOST_OPEN = 1_000
"""Default maximum number of open created galleries."""

LOOKED_AT_EVERY_S = 60.0
"""Seconds between two checks of an open gallery that was created over HTTP. The other galleries are
checked every ``period_s`` seconds."""

STALE_AFTER_PERIODS = 3
"""If no canary is answered for this number of periods, the gallery is not ready. A busy service may
miss two canaries."""


class Galleries:
    """The engines of the served galleries, by gallery name.

    A request uses the same engine until the request ends, even if another bundle is activated. No
    answer therefore mixes two bundles. An engine closes after its last request.

    Parameters
    ----------
    open_bundle : opens and verifies the bundle of a directory.
    start : starts an engine for an open bundle, and returns it after its first canary.
    period_s : seconds between canaries, and between checks of `CURRENT`.
    observe : called after each attempt to serve another bundle, with the gallery and the outcome.
    compact_after : number of changes after which a gallery is compacted; if 0, no gallery is
        compacted automatically.
    keep_bundles : see `prune`; applied after a compaction.
    signing : how compacted bundles are signed. A bundle that cannot be signed is not compacted.
    folder : folder of created galleries. A created gallery is opened on demand; the least recently
        used galleries are closed.
    most_open : maximum number of open created galleries.

    Attributes
    ----------
    first : name of the first gallery that the service was started with.
    refused : maps the name of a gallery to the reason why the bundle in `CURRENT` is not served.
    """

    def __init__(
        self,
        open_bundle: OpenBundle,
        start: StartEngine,
        period_s: float,
        observe: Callable[[str, str], None] = lambda _gallery, _outcome: None,
        compact_after: int = 0,
        keep_bundles: int = KEPT_BUNDLES,
        signing: Signing = UNSIGNED,
        folder: GalleryFolder | None = None,
        most_open: int = MOST_OPEN,
    ) -> None:
        self._opener = Opener(open_bundle, start)
        self._served = ServedGalleries(OnDemand(self._opener, folder), most_open, self._forget)
        self.first = ""
        self._n_looks = 0
        self._period_s = period_s
        self._observe = observe
        self._compact_after = compact_after
        self._keep_bundles = keep_bundles
        self._signing = signing
        self._unsigned: set[str] = set()  # ids of the bundles for which the reason was logged
        self._previous: dict[str, str] = {}
        self._switching = asyncio.Lock()
        self._tasks = Tasks()
        self._following = Following(partial(self.activate, follow=True))
        self.refused = self._following.refused

    async def add(self, bundle: Bundle) -> None:
        """Serve a bundle."""
        self._served.add(bundle.name, await self._opener.start(bundle))
        self.first = self.first or bundle.name

    def engines(self) -> list[SearchEngine]:
        """Return the engines that are open now, sorted by name."""
        return self._served.engines()

    def fixed(self) -> list[SearchEngine]:
        """Return the engines of the galleries that the service was started with."""
        return self._served.engines(created=False)

    @asynccontextmanager
    async def lease(
        self, name: str, caller: str = "", record: RequestRecord | None = None
    ) -> AsyncIterator[Lease]:
        """Lease a gallery: keep its engine open. A retired engine closes after its last lease.

        The lease includes all changes that were acknowledged before the lease, by any process.

        Parameters
        ----------
        caller : see `Lease`.
        record : record of the request, in which the name of the leased gallery is entered.

        Raises
        ------
        GalleryNotFound
        NotReady : the gallery continues in a newer bundle, which is not open yet; see `Following`.
        StorageFailed : the gallery's changes cannot be read.
        """
        with self._served.held(await self._answering(name)) as served:
            await served.engine.catch_up()
            if record is not None:
                record.gallery = name
            yield Lease(served.engine, served.engine.bundle, caller)

    async def current(self) -> list[Bundle]:
        """Return the bundles of the open galleries, as `lease` does, without opening a gallery.

        A gallery that cannot answer within `SWITCH_TIMEOUT_S` is omitted.
        """
        names = [engine.bundle.name for engine in self.engines()]
        found = await asyncio.gather(*map(self._current, names))
        return [bundle for bundle in found if bundle is not None]

    async def _current(self, name: str) -> Bundle | None:
        try:
            async with asyncio.timeout(SWITCH_TIMEOUT_S):
                with self._served.held(await self._answering(name, opens=False)) as served:
                    await served.engine.catch_up()
                    return served.engine.bundle
        except (TimeoutError, VouchError):  # requests for this gallery get the error
            return None

    async def _answering(self, name: str, *, opens: bool = True) -> Served:
        """Return the engine that may answer for a gallery; wait if its bundle is being opened.

        With ``opens``, open the gallery if necessary, and record the request.
        """
        until = time.monotonic() + SWITCH_TIMEOUT_S
        while True:
            served = await self._served.find(name) if opens else self._served.require(name)
            ahead = await self._following.ahead(served.engine.bundle)
            if served.retired:  # the engine was just replaced, and may be closed
                continue
            if ahead is None:
                return served
            if not await self._following.changed_over(name, until - time.monotonic()):
                raise self._following.not_ready(name, ahead)

    @staticmethod
    async def history(bundle: Bundle) -> list[BundleSummary]:
        """Summarise the bundles of a gallery, oldest first."""
        root = bundle.root
        if root is None:
            directories = [bundle.directory]
        else:
            ids = await asyncio.to_thread(bundle_ids, root)
            directories = [bundle_directory(root, bundle_id) for bundle_id in ids]
        return await asyncio.to_thread(bundle_history, directories)

    async def activate(self, name: str, bundle_id: str, *, follow: bool = False) -> Switched:
        """Serve another bundle of the gallery, and write its id to `CURRENT`.

        With ``follow``, serve the bundle only if `CURRENT` still names it.

        The new engine must answer a canary first. If the canary fails, the old bundle is still
        served. An activation continues even if the caller is cancelled, because opening a large
        bundle may exceed the request's timeout.

        Raises
        ------
        GalleryNotFound, BundleNotFound
        ActivationRefused : there is only one bundle, or the new bundle cannot be served.
        """
        return await asyncio.shield(
            self._tasks.start(self._activate(name, bundle_id, follow=follow))
        )

    async def _activate(self, name: str, bundle_id: str, *, follow: bool) -> Switched:
        async with self._switching:
            with self._served.held(await self._served.find(name)) as served:
                return await self._activate_instead(served, name, bundle_id, follow=follow)

    async def _activate_instead(
        self, served: Served, name: str, bundle_id: str, *, follow: bool
    ) -> Switched:
        now = served.engine.bundle
        if follow and not await self._following.still_names(now, bundle_id):
            return Switched(now.manifest.id, now.manifest.id, persisted=True)
        try:
            directory = directory_of(now, bundle_id)
            opened = None
            if bundle_id != now.manifest.id:
                opened = await self._opener.successor(now, directory)
        except VouchError:
            self._observe(counted_as(now), "refused")
            raise
        persisted = follow or await asyncio.to_thread(persist, directory)
        if persisted:
            self._following.obey(name)
        else:
            await self._following.overrule(now, instead=bundle_id)
        if opened is not None:
            self._exchange(name, opened)
        return Switched(bundle_id, now.manifest.id, persisted)

    def _exchange(self, name: str, opened: SearchEngine) -> None:
        """Serve another engine; the previous engine closes after its last request."""
        served, bundle_id = self._served.get(name), opened.bundle.manifest.id
        if served is None:  # the gallery was dropped, renamed or closed
            self._tasks.start(opened.close())
            return
        before = served.engine.bundle.manifest.id
        self._served.add(name, opened)
        self._previous[name] = before
        fields = {"gallery": name, "bundle": bundle_id, "before": before}
        logger.info("bundle activated", extra={"fields": fields})
        self._observe(counted_as(opened.bundle), "activated")

    async def commit(
        self,
        lease: Lease,
        writes: Sequence[Write],
        retry: Retry | None,
        note: Mapping[str, Any],
        most_items: int | None = None,
    ) -> Receipt:
        """Change the gallery; see `Writable.commit`. Later searches find it.

        The change continues even if the caller is cancelled.

        Parameters
        ----------
        most_items : maximum number of items after the change; None for no maximum.

        Raises
        ------
        ItemNotFound, WriteError, QuotaExceeded : nothing was changed.
        GalleryUnavailable : the change is stored, or its outcome is unknown.
        """
        changing = self._commit(lease, writes, retry, note, most_items)
        return await asyncio.shield(self._tasks.start(changing))

    async def _commit(
        self,
        lease: Lease,
        writes: Sequence[Write],
        retry: Retry | None,
        note: Mapping[str, Any],
        most_items: int | None,
    ) -> Receipt:
        bundle, live = lease.bundle, lease.bundle.require_live()
        try:
            async with lease.engine.writing:  # writes must not occupy the engine's threads
                receipt = await asyncio.to_thread(live.commit, writes, retry, note, most_items)
        except GallerySuperseded:
            await self._following.ahead(bundle)  # starts opening the newer bundle,
            await self._following.changed_over(bundle.name)  # and waits until it is open
            raise
        await lease.engine.show_changes()
        return receipt

    async def compact(self, name: str) -> Switched:
        """Merge a bundle and its changes into a new bundle, and serve the new bundle.

        Raises
        ------
        GalleryNotFound
        ActivationRefused : the new bundle cannot be served.
        WriteError : nothing was changed.
        """
        return await asyncio.shield(self._tasks.start(self._compact(name)))

    async def _compact(self, name: str) -> Switched:
        async with self._switching:
            with self._served.held(await self._served.find(name)) as served:
                return await self._compact_now(served, name)

    async def _compact_now(self, served: Served, name: str) -> Switched:
        now = served.engine.bundle
        live, root, before = now.require_log(), now.root, now.manifest.id
        if root is None or now.version == await asyncio.to_thread(live.log.start):
            return Switched(before, before, persisted=True)
        with Compaction(root, now.manifest, live, self._signing) as compaction:
            # Wait for the thread even when the service ends, because the thread needs the files.
            directory = await run_to_its_end(compaction.prepare)
            opened = await self._opener.successor(now, directory)
            try:
                # Writes wait here, and continue in the new engine.
                async with served.engine.writing:
                    await run_to_its_end(compaction.switch)
                    await opened.renew()
                    self._exchange(name, opened)
            except BaseException:
                await opened.close()
                raise
        return Switched(opened.bundle.manifest.id, before, persisted=True)

    async def rollback(self, name: str) -> Switched:
        """Serve the previous bundle again.

        Raises
        ------
        GalleryNotFound
        ActivationRefused : there is no previous bundle, or it can no longer be served.
        """
        root = (await self._served.find(name)).engine.bundle.root
        before = self._previous.get(name) or (None if root is None else previous_id(root))
        if before is None:
            raise ActivationRefused(
                f"There is no previous bundle of the gallery {name!r} to activate."
            )
        return await self.activate(name, before)

    async def watch(self) -> None:
        """Send canaries, and check the file `CURRENT` of each gallery, in an endless loop."""
        while True:
            await asyncio.sleep(self._period_s)
            for engine in self.fixed():
                self._tasks.start(_send_canary(engine, self._period_s))
                self._look_at(engine)
            for engine in self._next_created():
                self._look_at(engine)
            self.close_nameless()

    def close_nameless(self) -> None:
        """Close galleries that were dropped or renamed, here or by another process."""
        self._served.close_nameless()

    def _forget(self, name: str) -> None:
        self._previous.pop(name, None)
        self._following.forget(name)

    def _look_at(self, engine: SearchEngine) -> None:
        self._tasks.start(engine.keep())
        self._tasks.start(engine.look_at_files())
        if engine.bundle.root is not None:
            self._tasks.start(self._following.ahead(engine.bundle))
            self._tasks.start(self._look_after(engine))

    def _next_created(self) -> list[SearchEngine]:
        """Return the created galleries to check now; each is checked every `LOOKED_AT_EVERY_S`."""
        self._n_looks += 1
        n_turns = max(1, math.ceil(LOOKED_AT_EVERY_S / self._period_s))
        created = self._served.engines(created=True)
        return created[self._n_looks % n_turns :: n_turns]

    async def _look_after(self, engine: SearchEngine) -> None:
        """Load changes of other processes, and compact long logs."""
        name = engine.bundle.name
        try:
            await engine.renew()
            if self._is_long(engine.bundle) and not self._switching.locked():
                await self.compact(name)
                self._observe(counted_as(engine.bundle), "compacted")
            await remove_old(engine.bundle, self._keep_bundles)
        except (GallerySuperseded, StorageBusy) as error:  # another process compacts it
            logger.info(str(error), extra={"fields": {"gallery": name}})
        except VouchError as error:
            fields = {"gallery": name, "reason": with_reason(error)}
            logger.error("changes not looked after", extra={"fields": fields})  # noqa: TRY400
        except Exception:
            logger.exception("changes not looked after", extra={"fields": {"gallery": name}})

    def _is_long(self, bundle: Bundle) -> bool:
        """Return whether the log of ``bundle`` is to be compacted now."""
        if not 0 < self._compact_after <= bundle.n_pending:
            return False
        objection = self._signing.objection(bundle.root)
        if objection is not None and bundle.manifest.id not in self._unsigned:
            self._unsigned.add(bundle.manifest.id)
            fields = {"gallery": bundle.name, "reason": objection}
            logger.warning("changes not compacted", extra={"fields": fields})
        return objection is None

    async def require_current(self) -> None:
        """Raise `NotReady` if this process may lack acknowledged changes.

        A created gallery does not make the service unready; only requests to this gallery get an
        error.

        Raises
        ------
        NotReady
        StorageFailed : the changes of a gallery cannot be read.
        """
        for engine in self.fixed():
            ahead = await self._following.ahead(engine.bundle)
            if ahead is not None:
                raise self._following.not_ready(engine.bundle.name, ahead)
            await engine.catch_up()

    def require_ready(self) -> None:
        """Raise `NotReady` unless all galleries are intact and have answered a recent canary."""
        for engine in self.fixed():
            engine.require_whole()
        _require_canaries(self.fixed(), self._period_s)

    async def close(self) -> None:
        """Close every engine."""
        await self._tasks.cancel()
        await self._following.close()
        await self._served.close()


def _require_canaries(engines: Sequence[SearchEngine], period_s: float) -> None:
    """Raise `NotReady` if an engine has not answered a canary for three periods."""
    oldest = time.monotonic() - STALE_AFTER_PERIODS * period_s
    silent = [
        engine.bundle.name for engine in engines if not engine.running or engine.canary_at < oldest
    ]
    if silent:
        raise NotReady(
            f"No recent canary was answered by: {', '.join(silent)}. The encoder is being "
            "started again, the database of the gallery does not answer, or the service is "
            "overloaded. The log has the reason."
        )


async def _send_canary(engine: SearchEngine, period_s: float) -> None:
    """Send a canary. After a failure, the time of the last answered canary stays unchanged."""
    with suppress(TimeoutError, VouchError):
        async with asyncio.timeout(STALE_AFTER_PERIODS * period_s):
            await engine.canary()
