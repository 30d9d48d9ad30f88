"""Two workers over plain uvicorn's two, and over one process, on two cores.

`vouch-serve --processes 2`, ``uvicorn --factory --workers 2`` with the same application
(`load.plain_workers`) and one process answer the same clients in turns, all with a Redis and their
default settings: images that were never asked before, images that Redis knows, and photographs of
50 kB. Once on the machine as it is, and once beside a process for each core that computes without
end. Ratios are of answers a second within a round.

    python -m tests.benchmarks.bench_workers BUNDLE [--plain COMMAND]

COMMAND starts the service of another release as plain workers; ``--port N`` is added to it.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from model_store import open_bundle
from tests.benchmarks.bench_busy import busy_cores
from tests.benchmarks.bench_load import WORK, generate
from tests.benchmarks.load.generator import Job
from tests.benchmarks.load.photographs import TOKEN
from tests.benchmarks.load.requests import Request, form
from tests.benchmarks.load.servers import Server, server, until_all_answer
from tests.benchmarks.measured import record_figures
from tests.end_to_end.processes import Redis

N_ROUNDS = 5
N_CLIENTS = 32
N_IMAGES = 64
SECONDS = 1.5
PLAIN = (
    f"{sys.executable} -m uvicorn --factory --workers 2 --no-access-log "
    "tests.benchmarks.load.plain_workers:app"
)
SEEDS = itertools.count(1)
"""Jobs of different seeds have no image in common."""
DEFAULTS = ("VOUCH_ENCODER_THREADS", "VOUCH_CACHE_BYTES", "OMP_NUM_THREADS")
"""Variables that other benchmarks set; an empty one is left to its default."""


def measure(bundle: Path, plain: str) -> dict[str, float]:
    """Ratios of answers a second, and the answers a second of the two workers."""
    opened = open_bundle(bundle, provider="cpu")
    requests = _requests(opened.name, opened.retriever.encoder.metadata.preprocessing.height)
    ours = [sys.executable, "-m", "service", "--bundle", str(bundle)]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    found: dict[str, float] = {}
    WORK.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, ExitStack() as running:
        redis = running.enter_context(Redis(Path(folder) / "redis.log"))
        settings = {
            **dict.fromkeys(DEFAULTS, ""),
            "VOUCH_BUNDLE": str(bundle),
            "VOUCH_REDIS_URL": redis.url,
            "VOUCH_CANARY_PERIOD_S": "3600",
        }
        commands = {
            "workers": (ours, {"VOUCH_PROCESSES": "2"}),
            "plain": (shlex.split(plain), {}),
            "one": (ours, {}),
        }
        targets = {
            name: running.enter_context(server(command, cores, "/readyz", settings | more))
            for name, (command, more) in commands.items()
        }
        until_all_answer(targets["workers"], 2)
        for state in ("quiet", "busy"):
            with busy_cores() if state == "busy" else nullcontext():
                for kind, asked in requests.items():
                    rates = _rates(targets, asked, cores, f"{state} {kind}")
                    found |= _figures(f"{state}_{kind}", rates)
    return found


def _requests(gallery: str, side: int) -> dict[str, list[Request]]:
    """Return the requests of each kind; those with a token in the image are never the same."""
    rng = np.random.default_rng(0)
    small = [rng.integers(0, 256, (side, side), dtype=np.uint8) for _ in range(N_IMAGES)]
    coarse = [rng.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(N_IMAGES // 4)]
    photographs = [
        np.asarray(Image.fromarray(one).resize((640, 480), Image.Resampling.BICUBIC))
        for one in coarse
    ]
    path = f"/v1/galleries/{gallery}/search"

    def asked(pixels: Sequence[np.ndarray], comment: bytes) -> list[Request]:
        return [
            Request("search", form("POST", path, [("image", _jpeg(one, comment))]), (b'"verdict"',))
            for one in pixels
        ]

    return {
        "new": asked(small, TOKEN),
        "known": asked(small, b"known"),
        "photographs": asked(photographs, TOKEN),
    }


def _jpeg(pixels: np.ndarray, comment: bytes) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=85, comment=comment)
    return data.getvalue()


def _rates(
    targets: Mapping[str, Server], requests: Sequence[Request], cores: str, about: str
) -> dict[str, list[float]]:
    """Return the answers a second of each target in each round."""
    rates: dict[str, list[float]] = {name: [] for name in targets}
    job = Job(
        port=0,
        server=0,
        requests=requests,
        shares=[1.0] * len(requests),
        rate=0.0,
        n_clients=N_CLIENTS,
        warm_up_s=1.0,
        seconds=SECONDS,
        deadline_s=30.0,
        patience_s=30.0,
        seed=0,
    )
    for number in range(N_ROUNDS):
        # No target is always the first to be asked.
        for place in range(len(targets)):
            name = list(targets)[(place + number) % len(targets)]
            target, seed = targets[name], next(SEEDS)
            mine = replace(job, port=target.port, server=target.pid, seed=seed)
            outcome = generate(mine, cores)
            if outcome.goodput == 0 or set(outcome.statuses) != {"200"}:
                raise RuntimeError(f"{about}, {name}: {outcome.statuses}")
            rates[name].append(outcome.goodput)
    print(about, {name: [round(one) for one in some] for name, some in rates.items()}, flush=True)
    return rates


def _figures(name: str, rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found = {f"{name}_per_s": statistics.median(rates["workers"])}
    for other in ("plain", "one"):
        pairs = zip(rates["workers"], rates[other], strict=True)
        found[f"{name}_over_{other}"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--plain", default=PLAIN, help="command of the plain workers")
    asked = parser.parse_args()
    found = measure(asked.bundle.resolve(), asked.plain)
    print(json.dumps(found, indent=1))
    record_figures("workers", found, globals())


if __name__ == "__main__":
    main()
