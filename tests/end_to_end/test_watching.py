"""A real service as whoever watches it sees it: its log, its traces, its end."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

from tests.end_to_end.collector import Collector, attributes
from tests.end_to_end.processes import Service, free_port


def test_every_line_is_json_whoever_writes_it(
    digits_bundle: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    with Service(digits_bundle, tmp_path / "log") as service:
        answer = service.answer(samples[0])
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 400")
        service.send(signal.SIGTERM)
        assert service.popen.wait(30) == 0
        lines = [json.loads(line) for line in service.printed().splitlines()]
    assert {"service.requests", "service.encoding.process"} <= {line["logger"] for line in lines}
    assert not any("Invalid HTTP" in line["message"] for line in lines)  # a stranger fills no log
    of_the_request = [line for line in lines if line.get("request_id") == answer["request_id"]]
    assert [line["message"] for line in of_the_request] == ["request"]


def test_the_last_traces_are_sent_before_the_end(
    digits_bundle: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    with Collector() as collector:
        variables = {
            "VOUCH_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        with Service(digits_bundle, tmp_path / "log", variables) as service:
            answer = service.answer(samples[0])
            assert collector.spans() == []
            service.send(signal.SIGTERM)
            assert service.popen.wait(30) == 0
        root = collector.root("POST /v1/galleries/{gallery}/search")
        assert attributes(root)["vouch.request_id"] == answer["request_id"]
        assert len(collector.parts(root)) == 6


def test_without_a_collector_it_answers_and_ends_as_ever(
    digits_bundle: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    variables = {"VOUCH_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    with Service(digits_bundle, tmp_path / "log", variables) as service:
        for sample in samples:
            service.answer(sample)
        began = time.monotonic()
        service.send(signal.SIGTERM)
        assert service.popen.wait(30) == 0
        assert time.monotonic() - began < 15
        for line in service.printed().splitlines():
            json.loads(line)
