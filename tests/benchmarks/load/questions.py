"""The requests of the load: what they ask, with which photographs, and what is right."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import numpy as np

from model_store import open_bundle
from model_store.gallery import read_filter
from model_store.machine import one_blas_thread
from tests.benchmarks.bench_throughput import IMAGES
from tests.benchmarks.load.photographs import photographs
from tests.benchmarks.load.requests import Request, form

PHOTOGRAPHS = {"small": (48, 0.6), "web": (16, 0.25), "phone": (8, 0.15)}
"""How many of each size there are, and the share of searches that they have."""

MIX = {"search": 0.8, "filtered": 0.1, "write": 0.05, "batch": 0.05}
"""Shares of requests. A write puts an item that is there, with its own photograph, so that the
right answers stay the same; a batch has `IN_A_BATCH` small photographs."""

IN_A_BATCH = 4
N_WRITES = N_BATCHES = 8

Asked = tuple[list[Request], list[float]]
"""Requests, and the share of each."""


class Questions:
    """Photographs, with the first result that each must find.

    Parameters
    ----------
    seed : of what is chosen.
    """

    def __init__(self, bundles: Path, seed: int) -> None:
        self.seed = seed
        rng = np.random.default_rng(seed)
        files = sorted(IMAGES.rglob("*.*"))
        chosen = iter(rng.permutation(len(files)))
        self._photographs: dict[str, list[bytes]] = {}
        for size, (n, _) in PHOTOGRAPHS.items():
            some = [files[next(chosen)] for _ in range(n)]
            self._photographs[size] = photographs(some, size, bundles.parent / "photographs")
        retriever = open_bundle(bundles, provider="cpu", threads=1).retriever
        with one_blas_thread():
            answers = {
                data: retriever.search(data, 1).matches[0]
                for some in self._photographs.values()
                for data in some
            }
            self._second = {}
            for data, first in answers.items():
                text = json.dumps({"label": {"ne": first.label}})
                other = retriever.search(data, 1, where=read_filter(text)).matches[0]
                self._second[data] = text, other.id
        self._first = {data: first.id for data, first in answers.items()}
        gallery = retriever.gallery
        rows = gallery.page(None, gallery.n_items)
        written = gallery.items(rng.choice(rows, N_WRITES, replace=False))
        by_id = {f"{file.parent.name}/{file.name}": file for file in files}
        self._written = [(item, by_id[item.id]) for item in written]

    def searches(self, path: str, template: str) -> Asked:
        """Searches alone; ``template`` is of the part of an answer that holds the first id."""
        requests, shares = [], []
        for size, some in self._photographs.items():
            for data in some:
                right = template.format(id=self._first[data]).encode()
                pieces = form("POST", path, [("image", data)])
                requests.append(Request(f"search {size}", pieces, (right,)))
                shares.append(PHOTOGRAPHS[size][1] / len(some))
        return requests, shares

    def mixed(self, path: str, template: str) -> Asked:
        """Searches, searches under a filter, writes and batches; see `MIX`."""
        searches, of_searches = self.searches(path, template)
        asked = {
            "search": list(zip(searches, of_searches, strict=True)),
            "filtered": list(zip(self._filtered(path, template), of_searches, strict=True)),
            "write": [(one, 1 / N_WRITES) for one in self._writes(path)],
            "batch": [(one, 1 / N_BATCHES) for one in self._batches(path, template)],
        }
        whole = [(one, MIX[kind] * share) for kind, some in asked.items() for one, share in some]
        return [one for one, _ in whole], [share for _, share in whole]

    def _filtered(self, path: str, template: str) -> list[Request]:
        """Searches among the items of another label than the first result's."""
        made = []
        for size, some in self._photographs.items():
            for data in some:
                text, first = self._second[data]
                pieces = form("POST", path, [("image", data)], {"filter": text})
                right = template.format(id=first).encode()
                made.append(Request(f"filtered {size}", pieces, (right,)))
        return made

    def _writes(self, path: str) -> list[Request]:
        made = []
        for item, file in self._written:
            at = path.replace("/search", f"/items/{quote(item.id)}")
            fields = {"label": item.label or "", "metadata": json.dumps(dict(item.metadata))}
            pieces = form("PUT", at, [("image", file.read_bytes())], fields)
            made.append(Request("write", pieces, (b'"existed":true',)))
        return made

    def _batches(self, path: str, template: str) -> list[Request]:
        small, made = self._photographs["small"], []
        for number in range(N_BATCHES):
            some = [small[(number * IN_A_BATCH + i) % len(small)] for i in range(IN_A_BATCH)]
            right = tuple(template.format(id=self._first[data]).encode() for data in some)
            pieces = form("POST", f"{path}/batch", [("images", data) for data in some])
            made.append(Request("batch", pieces, right))
        return made
