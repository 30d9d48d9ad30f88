"""Many callers, at once or for a while, and what became of each of their requests."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from types import TracebackType
from typing import Self

import httpx2

from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.questions import search

BREAK_S = 1.0  # after a connection that broke; a process that is killed is gone by then


def at_once(service: Service, images: Iterable[bytes], n_callers: int) -> list[httpx2.Response]:
    """Ask for all ``images`` from so many connections; answers in the order of the images."""
    with ThreadPoolExecutor(n_callers) as callers:
        return list(callers.map(lambda image: search(service.http, image, limit=5), images))


def sent(service: Service, image: bytes) -> HTTPConnection:
    """A search that was sent, and whose answer nobody has read yet."""
    url = service.http.base_url.join("/v1/galleries/digits/search")
    request = httpx2.Request("POST", url, files={"image": ("query", image)})
    connection = HTTPConnection("127.0.0.1", service.port)
    connection.request("POST", url.path, request.read(), dict(request.headers))
    return connection


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of many.

    Attributes
    ----------
    number : of its image.
    response : None where the connection broke.
    seconds : to its answer.
    """

    number: int
    response: httpx2.Response | None
    seconds: float

    @property
    def status(self) -> int:
        """Of HTTP; 0 where the connection broke."""
        return 0 if self.response is None else self.response.status_code


class Load:
    """Callers that ask, each as soon as it has its answer, for as long as the context lasts.

    One whose connection broke waits a moment, as clients do: a process that is killed loses
    its sockets one after another, and the one that it listens to may be the last.

    Parameters
    ----------
    images : asked for in turn, over and over.
    change : what is done to each before it is sent.

    Attributes
    ----------
    asked : what became of every request, once the context is left.
    """

    def __init__(
        self,
        service: Service,
        images: Sequence[bytes],
        n_callers: int = 8,
        change: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._service = service
        self._images = images
        self._change = change
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._callers = [threading.Thread(target=self._call) for _ in range(n_callers)]
        self.asked: list[Asked] = []

    def __enter__(self) -> Self:
        for caller in self._callers:
            caller.start()
        self.wait_for_answers(len(self._callers))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for caller in self._callers:
            caller.join()

    def wait_for_answers(self, n: int) -> None:
        """Wait for ``n`` more answers."""
        wanted = len(self.asked) + n
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.asked) < wanted:
            self._service.require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.asked)} answers of {wanted}")
            time.sleep(0.01)

    def _call(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers) % len(self._images)
            image = self._change(self._images[number])
            started = time.perf_counter()
            try:
                response = search(self._service.http, image, limit=5)
            except httpx2.TransportError:
                response = None
            self.asked.append(Asked(number, response, time.perf_counter() - started))
            if response is None:
                self._over.wait(BREAK_S)


async def ask_at_a_rate(
    service: Service, images: Iterable[bytes], per_second: float, path: str
) -> list[Asked]:
    """Send images at a rate that does not wait for answers, as the world does."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=service.http.base_url, limits=limits, timeout=TIMEOUT_S, trust_env=False
    ) as client:

        async def ask(number: int, image: bytes) -> Asked:
            await asyncio.sleep(number / per_second)
            started = time.perf_counter()
            try:
                response = await client.post(path, files={"image": ("query", image)})
            except httpx2.TransportError:
                response = None
            return Asked(number, response, time.perf_counter() - started)

        return await asyncio.gather(*(ask(*numbered) for numbered in enumerate(images)))
