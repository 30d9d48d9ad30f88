"""``make torture NAME=poison``: good requests that are lost because of a neighbour's bad image.

The same 30 rounds of eight requests at once, one of them a truncated file, a bomb or no image at
all, then 100 good ones; sent to `vouch-serve` and to LitServe with the same encoder and
``max_batch_size=8``. LitServe comes from PyPI into a throw-away environment in build/.

    python -m tests.torture.poison BUNDLE

Prints its figures and writes them to build/poison.json; exits with 1 if Vouch lost a request.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np

from model_store.bundles.directory import locate
from model_store.bundles.manifest import ENCODER_FILE
from tests.end_to_end.processes import TIMEOUT_S, Process, Service, free_port, wait_until
from tests.end_to_end.questions import bad_images, picture

BUILD = Path("build")
LITSERVE = BUILD / "litserve"
SERVER = Path(__file__).with_name("litserve_encoder.py")

N_ROUNDS = 30
N_AT_ONCE = 8
N_AFTERWARDS = 100


def main() -> None:
    """Send, count, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    bundle = locate(parser.parse_args().bundle)
    BUILD.mkdir(exist_ok=True)
    gallery = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["gallery"]["name"]
    with Service(bundle, fresh_log("poison-vouch.log")) as vouch:
        results = {"vouch": lost_requests(vouch.port, f"/v1/galleries/{gallery}/search")}
    version = install_litserve()
    port = free_port()
    command = [str(LITSERVE / "bin/python"), str(SERVER), str(bundle / ENCODER_FILE), str(port)]
    with Process(command, fresh_log("poison-litserve.log"), os.environ) as litserve:
        wait_until(lambda: is_healthy(port), litserve)
        results[f"litserve {version}"] = lost_requests(port, "/predict")
        litserve.send(signal.SIGTERM)
        litserve.popen.wait(TIMEOUT_S)
    text = json.dumps(results, indent=1)
    (BUILD / "poison.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(any(results["vouch"][name] for name in ("good_lost", "afterwards_lost")))


def lost_requests(port: int, path: str) -> dict[str, int]:
    """How many good requests were not answered, beside bad ones and afterwards."""
    rng = np.random.default_rng(0)
    good = (picture("PNG", seed=seed) for seed in itertools.count())
    bad = itertools.cycle(image for image, _ in bad_images())
    lost = 0
    with httpx2.Client(
        base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, trust_env=False
    ) as client:
        alone = ask_at_once(client, path, itertools.islice(good, N_AT_ONCE))
        if set(alone) != {200}:
            raise RuntimeError(f"without any bad image the server answers {alone}")
        for _ in range(N_ROUNDS):
            images = list(itertools.islice(good, N_AT_ONCE - 1))
            place = int(rng.integers(N_AT_ONCE))
            images.insert(place, next(bad))
            statuses = ask_at_once(client, path, images)
            del statuses[place]
            lost += sum(status != 200 for status in statuses)
        afterwards = ask_at_once(client, path, itertools.islice(good, N_AFTERWARDS))
    return {
        "good": N_ROUNDS * (N_AT_ONCE - 1),
        "good_lost": lost,
        "afterwards": len(afterwards),
        "afterwards_lost": sum(status != 200 for status in afterwards),
    }


def ask_at_once(client: httpx2.Client, path: str, images: Iterable[bytes]) -> list[int]:
    """Send ``images`` from eight connections; their statuses, 0 where a connection broke."""

    def ask(image: bytes) -> int:
        try:
            return client.post(path, files={"image": ("query", image)}).status_code
        except httpx2.TransportError:
            return 0

    with ThreadPoolExecutor(N_AT_ONCE) as callers:
        return list(callers.map(ask, images))


def install_litserve() -> str:
    """LitServe and what its server imports, in an environment of its own; returns its version."""
    uv = str(Path(sys.executable).with_name("uv"))
    python = LITSERVE / "bin/python"
    subprocess.run(
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, LITSERVE], check=True
    )
    wanted = ["litserve", "onnxruntime", "pillow", "numpy", "python-multipart"]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *wanted], check=True)
    said = "from importlib.metadata import version; print(version('litserve'))"
    return subprocess.run(
        [python, "-c", said], check=True, capture_output=True, text=True
    ).stdout.strip()


def is_healthy(port: int) -> bool:
    """Whether LitServe says that it serves."""
    try:
        with httpx2.Client(trust_env=False) as client:
            return client.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


def fresh_log(name: str) -> Path:
    """A log file that holds nothing yet."""
    log = BUILD / name
    log.unlink(missing_ok=True)
    return log


if __name__ == "__main__":
    main()
