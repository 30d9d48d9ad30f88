"""A service that is written to and killed, and what must be true of it afterwards."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray

from model_store.bundles.bundle import open_bundle
from model_store.images import decode_image
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.questions import search

GALLERY = "/v1/galleries/digits"
N_WRITERS = 3
N_IDS = 6
"""Of one writer: so few that items are replaced, deleted and put again."""

SETTINGS = {"VOUCH_CANARY_PERIOD_S": "60", "VOUCH_DECODERS": "1"}

Known = dict[str, "Put | None"]


@dataclass(frozen=True)
class Put:
    """What was written as an item: which picture, and by which write."""

    image: int
    write: int

    @property
    def metadata(self) -> dict[str, int]:
        return {"image": self.image, "write": self.write}


@dataclass
class Write:
    """A request that changes some items of one writer; None deletes."""

    items: Known
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def send(self, http: httpx2.Client, pictures: list[bytes]) -> httpx2.Response:
        headers = {"Idempotency-Key": self.key}
        if len(self.items) > 1:
            puts = {item_id: put for item_id, put in self.items.items() if put is not None}
            entries = [{"id": one, "metadata": put.metadata} for one, put in puts.items()]
            return http.post(
                f"{GALLERY}/items",
                files=[("images", ("i", pictures[put.image])) for put in puts.values()],
                data={"items": json.dumps(entries)},
                headers=headers,
            )
        ((item_id, put),) = self.items.items()
        path = f"{GALLERY}/items/{item_id}"
        if put is None:
            return http.delete(path, headers=headers)
        return http.put(
            path,
            files={"image": ("i", pictures[put.image])},
            data={"metadata": json.dumps(put.metadata)},
            headers=headers,
        )


class Oracle:
    """What every picture and every item of the bundle is like, by NumPy."""

    def __init__(self, bundle: Path, n_pictures: int) -> None:
        opened = open_bundle(bundle, "cpu", threads=1)
        retriever, gallery = opened.retriever, opened.retriever.gallery
        rows = np.random.default_rng(0).permutation(gallery.n_items)[:n_pictures]
        self.pictures = [gallery.thumbnail(item.id).data for item in gallery.items(rows)]
        pixels = [retriever.prepare(decode_image(picture)) for picture in self.pictures]
        self._of_pictures = np.stack(
            [one.direction for one in retriever.embed(np.stack(pixels))]
        ).astype(np.float64)
        everything = np.arange(gallery.n_items)
        self._base = dict(
            zip(
                (item.id for item in gallery.items(everything)),
                gallery.directions(everything).astype(np.float64),
                strict=True,
            )
        )

    def check(self, asked: int, answer: dict[str, Any]) -> None:
        """Every result of a search with a picture is as similar as the vector of its id is."""
        query: NDArray[np.float64] = self._of_pictures[asked]
        similarities = [result["similarity"] for result in answer["results"]]
        assert similarities == sorted(similarities, reverse=True)
        for result in answer["results"]:
            known = result["metadata"].get("image")
            vector = self._base[result["id"]] if known is None else self._of_pictures[known]
            np.testing.assert_allclose(
                result["similarity"], vector @ query, atol=2e-6, err_msg=str(result)
            )


class Writer:
    """Writes to items that nobody else writes to, and remembers what was acknowledged."""

    def __init__(self, number: int, oracle: Oracle, seed: int = 0) -> None:
        self._oracle = oracle
        self._rng = np.random.default_rng([seed, number])
        self._ids = [f"w{number}-{i}" for i in range(N_IDS)]
        self._n = 0
        self.acknowledged: Known = dict.fromkeys(self._ids)
        self.under_way: Write | None = None
        self.n_acknowledged = 0

    def write(self, http: httpx2.Client) -> None:
        """Write once; whatever is acknowledged is remembered."""
        self.under_way = self._something()
        response = self.under_way.send(http, self._oracle.pictures)
        assert response.status_code == 200, response.text
        self._acknowledge()

    def _something(self) -> Write:
        there = [item_id for item_id, put in self.acknowledged.items() if put is not None]
        kind = self._rng.uniform()
        if kind < 0.25 and there:
            return Write({str(self._rng.choice(there)): None})
        n_items = 1 if kind < 0.7 else int(self._rng.integers(2, 5))
        ids = self._rng.choice(self._ids, n_items, replace=False)
        return Write({str(item_id): self._put() for item_id in ids})

    def _put(self) -> Put:
        self._n += 1
        return Put(int(self._rng.integers(len(self._oracle.pictures))), self._n)

    def _acknowledge(self) -> None:
        assert self.under_way is not None
        self.acknowledged |= self.under_way.items
        self.under_way = None
        self.n_acknowledged += 1

    def check(self, http: httpx2.Client) -> str:
        """What was acknowledged is there; what was under way is there whole, or not at all."""
        found = {item_id: self._found(http, item_id) for item_id in self._ids}
        if self.under_way is None:
            assert found == self.acknowledged
            return "nothing under way"
        after = self.acknowledged | self.under_way.items
        assert found in (self.acknowledged, after), (found, self.acknowledged, self.under_way)
        kept = found == after
        response = self.under_way.send(http, self._oracle.pictures)  # as a client would
        assert response.status_code == 200, response.text
        assert ("Idempotency-Replayed" in response.headers) == kept
        self._acknowledge()
        assert {item_id: self._found(http, item_id) for item_id in self._ids} == self.acknowledged
        return "kept, not acknowledged" if kept else "not kept"

    def _found(self, http: httpx2.Client, item_id: str) -> Put | None:
        response = http.get(f"{GALLERY}/items/{item_id}")
        if response.status_code == 404:
            return None
        metadata = response.json()["metadata"]
        return Put(metadata["image"], metadata["write"])


class CrashTest:
    """A service that is written to, searched, compacted and killed, again and again."""

    def __init__(
        self,
        root: Path,
        bundle: Path,
        log: Path,
        n_pictures: int = 12,
        settings: Mapping[str, str] = SETTINGS,
        *,
        compacts: bool = True,
        seed: int = 0,
    ) -> None:
        self._root, self._log = root, log
        self._settings, self._compacts = settings, compacts
        self.oracle = Oracle(bundle, n_pictures)
        self.writers = [Writer(number, self.oracle, seed) for number in range(N_WRITERS)]
        self.counts: Counter[str] = Counter()
        self._rng = np.random.default_rng(seed)

    def run(self, n_kills: int) -> None:
        """Kill the service so often; each time everything is checked by the next one."""
        for _ in range(n_kills):
            with Service(self._root, self._log, dict(self._settings)) as service:
                self._check(service)
                self._write_until_killed(service)
            self.counts["kills"] += 1
        with Service(self._root, self._log, dict(self._settings)) as service:
            self._check(service)
        self.counts["acknowledged"] = sum(writer.n_acknowledged for writer in self.writers)

    def _check(self, service: Service) -> None:
        for writer in self.writers:
            self.counts[writer.check(service.http)] += 1
        for number, picture in enumerate(self.oracle.pictures):
            answer = search(service.http, picture, limit=30).json()
            self.oracle.check(number, answer)
            self.counts["results checked"] += len(answer["results"])
        there = {
            item_id: put
            for writer in self.writers
            for item_id, put in writer.acknowledged.items()
            if put is not None
        }
        for item_id, put in there.items():
            answer = search(service.http, self.oracle.pictures[put.image], limit=100).json()
            assert item_id in [result["id"] for result in answer["results"]]

    def _write_until_killed(self, service: Service) -> None:
        killed = threading.Event()
        with ThreadPoolExecutor(N_WRITERS + 2) as threads:
            work = [
                threads.submit(self._keep_writing, service, one, killed) for one in self.writers
            ]
            work.append(threads.submit(self._keep_searching, service, killed))
            if self._compacts and self._rng.uniform() < 0.5:
                work.append(threads.submit(self._compact, service))
            threading.Event().wait(self._rng.uniform(0.2, 3.0))
            killed.set()
            service.kill()
        for one in work:
            one.result()

    def _keep_writing(self, service: Service, writer: Writer, killed: threading.Event) -> None:
        with _client(service) as http:
            try:
                while True:
                    writer.write(http)
            except httpx2.TransportError:
                assert killed.is_set()

    def _keep_searching(self, service: Service, killed: threading.Event) -> None:
        with _client(service) as http:
            try:
                for number in np.random.default_rng(1).integers(
                    len(self.oracle.pictures), size=9999
                ):
                    response = search(http, self.oracle.pictures[number], limit=20)
                    if response.status_code in {503, 504}:  # by a Milvus that is busy, say
                        self.counts["searches refused meanwhile"] += 1
                        continue
                    answer = response.raise_for_status().json()
                    self.oracle.check(int(number), answer)
                    self.counts["results checked meanwhile"] += len(answer["results"])
            except httpx2.TransportError:
                assert killed.is_set()

    def _compact(self, service: Service) -> None:
        with _client(service) as http, suppress(httpx2.TransportError):
            http.post(f"{GALLERY}/compact").raise_for_status()
            self.counts["compactions"] += 1


def _client(service: Service) -> httpx2.Client:
    return httpx2.Client(base_url=service.http.base_url, timeout=TIMEOUT_S, trust_env=False)
