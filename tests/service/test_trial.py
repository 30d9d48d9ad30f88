"""How many processes pay: what follows from what was measured, and that it is measured."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from model_store.bundles.bundle import open_bundle
from model_store.errors import EncoderError
from model_store.processors import usable_processors
from service import trial
from service.settings import Settings
from service.start import _processes, _serve_by_several
from service.trial import Costs, useful_processes

PROCESSORS = range(1, 17)


class TestWhatPays:
    @pytest.mark.parametrize(
        ("answering_ms", "encoding_ms", "n_processors", "wanted"),
        [
            (4.0, 2.0, 1, 1),
            (4.0, 2.0, 2, 2),  # 4/3 of a process are busy
            (4.0, 8.0, 2, 1),
            (4.0, 8.0, 16, 6),
            (4.0, 76.0, 16, 1),  # four fifths of one
            (4.0, 3.3, 2, 1),  # 1.096: less than a tenth of a second one
            (4.0, 3.2, 2, 2),  # 1.111
        ],
    )
    def test_beside_an_encoder_on_the_same_processors(
        self, answering_ms: float, encoding_ms: float, n_processors: int, wanted: int
    ) -> None:
        # While nobody answers, all processors encode.
        encoded_per_s = n_processors / (encoding_ms / 1000)
        costs = Costs(answering_ms / 1000, encoded_per_s, encodes_beside=True)
        assert costs.useful_processes(n_processors) == wanted

    @pytest.mark.parametrize(
        ("encoded_per_s", "n_processors", "wanted"),
        [(200, 8, 1), (270, 8, 1), (280, 8, 2), (1_000, 8, 4), (10_000, 8, 8), (10_000, 1, 1)],
    )
    def test_before_a_gpu_as_many_as_keep_it_busy(
        self, encoded_per_s: float, n_processors: int, wanted: int
    ) -> None:
        costs = Costs(0.004, encoded_per_s, encodes_beside=False)
        assert costs.useful_processes(n_processors) == wanted

    @pytest.mark.parametrize("encodes_beside", [True, False])
    def test_it_is_never_more_than_what_a_simulation_of_busy_parts_uses(
        self, *, encodes_beside: bool
    ) -> None:
        """With n processes, the rate is that of whatever is busy first."""
        for n_processors in PROCESSORS:
            for encoded_per_s in (10.0, 100.0, 1_000.0, 10_000.0):
                costs = Costs(0.005, encoded_per_s, encodes_beside=encodes_beside)

                def rate(n: int, costs: Costs = costs, c: int = n_processors) -> float:
                    encoding_s = c / costs.encoded_per_s if costs.encodes_beside else 0.0
                    all_busy = c / (costs.answering_s + encoding_s)
                    return min(n / costs.answering_s, all_busy, costs.encoded_per_s)

                found = costs.useful_processes(n_processors)
                best = max(map(rate, range(1, n_processors + 1)))
                assert rate(found) >= best / (1 + trial.TOLERANCE) - 1e-9
                if found > 1:
                    assert rate(found - 1) < best


class TestTryingOut:
    @pytest.mark.slow
    def test_what_is_chosen_follows_from_what_was_measured(
        self, digits_bundle: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        bundle = open_bundle(digits_bundle, "cpu")
        with caplog.at_level(logging.INFO, "service"):
            found = useful_processes(Settings(provider="cpu"), bundle)
        [chosen] = [line.fields for line in caplog.records if line.message == "processes chosen"]  # type: ignore[attr-defined]
        costs = Costs(chosen["answering_ms"] / 1000, chosen["encoded_per_s"], encodes_beside=True)
        assert found == chosen["processes"] == costs.useful_processes(usable_processors())
        assert 0.1 < chosen["answering_ms"] < 1_000
        assert chosen["encoded_per_s"] > 1
        assert not [line for line in caplog.records if line.message == "request"]

    def test_a_query_that_is_not_answered_is_said(self) -> None:
        async def refusing(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        with pytest.raises(EncoderError, match="was answered 503"):
            asyncio.run(trial._ask(refusing, "/", b""))

    def test_an_application_that_does_not_start_is_said(self) -> None:
        async def broken(_scope: Scope, receive: Receive, _send: Send) -> None:
            await receive()
            raise EncoderError("It does not answer.")

        async def start() -> None:
            async with trial._Running(broken):
                pytest.fail("it runs")

        with pytest.raises(EncoderError, match="does not answer"):
            asyncio.run(start())


def test_alone_where_more_could_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _processes(Settings(processes="auto")) == 1  # without a Redis
    with_redis = Settings.model_validate({"processes": "auto", "redis_url": "redis://localhost"})
    monkeypatch.setattr("service.start.usable_processors", lambda: 2)
    assert _processes(with_redis) == "auto"
    monkeypatch.setattr("service.start.usable_processors", lambda: 1)
    assert _processes(with_redis) == 1


def test_with_encoders_of_their_own_as_many_answer_as_there_are_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    class Family:
        def __init__(self, *_: object) -> None:
            pass

        def tried_out(self) -> int:
            pytest.fail("nothing is to be found out")

        def run(self, n: int, _: float) -> bool:
            started.append(n)
            return True

    monkeypatch.setattr("service.start.Family", Family)
    monkeypatch.setattr("service.start._doors", lambda _: [])
    monkeypatch.setattr("service.start.usable_processors", lambda: 3)
    settings = {"processes": "auto", "encoders": "each", "redis_url": "redis://localhost"}
    _serve_by_several(Settings.model_validate(settings), [])
    assert started == [3]
