"""What the log says of who asked, and what it never says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from service.observability.logs import JsonFormatter
from tests.end_to_end.keys import KeysFile, bearer, id_of, secret_of
from tests.end_to_end.questions import picture, search

StartClient = Callable[..., TestClient]

HOUR = timedelta(hours=1)


def test_who_asked_is_there(
    start: StartClient, keys_file: KeysFile, caplog: pytest.LogCaptureFixture
) -> None:
    client = start(keys=keys_file.path)
    text = keys_file.make("read", name="web shop")
    with caplog.at_level(logging.INFO, "service.requests"):
        client.get("/v1/galleries", headers=bearer(text))
        client.get("/v1/galleries")
    told = [record for record in caplog.records if record.name == "service.requests"]
    one, other = (record.__dict__["fields"] for record in told)
    assert (one["key"], one["key_name"]) == (id_of(text), "web shop")
    assert "key" not in other


def test_a_secret_is_nowhere_however_it_was_sent(
    start: StartClient, keys_file: KeysFile, caplog: pytest.LogCaptureFixture
) -> None:
    client = start(keys=keys_file.path)
    good, gone = keys_file.make("write"), keys_file.make("read", expires=-HOUR)
    wrong = good[:-6] + "abcdef"
    with caplog.at_level(logging.DEBUG):
        for text in (good, gone, wrong):
            for headers in (
                bearer(text),
                {"X-API-Key": text},
                {"Cookie": f"key={text}"},
                {"User-Agent": text, "Referer": f"https://a.example/?key={text}"},
                {"X-Request-Id": text},
            ):
                client.get("/v1/galleries", headers=headers, params={"api_key": text})
                client.get(f"/v1/galleries/{text}", headers=headers)
                client.get(f"/{text}/{text[:-1]}", headers=headers)
                search(client, picture("PNG"), text)
    own = [record for record in caplog.records if record.name.startswith(("service", "uvicorn"))]
    assert len(own) >= 45
    lines = [JsonFormatter().format(record) for record in own]
    for line in lines:
        json.loads(line)
        for text in (good, gone, wrong):
            assert secret_of(text)[:16] not in line
    assert any(f"vouch_{id_of(good)}_…" in json.loads(line).get("path", "") for line in lines)


def test_a_secret_in_a_traceback_is_not_there_either() -> None:
    text = f"vouch_{'0' * 12}_{'ab' * 32}"
    record = logging.makeLogRecord(
        {"msg": "unhandled", "exc_info": (ValueError, ValueError(text), None)}
    )
    line = JsonFormatter().format(record)
    assert "ab" * 8 not in line
    assert "vouch_000000000000_…" in json.loads(line)["exception"]
