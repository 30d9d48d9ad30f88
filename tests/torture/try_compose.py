"""Three replicas behind the balancer, written to, killed, exchanged, stopped.

Starts the compose file under a project name of its own, with a volume of its own, and takes both
away again. Needs a Docker Engine on this machine, and Linux, where replicas are reached by their
addresses.

    python -m tests.torture.try_compose [--port 18080]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
BUILD = Path("build")
PROJECT = "vouch-trial"
GALLERY = "/v1/galleries/demo"
NAMED = {"Host": "localhost"}
"""Replicas are reached by their addresses, which without keys are none of their names (421)."""

N_PUTS = 30
N_CALLERS = 6
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the load: when it began, and its status, 0 where the connection broke."""

    began: float
    status: int
    is_search: bool


class Trial:
    """The running project, and what was seen of it."""

    def __init__(self, port: int) -> None:
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "VOUCH_PORT": str(port),
            "VOUCH_BUNDLES": "bundles",
            "VOUCH_REPLICAS": "3",
        }
        self.balancer = f"http://127.0.0.1:{port}"
        self.figures: dict[str, Any] = {}
        self._random = np.random.default_rng()

    def compose(self, *arguments: str) -> str:
        """What ``docker compose`` prints."""
        return self.run("docker", "compose", *arguments)

    def run(self, *command: str) -> str:
        """What a command prints that works on the project."""
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def inspected(self) -> list[dict[str, Any]]:
        """What Docker knows of the replicas, stopped ones too."""
        ids = self.compose("ps", "--all", "--quiet", "service").split()
        found: list[dict[str, Any]] = json.loads(docker("inspect", *ids))
        return sorted(found, key=lambda one: str(one["Name"]))

    def replicas(self) -> list[str]:
        """Their addresses."""
        networks = [one["NetworkSettings"]["Networks"] for one in self.inspected()]
        return [f"http://{one[f'{PROJECT}_outside']['IPAddress']}:8080" for one in networks]

    def picture(self) -> bytes:
        """One that nobody has sent before."""
        file = io.BytesIO()
        pixels = self._random.integers(0, 255, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 64)).save(file, "PNG")
        return file.getvalue()

    def searches_share_a_cache(self) -> None:
        """What one replica has encoded is known to all, to the last bit."""
        picture = self.picture()
        answers = [search(replica, picture) for replica in self.replicas()]
        assert [answer["cache"] for answer in answers] == ["miss", "hit", "hit"], answers
        assert len({json.dumps(answer["results"]) for answer in answers}) == 1

    def writes_are_found_everywhere(self) -> None:
        """An item that was put through the balancer is the first result of every replica."""
        replicas, n_stale = self.replicas(), 0
        with ThreadPoolExecutor(len(replicas)) as callers:
            for number in range(N_PUTS):
                picture = self.picture()
                assert put(self.balancer, f"trial-{number}", picture) == 200
                found = list(callers.map(lambda one, sent=picture: search(one, sent), replicas))
                n_stale += sum(a["results"][0]["id"] != f"trial-{number}" for a in found)
        self.figures |= {"n_puts": N_PUTS, "n_stale_searches": n_stale}
        assert n_stale == 0

    def a_replica_ends(self, how: str) -> None:
        """Only writes that a killed replica was at work on fail, and nothing of a stopped one."""
        victim = self.inspected()[1]["Id"]
        with self.load() as asked:
            time.sleep(3)
            docker(how, victim)
            ended = time.monotonic()
            time.sleep(6)
            docker("start", victim)
            time.sleep(6)
        failed = [one for one in asked if one.status != 200]
        self.figures |= {f"n_asked_{how}": len(asked), f"n_failed_{how}": len(failed)}
        assert len(failed) <= (1 if how == "kill" else 0), failed  # one caller writes
        assert all(one.began < ended and not one.is_search for one in failed)
        self.compose("up", "--detach", "--wait", "--no-recreate", "--no-deps", "service")

    def a_roll_loses_nothing(self) -> None:
        """All replicas are replaced under load; no request fails."""
        before = {one["Id"] for one in self.inspected()}
        with self.load() as asked:
            self.run("docker/roll.sh")
        after = {one["Id"] for one in self.inspected()}
        failed = [one for one in asked if one.status != 200]
        self.figures |= {"n_asked_roll": len(asked), "n_failed_roll": len(failed)}
        assert (len(after), before & after, failed) == (3, set(), [])

    def another_bundle_is_followed(self) -> None:
        """A compaction while items are put: none is refused or lost, and all replicas follow."""
        picture, written = self.picture(), 0
        with ThreadPoolExecutor(1) as other:
            compacted = other.submit(httpx2.post, f"{self.balancer}{GALLERY}/compact", timeout=60)
            began = time.monotonic()
            while {bundle_of(one, picture) for one in self.replicas()} != {
                compacted.result().json()["bundle_id"] if compacted.done() else None
            }:
                assert put(self.balancer, f"meanwhile-{written}", picture) == 200
                written += 1
                assert time.monotonic() - began < TIMEOUT_S
        self.figures |= {"followed_s": round(time.monotonic() - began, 2), "n_meanwhile": written}
        for replica in self.replicas():
            for number in range(written):
                item = f"{replica}{GALLERY}/items/meanwhile-{number}"
                httpx2.get(item, headers=NAMED).raise_for_status()

    def it_stops(self) -> None:
        """Every replica ends by itself, with status 0."""
        self.compose("stop")
        assert [one["State"]["ExitCode"] for one in self.inspected()] == [0, 0, 0]

    @contextmanager
    def load(self) -> Iterator[list[Asked]]:
        """Searches and some writes through the balancer, for as long as the context lasts."""
        asked: list[Asked] = []
        over = threading.Event()
        pictures = [self.picture() for _ in range(20)]

        def call(caller: int) -> None:
            number = 0
            with httpx2.Client(base_url=self.balancer, timeout=TIMEOUT_S) as client:
                while not over.is_set():
                    picture, began, status = pictures[number % 20], time.monotonic(), 0
                    with suppress(httpx2.TransportError):
                        if caller == 0:
                            status = put(client, f"load-{number}", picture)
                        else:
                            url = f"{GALLERY}/search"
                            status = client.post(url, files={"image": picture}).status_code
                    asked.append(Asked(began, status, caller > 0))
                    number += 1

        with ThreadPoolExecutor(N_CALLERS) as callers:
            for caller in range(N_CALLERS):
                callers.submit(call, caller)
            try:
                yield asked
            finally:
                over.set()


def docker(*arguments: str) -> str:
    """What ``docker`` prints."""
    return subprocess.run(
        ["docker", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def search(base: str, picture: bytes) -> dict[str, Any]:
    """The answer to a picture."""
    url = f"{base}{GALLERY}/search"
    response = httpx2.post(url, headers=NAMED, files={"image": picture}, timeout=TIMEOUT_S)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def bundle_of(base: str, picture: bytes) -> str:
    """The id of the bundle that answers."""
    return str(search(base, picture)["bundle"]["id"])


def put(to: str | httpx2.Client, name: str, picture: bytes) -> int:
    """Write an item; the status."""
    client, base = (httpx2, to) if isinstance(to, str) else (to, "")
    url = f"{base}{GALLERY}/items/{name}"
    return int(client.put(url, files={"image": picture}, timeout=TIMEOUT_S).status_code)


def main() -> None:
    """Start, try everything, print, take away."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--port", type=int, default=18080)
    trial = Trial(parser.parse_args().port)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("replicas share a cache", trial.searches_share_a_cache),
        ("what is written is found everywhere", trial.writes_are_found_everywhere),
        ("a replica is killed", lambda: trial.a_replica_ends("kill")),
        ("a replica is stopped", lambda: trial.a_replica_ends("stop")),
        ("all replicas are replaced", trial.a_roll_loses_nothing),
        ("another bundle is followed", trial.another_bundle_is_followed),
        ("all of it stops", trial.it_stops),
    ]
    try:
        trial.compose("up", "--detach", "--wait")
        for name, step in steps:
            step()
            print("ok", name)
    finally:
        trial.compose("down", "--volumes")
    BUILD.mkdir(exist_ok=True)
    (BUILD / "try-compose.json").write_text(json.dumps(trial.figures, indent=1) + "\n", "utf-8")
    print(json.dumps(trial.figures, indent=1))


if __name__ == "__main__":
    main()
