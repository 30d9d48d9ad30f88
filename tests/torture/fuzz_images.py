"""Thousands of hostile files through the door that strangers use.

A `vouch-serve` gets every file of `hostile_images` over HTTP, several at a time. Each must be
answered with 200, or with 4xx and a problem document, within the deadline; the service must not
grow, nor a decoder beyond its budget; and at the end a good image must be answered as at the start.

    python -m tests.torture.fuzz_images BUNDLE [--cases 10000] [--seed 0]

Prints its figures, writes them to build/fuzz-images.json, and exits with 1 if anything was amiss;
files that were answered wrongly are kept in build/fuzz-images/.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tests.end_to_end.processes import Service
from tests.end_to_end.questions import search
from tests.support.hostile_images import cases
from tests.support.image_files import encoded, picture

BUILD = Path("build")
N_CLIENTS = 4
MIB = 2**20

DEADLINE_S = 30.0

SETTINGS = {
    "VOUCH_DECODE_TIMEOUT_S": "1",
    "VOUCH_DECODER_MEMORY_BYTES": str(512 * MIB),
    "VOUCH_DEADLINE_S": str(DEADLINE_S),
    "VOUCH_CACHE_BYTES": "0",  # or it would fill, which is growth too
}
"""A smaller budget than by default, so that what is too costly costs this script less; and a later
deadline, so that a busy machine does not answer 504 before the budget is spent."""

DECODER_MIB = 512 + 100  # its budget, and what an idle one takes
GROWTH_MIB = 64


class Memory:
    """Watches how much memory a service and its decoders take.

    Attributes
    ----------
    service : MiB resident, one a sample.
    decoder : MiB resident of the largest decoder seen.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.service: list[float] = []
        self.decoder = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def growth(self) -> float:
        """MiB that the service has grown since the first tenth of the run."""
        tenth = max(1, len(self.service) // 10)
        return float(np.median(self.service[-tenth:]) - np.median(self.service[tenth : 2 * tenth]))

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.service.append(_resident(self._pid))
            children = Path(f"/proc/{self._pid}/task").glob("*/children")
            for pid in {pid for file in children for pid in _read(file).split()}:
                if "service.decoding.worker" in _read(Path(f"/proc/{pid}/cmdline")):
                    self.decoder = max(self.decoder, _resident(int(pid)))


def main() -> None:
    """Ask, count, report."""
    options = _options()
    (BUILD / "fuzz-images").mkdir(parents=True, exist_ok=True)
    good = encoded(picture(300, 200), "JPEG")
    log = BUILD / "fuzz-images.log"
    log.unlink(missing_ok=True)
    with Service(options.bundle, log, SETTINGS) as service, Memory(service.popen.pid) as memory:
        gallery = service.http.get("/v1/galleries").json()["galleries"][0]["name"]
        before = _numbers(service.answer(good, gallery=gallery, limit=5))
        asked = time.monotonic()
        with ThreadPoolExecutor(N_CLIENTS) as clients:
            outcomes = list(
                clients.map(
                    lambda case: _ask(service, gallery, *case), cases(options.cases, options.seed)
                )
            )
        seconds = time.monotonic() - asked
        after = _numbers(service.answer(good, gallery=gallery, limit=5))
    faults = [fault for _, _, fault in outcomes if fault]
    if before != after:
        faults.append("the good image is answered otherwise than before")
    if memory.decoder > DECODER_MIB:
        faults.append(f"a decoder took {memory.decoder:.0f} MiB")
    if memory.growth() > GROWTH_MIB:
        faults.append(f"the service has grown by {memory.growth():.0f} MiB")
    times = np.array([taken for _, taken, _ in outcomes])
    figures = {
        "cases": len(outcomes),
        "statuses": dict(sorted(Counter(status for status, _, _ in outcomes).items())),
        "seconds": round(seconds, 1),
        "request_p50_s": round(float(np.median(times)), 4),
        "request_p99_s": round(float(np.quantile(times, 0.99)), 4),
        "request_max_s": round(float(times.max()), 2),
        "decoder_max_mib": round(memory.decoder),
        "service_max_mib": round(max(memory.service)),
        "service_growth_mib": round(memory.growth(), 1),
        "decoders_lost": log.read_text(encoding="utf-8").count("decoder lost"),
        "faults": faults,
    }
    text = json.dumps(figures, indent=1)
    (BUILD / "fuzz-images.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(1 if faults else 0)


def _ask(service: Service, gallery: str, name: str, data: bytes) -> tuple[int, float, str | None]:
    """Status, seconds, and what was wrong with the answer."""
    started = time.monotonic()
    response = search(service.http, data, gallery)
    taken = time.monotonic() - started
    fault = _fault(response.status_code, response.headers["Content-Type"], response.json())
    if taken > DEADLINE_S:
        fault = f"took {taken:.1f} s"
    if fault is not None:
        kept = BUILD / "fuzz-images" / "".join(c if c.isalnum() else "-" for c in name)
        kept.write_bytes(data)
        fault = f"{name}: {fault}"
    return response.status_code, taken, fault


def _fault(status: int, media_type: str, body: dict[str, Any]) -> str | None:
    if status == 200:
        numbers = [result["similarity"] for result in body["results"]]
        return None if numbers and np.isfinite(numbers).all() else f"answered {numbers}"
    if not 400 <= status < 500:
        return f"status {status}: {body}"
    if media_type != "application/problem+json" or not {"code", "detail"} <= body.keys():
        return f"status {status} as {media_type}: {body}"
    return None


def _numbers(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("verdict", "query", "results")}


def _resident(pid: int) -> float:
    pages = _read(Path(f"/proc/{pid}/statm")).split()
    return int(pages[1]) * 4096 / MIB if pages else 0.0


def _read(file: Path) -> str:
    """The text of a file in /proc; nothing where the process has ended."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
