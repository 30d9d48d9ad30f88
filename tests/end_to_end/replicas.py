"""Several services on one directory of bundles, and every answer of theirs remembered."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx2
import numpy as np

from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import activate
from model_store.bundles.retention import prune
from model_store.encoder.contract import Embeddings
from model_store.gallery import FaissGallery, NewItem
from model_store.gallery.files.gallery import GALLERY_FILES
from model_store.gallery.postgres.database import PostgresAccess
from tests.end_to_end.histories import Operation, first_violation
from tests.end_to_end.processes import TIMEOUT_S, Service, wait_until
from tests.end_to_end.questions import search
from tests.end_to_end.writes import GALLERY
from tests.support.bundle_copies import republished
from tests.support.postgres import write_postgres_gallery

Kind = Literal["put", "delete", "get", "search"]
KINDS: tuple[Kind, ...] = ("put", "delete", "get", "search")

N_CLIENTS = 6
N_ITEMS = 3
"""Written to at the same time: so few that operations on one overlap."""

REFUSED = 503
"""Nothing was changed, the service says; of any other failure nobody knows."""

UNKNOWN = {"gallery_unavailable", "change_unconfirmed"}
"""The codes of a refusal by a service that does not know: Milvus has not answered it, say."""

TIMES_AN_ITEM = 60
"""Operations after which other items take the place of these, so that histories stay short."""

SETTINGS = {"VOUCH_DECODERS": "1", "VOUCH_COMPACT_AFTER": "0"}

KEPT_BUNDLES = 6


class Replicas:
    """Clients that write to and read from several services, compactions, hot swaps, and kills.

    A hot swap publishes the first bundle anew, in which nothing has been written: it takes every
    item away. Until somebody has written to it, a service that is still opening it may answer from
    the one before; see `service.serving.served`.

    Parameters
    ----------
    elsewhere : directories of the services after the first, as on other machines; where there are
        none, all have ``root`` in common.

    Attributes
    ----------
    counts : of operations by kind, of refusals, compactions, swaps, kills.
    """

    def __init__(
        self,
        root: Path,
        bundle: Path,
        log: Path,
        seed: int,
        n_services: int = 2,
        settings: Mapping[str, str] = SETTINGS,
        elsewhere: Sequence[Path] = (),
    ) -> None:
        self._root, self._log, self._settings = root, log, dict(settings)
        self._roots = [root, *elsewhere]
        self._bundle = bundle
        self._pictures = thumbnails(bundle, 8, seed)
        self._seed, self._n_services = seed, n_services
        self._services: list[Service] = []
        self._histories: defaultdict[str, list[Operation]] = defaultdict(list)
        self._swaps: list[Operation] = []
        self._numbers, self._turns = itertools.count(1), itertools.count()
        self._over = threading.Event()
        self.counts: Counter[str] = Counter()

    def run(
        self,
        seconds: float,
        compact_every_s: float,
        kill_every_s: float,
        swap_every_s: float = math.inf,
        enough: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let everybody work for so long, on a busy machine until ``enough()`` was done."""
        self._services = [self._start(which) for which in range(self._n_services)]
        try:
            with ThreadPoolExecutor(N_CLIENTS + 3) as threads:
                work = [threads.submit(self._client, number) for number in range(N_CLIENTS)]
                for disturb, every_s in (
                    (self._compact, compact_every_s),
                    (self._kill, kill_every_s),
                    (self._swap, swap_every_s),
                ):
                    if math.isfinite(every_s):
                        work.append(threads.submit(disturb, every_s))
                self._over.wait(seconds)
                try:
                    wait_until(enough)
                finally:
                    self._over.set()
                for one in work:
                    one.result()
        finally:
            self._over.set()
            for service in self._services:
                service.__exit__(None, None, None)

    def violations(self) -> list[tuple[str, Operation]]:
        """Items whose history is not linearizable, and where it goes wrong."""
        found = [(item, first_violation(self.history(item))) for item in self._histories]
        return [(item, wrong) for item, wrong in found if wrong is not None]

    def history(self, item: str) -> list[Operation]:
        """What was asked of an item, and the swaps meanwhile, in the order of calls."""
        asked = self._histories[item]
        last = max(one.ended if one.known else one.began for one in asked)
        first = min(one.began for one in asked)
        swaps = [one for one in self._swaps if one.began <= last and one.ended >= first]
        during = [(one.began, one.ended) for one in swaps]
        followed = [(one.began, self._first_write(one.ended)) for one in swaps]
        asked = [
            replace(one, late=_is_within(one, followed if one.kind == "get" else during))
            for one in asked
        ]
        return sorted([*asked, *swaps], key=lambda one: one.began)

    def _first_write(self, after: float) -> float:
        """When the first write was acknowledged of those that were begun after a moment."""
        histories = self._histories.values()
        writes = (one for history in histories for one in history if one.kind in {"put", "delete"})
        return min(
            (one.ended for one in writes if one.began >= after and (one.value or one.existed)),
            default=math.inf,
        )

    @property
    def n_operations(self) -> int:
        """How many have been answered."""
        # Copies, since clients may be at work.
        histories = map(list, list(self._histories.values()))
        return sum(one.known for history in histories for one in history)

    def _start(self, which: int) -> Service:
        log = self._log.with_name(f"{self._log.stem}-{next(self._numbers)}.log")
        return Service(self._roots[which % len(self._roots)], log, self._settings)

    def _client(self, number: int) -> None:
        rng = np.random.default_rng([self._seed, number])
        with httpx2.Client(timeout=TIMEOUT_S, trust_env=False) as http:
            while not self._over.is_set():
                which = int(rng.integers(self._n_services))
                http.base_url = f"http://127.0.0.1:{self._services[which].port}"
                generation = next(self._turns) // (N_ITEMS * TIMES_AN_ITEM)
                item = f"g{generation}-{rng.integers(N_ITEMS)}"
                kind = KINDS[rng.choice(4, p=[0.25, 0.15, 0.5, 0.1])]
                picture = self._pictures[int(rng.integers(len(self._pictures)))]
                self._ask(http, kind, item, picture, f"service {which}")

    def _ask(self, http: httpx2.Client, kind: Kind, item: str, picture: bytes, by: str) -> None:
        value, began = next(self._numbers), time.monotonic()
        response = _send(http, kind, item, value, picture)
        ended = time.monotonic()
        status = 0 if response is None else response.status_code
        self.counts[f"{kind} {status or 'broken off'}"] += 1
        refused = status == REFUSED and _told(response).get("code") not in UNKNOWN
        if kind in ("put", "delete") and not refused:
            known = status in {200, 404}
            end = ended if known else math.inf
            write = Operation(kind, value, None, began, end, by)
            if kind == "put":
                write = replace(write, existed=_told(response)["existed"] if known else None)
            else:
                write = replace(write, value=None, existed=status == 200 if known else None)
            self._histories[item].append(write)
        elif kind not in {"put", "delete"}:
            for seen, found in _seen(kind, item, status, response):
                self._histories[seen].append(Operation("get", found, None, began, ended, by))
        if status not in {200, 404}:
            self._over.wait(0.05)

    def _compact(self, every_s: float) -> None:
        rng = np.random.default_rng([self._seed, 1000])
        with httpx2.Client(timeout=TIMEOUT_S, trust_env=False) as http:
            while not self._over.wait(rng.exponential(every_s)):
                service = self._services[int(rng.integers(self._n_services))]
                try:
                    status = http.post(
                        f"http://127.0.0.1:{service.port}{GALLERY}/compact"
                    ).status_code
                except httpx2.TransportError:
                    status = 0
                self.counts[f"compact {status or 'broken off'}"] += 1

    def _swap(self, every_s: float) -> None:
        """Publish another bundle now and then: by `CURRENT`, or by asking a service."""
        rng = np.random.default_rng([self._seed, 3000])
        with httpx2.Client(timeout=TIMEOUT_S, trust_env=False) as http:
            while not self._over.wait(rng.exponential(every_s)):
                spare = self._root.parent / "spare"
                bundle_id = republished(self._bundle, spare, description=f"{next(self._numbers)}")
                (spare / bundle_id).rename(self._root / bundle_id)
                began, by, known = time.monotonic(), "CURRENT", True
                if rng.uniform() < 0.5:
                    activate(self._root, bundle_id)
                else:
                    service = self._services[int(rng.integers(self._n_services))]
                    by, known = "service", self._activate(http, service, bundle_id)
                ended = time.monotonic() if known else math.inf
                self._swaps.append(Operation("swap", None, None, began, ended, by))
                self.counts[f"swap by {by}" if known else "swap broken off"] += 1
                prune(self._root, KEPT_BUNDLES)

    def _activate(self, http: httpx2.Client, service: Service, bundle_id: str) -> bool:
        """Have a service activate a bundle; whether it says that it has."""
        path = f"{GALLERY}/bundles/{bundle_id}/activate"
        try:
            return http.post(f"http://127.0.0.1:{service.port}{path}").status_code == 200
        except httpx2.TransportError:
            return False

    def _kill(self, every_s: float) -> None:
        rng = np.random.default_rng([self._seed, 2000])
        while not self._over.wait(rng.exponential(every_s)):
            which = int(rng.integers(self._n_services))
            self._services[which].kill()
            self._services[which].__exit__(None, None, None)
            self.counts["kill"] += 1
            self._services[which] = self._start(which)


def _is_within(one: Operation, periods: Sequence[tuple[float, float]]) -> bool:
    return any(began <= one.ended and one.began < ended for began, ended in periods)


def replicas_in_postgres(
    bundle: Path, uri: str, place: Path, seed: int, settings: Mapping[str, str] = SETTINGS
) -> Replicas:
    """Two services, as on two machines: each has a copy of the bundle, and PostgreSQL the gallery.

    Parameters
    ----------
    bundle : a bundle whose gallery is in files. All of its items but the first are written to the
        server, so that the schema is not that of the bundle's own gallery.
    place : an empty directory, for the copies and the log of the services.
    """
    copied = shutil.copytree(bundle, place / "copied")
    gallery = FaissGallery(bundle)
    rows = np.arange(1, gallery.n_items)
    items = [
        NewItem(item.id, item.label, item.metadata, gallery.thumbnail(item.id))
        for item in gallery.items(rows)
    ]
    mean, variance = gallery.directions(rows), gallery.variances(rows)
    for name in GALLERY_FILES:
        (copied / name).unlink(missing_ok=True)
    write_postgres_gallery(
        copied,
        Embeddings(mean, variance, mean[:, :0]),
        items,
        gallery.encoder_fingerprint,
        "postgresql://db.example/vouch",  # what the bundle says, which services do not use
        access=PostgresAccess(uri),
    )
    roots = [place / name / "bundles" for name in ("one", "other")]
    for root in roots:
        activate(root, republished(copied, root))
    settings = {**settings, "VOUCH_POSTGRES_URI": uri}
    log = place / "service.log"
    return Replicas(roots[0], bundle, log, seed, settings=settings, elsewhere=roots[1:])


def thumbnails(bundle: Path, n: int, seed: int) -> list[bytes]:
    """The pictures of some items of a bundle."""
    gallery = open_bundle(bundle, "cpu", threads=1).retriever.gallery
    items = gallery.items(np.random.default_rng(seed).permutation(gallery.n_items)[:n])
    return [gallery.thumbnail(item.id).data for item in items]


def _send(
    http: httpx2.Client, kind: str, item: str, value: int, picture: bytes
) -> httpx2.Response | None:
    """Ask; None where the connection broke."""
    path = f"{GALLERY}/items/{item}"
    try:
        if kind == "put":
            data = {"metadata": json.dumps({"write": value})}
            return http.put(path, files={"image": ("i", picture)}, data=data)
        if kind == "search":
            return search(http, picture, limit=20)
        return http.request("DELETE" if kind == "delete" else "GET", path)
    except httpx2.TransportError:
        return None


def _seen(
    kind: str, item: str, status: int, response: httpx2.Response | None
) -> list[tuple[str, int | None]]:
    """Which items an answer tells of, and what was last written to them as it says."""
    if kind == "get" and status == 404:
        return [(item, None)]
    if status != 200:
        return []
    told = _told(response)
    found = [told] if kind == "get" else told["results"]  # what is not found is not said to be gone
    return [(one["id"], one["metadata"]["write"]) for one in found if "write" in one["metadata"]]


def _told(response: httpx2.Response | None) -> dict[str, Any]:
    assert response is not None
    told: dict[str, Any] = response.json()
    return told
