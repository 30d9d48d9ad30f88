"""Two processes that answer beside one: answers a second, processor time and memory of each.

    python -m tests.benchmarks.bench_processes BUNDLE [--encoders each] [--seconds 4] [--rounds 3]

Both services run all the time and are asked in turn, by eight connections, for images that nobody
has sent yet (`new`), for images that are in Redis (`known`), and for what is similar to items. The
images are thumbnails of the bundle's items.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing import Pool
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

import numpy as np
import psutil

from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import locate
from tests.end_to_end.processes import Redis, Service, wait_until

Kind = Literal["new", "known", "similar"]
KINDS: tuple[Kind, ...] = ("new", "known", "similar")
N_CONNECTIONS = 8
N_ITEMS = 100
SETTINGS = {"VOUCH_ENCODER_THREADS": "0", "VOUCH_WORKERS": "4", "VOUCH_DECODERS": "4"}
PARTS = {"encoding.worker": "encoder", "decoding.worker": "decoder", "--member": "member"}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--encoders", default="shared", help="`VOUCH_ENCODERS` of the two")
    options = parser.parse_args()
    bundle = locate(options.bundle)
    with tempfile.TemporaryDirectory() as folder, Redis(Path(folder) / "redis.log") as redis:
        settings = {**SETTINGS, "VOUCH_REDIS_URL": redis.url}
        both = [{**settings, "VOUCH_PROCESSES": str(n)} for n in (1, 2)]
        both[1]["VOUCH_ENCODERS"] = options.encoders
        with (
            Service(bundle, Path(folder) / "one.log", both[0]) as one,
            Service(bundle, Path(folder) / "two.log", both[1]) as two,
        ):
            wait_until(lambda: bool(two.http.get("/readyz").json()["processes"] == 2), two)
            figures = measured([one, two], Asked.of(bundle), options.seconds, options.rounds)
            figures["mebibytes"] = {"1": memory(one), "2": memory(two)}
    print(json.dumps(figures, indent=1, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for: some items of a gallery, and their pictures."""

    gallery: str
    pictures: Mapping[str, bytes]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read from a bundle."""
        bundle = open_bundle(path, "cpu", threads=1)
        gallery = bundle.retriever.gallery
        rows = np.arange(0, gallery.n_items, max(1, gallery.n_items // N_ITEMS))
        pictures = {item.id: gallery.thumbnail(item.id).data for item in gallery.items(rows)}
        return cls(bundle.name, pictures)


def measured(
    services: list[Service], asked: Asked, seconds: float, rounds: int
) -> dict[str, object]:
    """Ask the services in turn; the medians of their ratios, and what each was in every round."""
    for service in services:
        for kind in KINDS:
            answered(service.port, kind, asked, 1.0)
    figures: dict[str, object] = {}
    with Pool(1) as asking:  # in a process of its own, whose time is nobody's
        for kind in KINDS:
            rates, costs = np.zeros((rounds, 2)), np.zeros((rounds, 2))
            for n in range(rounds):
                for which in (0, 1) if n % 2 == 0 else (1, 0):
                    before, began = processor_s(services[which]), time.monotonic()
                    port = services[which].port
                    n_answers = asking.apply(answered, (port, kind, asked, seconds))
                    rates[n, which] = n_answers / (time.monotonic() - began)
                    costs[n, which] = (processor_s(services[which]) - before) / n_answers
            figures[kind] = {
                "answers_a_second_2_over_1": (rates[:, 1] / rates[:, 0]).round(2).tolist(),
                "processor_time_2_over_1": (costs[:, 1] / costs[:, 0]).round(2).tolist(),
                "answers_a_second": np.median(rates, axis=0).round(1).tolist(),
                "processor_ms_an_answer": np.median(1000 * costs, axis=0).round(2).tolist(),
            }
    return figures


def answered(port: int, kind: Kind, asked: Asked, seconds: float) -> int:
    """Ask for so long; the number of answers."""
    until = time.monotonic() + seconds
    counts = [0] * N_CONNECTIONS
    ids, images = [*asked.pictures], [*asked.pictures.values()]
    gallery = f"/v1/galleries/{asked.gallery}"

    def ask(which: int) -> None:
        connection = HTTPConnection("127.0.0.1", port)
        place = which * len(ids) // N_CONNECTIONS
        while time.monotonic() < until:
            place = (place + 1) % len(ids)
            if kind == "similar":
                connection.request("GET", f"{gallery}/items/{quote(ids[place])}/similar?limit=10")
            else:
                body = images[place] + (uuid.uuid4().bytes if kind == "new" else b"")
                kind_of_body = {"Content-Type": "application/octet-stream"}
                connection.request("POST", f"{gallery}/search/raw?limit=10", body, kind_of_body)
            response = connection.getresponse()
            response.read()
            counts[which] += response.status == 200
        connection.close()

    threads = [threading.Thread(target=ask, args=(which,)) for which in range(N_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def processes(service: Service) -> list[psutil.Process]:
    """Return all processes of a service."""
    parent = psutil.Process(service.popen.pid)
    return [parent, *parent.children(recursive=True)]


def processor_s(service: Service) -> float:
    """Return the processor time that a service has taken."""
    times = [process.cpu_times() for process in processes(service)]
    return sum(one.user + one.system for one in times)


def memory(service: Service) -> dict[str, int]:
    """Return the memory that nobody else has, by kind of process."""
    found: Counter[str] = Counter()
    n: Counter[str] = Counter()
    for process in processes(service):
        said = " ".join(process.cmdline())
        kind = next((name for part, name in PARTS.items() if part in said), "parent")
        found[kind] += process.memory_full_info().uss
        n[kind] += 1
    return {f"{kind} × {n[kind]}": round(found[kind] / n[kind] / 2**20) for kind in found}


if __name__ == "__main__":
    main()
