"""How the process starts, refuses to start, and ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from index_builder.indexing.assemble import new_gallery
from model_store.bundles.manifest import ENCODER_FILE
from tests.end_to_end.forked import completed
from tests.end_to_end.processes import (
    TIMEOUT_S,
    VOUCH_SERVE,
    Service,
    environment,
    refuses_connections,
    wait_until,
)
from tests.support.bundle_copies import flip_a_byte
from tests.support.spoilt_encoders import break_graph


class TestTheEnd:
    def test_what_was_begun_is_answered_first(
        self, digits_bundle: Path, tmp_path: Path, belonging: list[bytes]
    ) -> None:
        image = belonging[0]
        with Service(digits_bundle, tmp_path / "log") as service:

            def halting_body() -> Iterator[bytes]:
                yield b"--edge\r\nContent-Disposition: form-data; "
                # A second connection that is answered shows that the first has been read.
                assert service.http.get("/livez").status_code == 200
                service.send(signal.SIGTERM)
                wait_until(lambda: refuses_connections(service.port), service)
                yield b'name="image"; filename="q"\r\n\r\n' + image + b"\r\n--edge--\r\n"

            with httpx2.Client(trust_env=False, timeout=TIMEOUT_S) as late:
                response = late.post(
                    f"{service.http.base_url}/v1/galleries/digits/search",
                    content=halting_body(),
                    headers={"Content-Type": "multipart/form-data; boundary=edge"},
                )
            assert response.status_code == 200
            assert response.json()["results"]
            assert service.popen.wait(TIMEOUT_S) == 0
            assert "Traceback" not in service.printed()

    def test_a_keyboard_ends_it_in_order(self, digits_bundle: Path, tmp_path: Path) -> None:
        with Service(digits_bundle, tmp_path / "log", command=VOUCH_SERVE) as service:
            service.send(signal.SIGINT)
            assert service.popen.wait(TIMEOUT_S) == 0
            assert "Traceback" not in service.printed()
            assert [line["signal"] for line in service.logged("stopping")] == ["SIGINT"]


class TestTheStart:
    def test_it_logs_json_and_nothing_else(self, service: Service) -> None:
        service.http.get("/none")
        wait_until(lambda: '"path": "/none"' in service.printed(), service)
        lines = [json.loads(line) for line in service.printed().splitlines()]
        opened = next(line for line in lines if line["message"] == "bundle opened")
        assert opened["gallery"] == "digits"
        assert opened["provider"] == "CPUExecutionProvider"
        assert [line for line in lines if line["level"] not in {"debug", "info"}] == []
        [serving] = [line for line in lines if line["message"] == "serving"]
        assert "galleries" not in serving
        [request] = [line for line in lines if line.get("path") == "/none"]
        assert (request["logger"], request["status"]) == ("service.requests", 404)


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `vouch-serve` that is expected to end by itself."""
    return completed(["--provider", "cpu", *arguments], environment())


def assert_refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    """Status 1 and one line that says what is wrong, in words."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("vouch-serve: ")
    for words in said:
        assert words in line


class TestARefusal:
    def test_no_bundle(self, tmp_path: Path) -> None:
        done = subprocess.run(  # as from a shell
            [*VOUCH_SERVE, "--provider", "cpu", "--bundle", str(tmp_path / "none")],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env=environment(),
        )
        assert_refused(done, f"No bundle at {tmp_path / 'none'}", "vouch-build all")

    def test_a_bundle_that_was_changed(self, digits_bundle: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(digits_bundle, copy)
        flip_a_byte(copy / "gallery.faiss")
        done = serve("--bundle", str(copy))
        assert_refused(done, "gallery.faiss differs from its manifest", "Build or copy")

    def test_an_encoder_that_embeds_nothing(
        self, digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = break_graph(digits_bundle / ENCODER_FILE, tmp_path / ENCODER_FILE, "nan")
        monkeypatch.setattr("index_builder.indexing.assemble.answer_canary", lambda _: None)
        new_gallery(tmp_path / "bundles", "shoes", broken)
        done = serve("--bundle", str(tmp_path / "bundles"), "--port", "0")
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        [line] = [one for one in done.stderr.splitlines() if not one.startswith("{")]
        assert line.startswith("vouch-serve: The encoder of the gallery 'shoes' cannot embed")

    def test_a_port_that_is_taken(self, service: Service, digits_bundle: Path) -> None:
        done = serve("--bundle", str(digits_bundle), "--port", str(service.port))
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert "address already in use" in done.stderr
        assert service.http.get("/livez").status_code == 200
