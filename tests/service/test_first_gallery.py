"""A service that was started without bundles: it creates its first gallery itself."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from index_builder.encoders import resolve_encoder
from index_builder.indexing.assemble import new_gallery
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.encoder.onnx import OnnxEncoder
from service.app import create_app
from service.encoding.queues import SharedEncoders
from service.serving.builder import builder_command
from service.settings import Settings
from tests.end_to_end.keys import KeysFile, bearer
from tests.support.local_client import LocalClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

START = Callable[..., TestClient]

COPIES = """
import pathlib, shutil, sys, time
*_, log, built, _, _, _, place = sys.argv
while pathlib.Path(log + ".wait").exists(): time.sleep(0.01)
shutil.copytree(built, place, dirs_exist_ok=True)
with open(log, "a") as file: file.write("built ")
"""
"""In place of `vouch-build new NAME --bundles PLACE`, which takes seconds: copies its result."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `vouch-build new` publishes."""
    place = tmp_path_factory.mktemp("built")
    return new_gallery(place / "bundles", "first", resolve_encoder(None, place / "encoders")).parent


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where each run of the builder leaves a word."""
    return tmp_path / "log"


@pytest.fixture
def builder(built: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that is as fast as a copy."""
    command = sys.executable, "-c", COPIES, str(log), str(built)
    monkeypatch.setattr("service.serving.builder.builder_command", lambda *_: command)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[START]:
    """Start the application over a folder of galleries, and over bundles if there are any."""
    started: list[TestClient] = []
    encoders = SharedEncoders(
        lambda find, provider, threads: OnnxEncoder(find(), provider, threads)
    )
    open_one = partial(open_bundle, provider="cpu", threads=1, open_encoder=encoders.open)

    def start_one(*bundles: Bundle, **settings: Any) -> TestClient:
        given: dict[str, Any] = {
            "decoders": 0,
            "recalibrate": False,
            "galleries": tmp_path / "galleries",
        }
        app = create_app(Settings(**given | settings), bundles, open_more=open_one)
        started.append(LocalClient(app, raise_server_exceptions=False).__enter__())
        return started[-1]

    yield start_one
    for client in started:
        client.__exit__(None, None, None)


def create(client: TestClient, name: str, key: str | None = None, **more: str) -> Any:
    headers = None if key is None else bearer(key)
    return client.post("/v1/galleries", json={"name": name, **more}, headers=headers)


def put(client: TestClient, gallery: str, item: str, image: bytes) -> Any:
    path = f"/v1/galleries/{gallery}/items/{item}"
    return client.put(path, files={"image": image})


def search(client: TestClient, gallery: str, image: bytes) -> Any:
    return client.post(f"/v1/galleries/{gallery}/search", files={"image": image})


def encoder_of(client: TestClient, gallery: str, key: str | None = None) -> str:
    headers = None if key is None else bearer(key)
    detail = client.get(f"/v1/galleries/{gallery}", headers=headers).json()
    fingerprint: str = detail["encoder"]["fingerprint"]
    return fingerprint


def left_in(tmp_path: Path) -> list[str]:
    """What is in the folder of galleries, besides its names and its locks."""
    folder = tmp_path / "galleries"
    return sorted(path.name for path in folder.iterdir() if path.name not in {"names", ".changing"})


def test_service_without_galleries_answers_everything_else(serve: START, digit: bytes) -> None:
    client = serve()
    assert client.get("/readyz").json()["galleries"] == []
    assert client.get("/readyz").status_code == client.get("/livez").status_code == 200
    assert "vouch_created_galleries_open 0.0" in client.get("/metrics").text
    assert client.get("/v1/galleries").json() == {"galleries": []}
    assert "Vouch" in client.get("/").text
    for answer in (search(client, "shoes", digit), put(client, "shoes", "one", digit)):
        assert (answer.status_code, answer.json()["code"]) == (404, "gallery_not_found")
        assert "There is no gallery 'shoes'" in answer.json()["detail"]


@pytest.mark.slow
def test_first_gallery_takes_items_is_searched_and_survives_a_restart(
    serve: START, digit: bytes, stranger: bytes, built: Path, tmp_path: Path
) -> None:
    first = serve(deadline_s=600)  # the real builder, on a busy machine
    made = create(first, "shoes", title="Shoes")
    assert made.status_code == 201, made.json()
    detail = made.json()
    assert (detail["title"], detail["n_items"]) == ("Shoes", 0)
    assert detail["bundle"]["calibration"]["status"] == "missing"
    own = open_bundle(built, "cpu").retriever.encoder.fingerprint
    assert detail["encoder"]["fingerprint"] == own
    assert put(first, "shoes", "one", digit).status_code == 200
    assert put(first, "shoes", "two", stranger).status_code == 200
    assert [path for path in left_in(tmp_path) if path.startswith(".work")] == []
    for client in (first, serve()):
        answer = search(client, "shoes", digit).json()
        assert answer["verdict"] == "not_calibrated"
        assert [result["id"] for result in answer["results"]] == ["one", "two"]
        assert answer["results"][0]["similarity"] > 0.999


@pytest.mark.usefixtures("builder")
def test_later_gallery_has_the_encoder_of_the_oldest_one(
    serve: START, bundle: Bundle, log: Path
) -> None:
    with_bundle = serve(bundle)
    create(with_bundle, "z-old")
    create(with_bundle, "a-new")
    client = serve()
    assert client.get("/readyz").json()["galleries"] == []
    assert create(client, "boots").status_code == 201
    assert encoder_of(client, "boots") == bundle.retriever.encoder.fingerprint
    assert create(client, "hats", like="boots").status_code == 201
    assert not log.exists()  # no encoder was needed
    for name in ("z-old", "a-new", "boots", "hats"):
        client.delete(f"/v1/galleries/{name}", params={"confirm": name})
    assert create(client, "boots").status_code == 201
    assert encoder_of(client, "boots") != bundle.retriever.encoder.fingerprint
    assert log.read_text() == "built "


def test_service_without_the_builder_names_what_to_install(
    serve: START, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = create(serve(), "shoes")
    assert (refused.status_code, refused.json()["code"]) == (409, "write_refused")
    assert "pip install '.[build]'" in refused.json()["detail"]
    assert left_in(tmp_path) == []


def test_builder_that_fails_leaves_nothing_and_its_reason_is_logged(
    serve: START,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    command = sys.executable, "-c", "import sys; sys.exit('no such disk')"
    monkeypatch.setattr("service.serving.builder.builder_command", lambda *_: command)
    with caplog.at_level(logging.ERROR):
        refused = create(serve(), "shoes")
    assert (refused.status_code, refused.json()["code"]) == (503, "write_error")
    assert "no such disk" not in refused.json()["detail"]
    [record] = [one for one in caplog.records if one.message == "no empty bundle was built"]
    assert "no such disk" in record.__dict__["fields"]["reason"]
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("builder")
def test_creation_continues_after_the_deadline_of_its_request(serve: START, log: Path) -> None:
    waits = log.with_name("log.wait")
    waits.touch()
    client = serve(deadline_s=0.5)
    late = create(client, "shoes")
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")

    def listed() -> list[str] | None:
        """The names of the galleries; None if the deadline ended this request, too."""
        answer = client.get("/v1/galleries")
        if answer.status_code == 504:
            return None
        return [one["name"] for one in answer.json()["galleries"]]

    wait_until(lambda: listed() == [])
    waits.unlink()
    wait_until(lambda: listed() == ["shoes"])


@pytest.mark.usefixtures("builder")
def test_creation_waits_until_the_gallery_is_open(
    serve: START, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.serving.served.OPEN_TIMEOUT_S", 0.001)
    assert create(serve(), "shoes").status_code == 201


@pytest.mark.usefixtures("builder")
def test_key_for_some_galleries_uses_no_other_gallery_as_a_template(
    serve: START, keys_file: KeysFile, bundle: Bundle, log: Path
) -> None:
    create(serve(bundle), "acme-1")  # with the encoder of the digits
    acme = keys_file.make("admin", galleries=("acme-*",), max_galleries=2)
    other = keys_file.make("admin", galleries=("other-*",))
    writer = keys_file.make("write")
    client = serve(keys=keys_file.path)
    assert create(client, "shoes", writer).status_code == 403
    assert create(client, "shoes", acme).status_code == 403
    assert create(client, "acme-2", acme).status_code == 201
    assert encoder_of(client, "acme-2", acme) == bundle.retriever.encoder.fingerprint
    assert create(client, "acme-3", acme).json()["code"] == "quota_exceeded"
    assert not log.exists()
    assert create(client, "other-1", other).status_code == 201
    assert encoder_of(client, "other-1", other) != bundle.retriever.encoder.fingerprint


@pytest.mark.usefixtures("builder")
def test_folder_that_cannot_be_written_is_an_error_and_no_failure(
    serve: START, tmp_path: Path
) -> None:
    client = serve()
    shutil.rmtree(tmp_path / "galleries")
    refused = create(client, "shoes")
    assert (refused.status_code, refused.json()["code"]) == (503, "storage_failed")


def test_builder_is_found_only_with_the_modules_that_a_command_needs() -> None:
    assert builder_command("onnx", "typer")[-2:] == ("-m", "index_builder.__main__")
    assert builder_command("typer", "no_such_module") == ()
