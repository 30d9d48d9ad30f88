"""The end of a service behind a load balancer, and the health check of its container."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.processes import (
    TIMEOUT_S,
    VOUCH_SERVE,
    Service,
    environment,
    refuses_connections,
    wait_until,
)
from tests.support.certificates import write_certificate
from tests.support.killing import halted

DRAIN_S = 5


def test_service_drains_before_it_ends(
    digits_bundle: Path, tmp_path: Path, belonging: list[bytes]
) -> None:
    settings = {"VOUCH_DRAIN_S": str(DRAIN_S)}
    with Service(digits_bundle, tmp_path / "log", settings) as service:
        assert "connection" not in service.http.get("/livez").headers
        began = time.monotonic()
        service.send(signal.SIGTERM)
        wait_until(lambda: service.http.get("/readyz").status_code == 503, service)
        # New connections, and the one that was kept; the last is answered long before the end.
        until = time.monotonic() + 1
        while time.monotonic() < until:
            answer = service.ask(belonging[0])
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
            assert service.http.get("/livez").status_code == 200
        wait_until(lambda: refuses_connections(service.port), service)
        assert time.monotonic() - began > DRAIN_S
        assert service.popen.wait(TIMEOUT_S) == 0
        assert "Traceback" not in service.printed()
        (stopping,) = service.logged("stopping")
        assert (stopping["level"], stopping["signal"]) == ("info", "SIGTERM")
        assert stopping["drain_s"] == DRAIN_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_second_signal_ends_the_service_at_once(
    digits_bundle: Path, tmp_path: Path, request: pytest.FixtureRequest, number: signal.Signals
) -> None:
    settings = {"VOUCH_DRAIN_S": "600"}  # five times as long as is waited for its end
    # The service inherits what `nohup make test` ignores.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    with Service(digits_bundle, tmp_path / "log", settings) as service:
        service.send(number)
        wait_until(lambda: service.http.get("/readyz").status_code == 503, service)
        service.send(number)
        assert service.popen.wait(TIMEOUT_S) == 0
        assert [line["signal"] for line in service.logged("stopping")] == [number.name]
        lines = [json.loads(line) for line in service.printed().splitlines()]
        assert [line for line in lines if line["level"] not in {"debug", "info"}] == []


def test_second_signal_answers_the_requests_in_progress(
    digits_bundle: Path, tmp_path: Path, belonging: list[bytes]
) -> None:
    settings = {"VOUCH_DRAIN_S": "600"}
    with (
        Service(digits_bundle, tmp_path / "log", settings) as service,
        ThreadPoolExecutor(1) as caller,
        halted(*service.encoders()),
    ):
        asked = caller.submit(service.ask, belonging[0])
        service.wait_for_requests(1)
        service.send(signal.SIGTERM)
        wait_until(lambda: service.http.get("/readyz").status_code == 503, service)
        service.send(signal.SIGTERM)
        assert service.popen.wait(TIMEOUT_S) == 0
        answer = asked.result()
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert "Traceback" not in service.printed()


def health(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*VOUCH_SERVE, "--check-health", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=environment(variables),
    )


def test_health_check_asks_by_the_services_own_settings(
    digits_bundle: Path, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    tls = {"VOUCH_TLS_CERT": str(cert), "VOUCH_TLS_KEY": str(key)}
    hardened = {"VOUCH_ALLOWED_HOSTS": "search.example", "VOUCH_ROOT_PATH": "/vouch"}
    with Service(digits_bundle, tmp_path / "log", hardened) as service:
        port = str(service.port)
        assert health("--port", port).returncode == 0
        assert health(VOUCH_PORT=port).returncode == 0
        assert health(vouch_port=port, VOUCH_HOST="0.0.0.0").returncode == 0
        assert health(VOUCH_PORT=port, VOUCH_HOST="[127.0.0.1]").returncode == 0  # as in [::1]
        secrets = tmp_path / "secrets"
        secrets.mkdir()
        (secrets / "vouch_port").write_text(f"{port}\n")
        assert health(VOUCH_SECRETS_DIR=str(secrets)).returncode == 0
        wrong = health(VOUCH_PORT=port, **tls)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "does not answer" in wrong.stderr
        service.send(signal.SIGSTOP)
        try:
            assert health(VOUCH_PORT=port).returncode == 1
        finally:
            service.send(signal.SIGCONT)
    assert health(VOUCH_PORT=port).returncode == 1
