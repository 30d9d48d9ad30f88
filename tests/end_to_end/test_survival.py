"""Processes are killed and stopped, far too much is asked, and what can be answered is answered."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest

from tests.end_to_end.load import Asked, Load, ask_at_a_rate, sent
from tests.end_to_end.processes import (
    TIMEOUT_S,
    Service,
    refuses_connections,
    wait_until,
)
from tests.end_to_end.questions import content, unseen
from tests.support.image_files import slow_png
from tests.support.killing import halted

SEARCH = "/v1/galleries/digits/search"
N_CALLERS = 8
DEADLINE_S = 4.0
OVERLOAD_S = 4.0
STEADY = 2.0
"""Two capacities that differ by less are of a machine whose other work has not changed much."""

N_ATTEMPTS = 5
FORGETFUL = {
    "VOUCH_CACHE_BYTES": "0",
    "VOUCH_CANARY_PERIOD_S": "3600",
    "VOUCH_DECODERS": "3",
}
"""Every image is encoded, and nothing else is."""

ONE_BY_ONE = {**FORGETFUL, "VOUCH_MAX_BATCH_PIXELS": "1"}
"""The same; the encoder is given a single image at a time, on any number of processors."""


@pytest.fixture(scope="module")
def lasting(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that loses processes; its encoder is given images one by one."""
    settings = {**FORGETFUL, "VOUCH_MAX_BATCH": "1", "VOUCH_DECODERS": "2"}
    with Service(digits_bundle, tmp_path_factory.mktemp("lasting") / "log", settings) as running:
        yield running


@pytest.fixture(scope="module")
def narrow(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that takes few requests."""
    settings = {
        **FORGETFUL,
        "VOUCH_MAX_IN_FLIGHT": str(N_CALLERS * 4 // 3),  # of which one address gets so many
        "VOUCH_MAX_BATCH": "1",
    }
    with Service(digits_bundle, tmp_path_factory.mktemp("narrow") / "log", settings) as running:
        yield running


def assert_problem(response: httpx2.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == code
    if status == 503:
        assert int(response.headers["Retry-After"]) >= 1


class TestTheEncoderIsKilled:
    def test_who_was_at_work_is_told_and_it_comes_back_by_itself(
        self,
        lasting: Service,
        pictures: list[bytes],
        record_property: Callable[[str, object], None],
    ) -> None:
        n_kills = 3
        alone = [content(lasting.answer(image, limit=5)) for image in pictures]
        [started] = lasting.logged("engine started")
        with Load(lasting, pictures, N_CALLERS, unseen) as load:
            for _ in range(n_kills):
                n_starts = n_encoder_starts(lasting)
                encoder = lasting.encoder()
                encoder.suspend()  # so that it is killed at work, whatever the moment
                lasting.wait_for_requests(N_CALLERS)
                wait_until(lambda: lasting.metric("vouch_queue_length") > 0, lasting)
                encoder.kill()
                killed = time.monotonic()
                wait_until(partial(has_started_again, lasting, n_starts), lasting)
                assert lasting.http.get("/livez").status_code == 200
                wait_until(lasting.is_ready, lasting)
                record_property("ready_again_s", time.monotonic() - killed)
                load.wait_for_answers(N_CALLERS)
        lost = [asked for asked in load.asked if asked.status != 200]
        # A kill between the taking of an image and its way to the encoder meets it at rest.
        at_work = lasting.metric("vouch_encoder_stops_total")
        assert 0 < at_work <= n_kills
        # One for each kill; of several that it was given in a turn, none: they are encoded again.
        assert (at_work if started["turn"] == 1 else 0) <= len(lost) <= at_work
        for asked in lost:
            assert asked.response is not None
            assert_problem(asked.response, 503, "encoder_stopped")
        assert_all_equal([asked for asked in load.asked if asked.status == 200], alone)


def n_encoder_starts(service: Service) -> int:
    return len(service.logged("encoder started"))


def has_started_again(service: Service, n_starts: int) -> bool:
    return n_encoder_starts(service) > n_starts


def assert_all_equal(asked: list[Asked], alone: list[dict[str, Any]]) -> None:
    """Each of these was answered, as its image is answered alone."""
    assert asked
    for one in asked:
        assert one.response is not None
        assert one.status == 200, one.response.text
        assert content(one.response.json()) == alone[one.number]


def n_decoders_ended(service: Service) -> int:
    """Those that were killed; one that was just starting says so in other words."""
    said = ("decoder lost", "decoder does not start")
    return sum(len(service.logged(message)) for message in said)


def wait_for_an_end(service: Service, n_before: int) -> None:
    wait_until(lambda: n_decoders_ended(service) > n_before, service)


class TestNoDecoderAnswers:
    def test_the_service_says_that_it_is_not_ready(
        self, digits_bundle: Path, tmp_path: Path
    ) -> None:
        settings = {"VOUCH_CANARY_PERIOD_S": "0.5", "VOUCH_DECODERS": "2"}
        with Service(digits_bundle, tmp_path / "log", settings) as running:
            with halted(*running.decoders()):
                wait_until(lambda: not running.is_ready(), running)
                assert running.http.get("/livez").status_code == 200
            wait_until(running.is_ready, running)


class TestADecoderIsKilled:
    def test_nobody_loses_by_it(self, lasting: Service, pictures: list[bytes]) -> None:
        n_kills = 3
        alone = [content(lasting.answer(image, limit=5)) for image in pictures]
        with Load(lasting, pictures, N_CALLERS, unseen) as load:
            for _ in range(n_kills):
                n_ended = n_decoders_ended(lasting)
                wait_until(lambda: len(lasting.decoders()) == 2, lasting)
                victim, other = lasting.decoders()
                with halted(victim, other):  # so that both are killed, or wait, at work
                    lasting.wait_for_requests(N_CALLERS)
                    victim.kill()
                load.wait_for_answers(N_CALLERS)
                # Those who waited may be answered before the lost one has been laid to rest.
                wait_for_an_end(lasting, n_ended)
                assert lasting.is_ready()
        assert_all_equal(load.asked, alone)


class TestTooMuchIsAsked:
    def test_at_five_times_the_capacity(
        self, narrow: Service, record_property: Callable[[str, object], None]
    ) -> None:
        costly = slow_png(3)
        expected = content(narrow.answer(costly, limit=5))
        for _ in range(N_ATTEMPTS):  # until the machine is as fast after the flood as before it
            before = capacity_of(narrow, costly)
            n_before = len(narrow.logged("request"))
            n_asked = int(5 * before * OVERLOAD_S)
            images = (unseen(costly) for _ in range(n_asked))
            flood, watched = asyncio.run(flooded(narrow, images, 5 * before))
            lines = narrow.logged("request")[n_before:]
            after = capacity_of(narrow, costly)
            if 1 / STEADY < after / before < STEADY:
                break
        capacity = min(before, after)

        accepted = [asked.seconds for asked in flood if asked.status == 200]
        refused = [asked for asked in flood if asked.status != 200]
        for asked in refused:
            assert asked.response is not None
            assert_problem(asked.response, 503, "overloaded")
        # What is done for those refused is not taken from the others: less than a half is lost to
        # the flood itself, whose sender shares the machine.
        assert len(accepted) > capacity * OVERLOAD_S / 3
        assert len(refused) > n_asked / 2
        # So many are worked on at a time: each is answered before ten times as many could be.
        soon_s = 10 * N_CALLERS / capacity
        assert np.percentile(accepted, 99) < soon_s
        # By the service's own clock: that of the sender, who shares the machine, is late for all.
        taken: dict[int, list[float]] = {200: [], 503: []}
        for line in lines:
            if line["path"].endswith("/search"):
                taken[line["status"]].append(line["ms"])
        assert np.median(taken[503]) < np.median(taken[200])
        assert len(watched) > 4
        assert {asked.status for asked in watched} == {200}
        assert max(asked.seconds for asked in watched) < soon_s
        record_property("capacity_per_s", capacity)
        record_property("accepted_p99_s", float(np.percentile(accepted, 99)))
        refused_p99 = np.percentile([one.seconds for one in refused], 99)
        record_property("refused_p99_s", float(refused_p99))
        assert content(narrow.answer(costly, limit=5)) == expected


def capacity_of(service: Service, image: bytes) -> float:
    """Answers a second to callers who keep both decoders busy, and of whom none is refused."""
    with Load(service, [image], N_CALLERS // 2, unseen) as load:
        begun, n_before = time.monotonic(), len(load.asked)
        load.wait_for_answers(3 * N_CALLERS)
        rate = (len(load.asked) - n_before) / (time.monotonic() - begun)
    assert {asked.status for asked in load.asked} == {200}
    return rate


class TestNobodyWaitsAnyMore:
    def test_what_is_not_answered_in_time_is_given_up(
        self, digits_bundle: Path, tmp_path: Path, pictures: list[bytes]
    ) -> None:
        settings = {**ONE_BY_ONE, "VOUCH_DEADLINE_S": str(DEADLINE_S)}
        with Service(digits_bundle, tmp_path / "log", settings) as service:
            before = service.metric("vouch_batch_size_sum")
            with ThreadPoolExecutor(N_CALLERS) as callers, halted(service.encoder()):
                asked = [callers.submit(service.ask, image) for image in pictures[:N_CALLERS]]
                responses = [one.result() for one in asked]  # while the encoder stands still
            for response in responses:
                assert_problem(response, 504, "deadline_exceeded")
            given_up = partial(lines_of, service, 504)
            wait_until(lambda: len(given_up()) == N_CALLERS, service)
            # While the encoder stood still; how late, a busy machine decides. The loop's clock
            # stands within one of its turns, so a deadline may begin before its request.
            assert all(line["ms"] >= 900 * DEADLINE_S for line in given_up())
            n_more = 1
            while service.ask(pictures[0]).status_code == 504:  # a busy machine may be too slow
                n_more += 1
            # The first of them was with the encoder already.
            assert service.metric("vouch_batch_size_sum") <= before + 1 + n_more

    def test_an_image_whose_client_has_gone_is_not_encoded(
        self, digits_bundle: Path, tmp_path: Path, pictures: list[bytes]
    ) -> None:
        def n_waiting() -> float:
            return service.metric("vouch_queue_length")

        with Service(digits_bundle, tmp_path / "log", ONE_BY_ONE) as service:
            before = service.metric("vouch_batch_size_sum")
            with ThreadPoolExecutor(1) as caller, halted(service.encoder()):
                hasty = [sent(service, image) for image in pictures[1:N_CALLERS]]
                # One of them has reached the encoder, and no other will.
                wait_until(lambda: n_waiting() == len(hasty) - 1, service)
                patient = caller.submit(service.ask, pictures[0])
                wait_until(lambda: n_waiting() == len(hasty), service)
                for connection in hasty:
                    connection.close()
                service.wait_for_requests(1)
            assert patient.result().status_code == 200
            assert service.metric("vouch_batch_size_sum") == before + 2
            wait_until(lambda: len(lines_of(service, 499)) == len(hasty), service)


def lines_of(service: Service, status: int) -> list[dict[str, Any]]:
    """Log lines of the requests that were answered with ``status``."""
    return [line for line in service.logged("request") if line["status"] == status]


class TestItIsAskedToEnd:
    def test_under_load_it_answers_what_it_has_begun(
        self, digits_bundle: Path, tmp_path: Path, pictures: list[bytes]
    ) -> None:
        with Service(digits_bundle, tmp_path / "log", FORGETFUL) as service:
            alone = [content(service.answer(image, limit=5)) for image in pictures[:N_CALLERS]]
            children = psutil.Process(service.popen.pid).children(recursive=True)
            assert {service.encoder(), *service.decoders()} <= set(children)
            with ThreadPoolExecutor(N_CALLERS) as callers:
                with halted(service.encoder()):
                    asked = [
                        callers.submit(service.ask, image, limit=5)
                        for image in pictures[:N_CALLERS]
                    ]
                    service.wait_for_requests(N_CALLERS)
                    service.send(signal.SIGTERM)
                    wait_until(lambda: refuses_connections(service.port), service)
                answers = [one.result().raise_for_status().json() for one in asked]
            assert [content(answer) for answer in answers] == alone
            assert service.popen.wait(TIMEOUT_S) == 0
            _, left = psutil.wait_procs(children, timeout=10)
            assert left == []
            assert "Traceback" not in service.printed()

    def test_though_the_encoder_hangs(
        self, digits_bundle: Path, tmp_path: Path, pictures: list[bytes]
    ) -> None:
        """Docker waits 30 s from its signal to its kill, and so do we."""
        settings = {**FORGETFUL, "VOUCH_DEADLINE_S": "1"}
        with Service(digits_bundle, tmp_path / "log", settings) as service:
            children = psutil.Process(service.popen.pid).children(recursive=True)
            service.encoder().suspend()
            assert_problem(service.ask(pictures[0]), 504, "deadline_exceeded")
            service.send(signal.SIGTERM)
            assert service.popen.wait(20) == 0
            _, left = psutil.wait_procs(children, timeout=10)
            assert left == []


async def flooded(
    service: Service, images: Iterator[bytes], per_second: float
) -> tuple[list[Asked], list[Asked]]:
    """Ask at a rate; what became of that, and of looking after the service's health meanwhile."""
    flood = asyncio.create_task(ask_at_a_rate(service, images, per_second, SEARCH))
    watched = []
    async with httpx2.AsyncClient(
        base_url=service.http.base_url, timeout=TIMEOUT_S, trust_env=False
    ) as client:
        while not flood.done():
            for path in ("/livez", "/metrics"):
                started = time.perf_counter()
                response = await client.get(path)
                watched.append(Asked(0, response, time.perf_counter() - started))
            await asyncio.sleep(0.1)
    return await flood, watched
