"""A bundle whose gallery lies in Milvus, built by the command line and asked over HTTP."""

from __future__ import annotations

import json
import math
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pymilvus import MilvusClient, MilvusException
from typer.testing import CliRunner, Result

import vouch_search
from index_builder.commands.app import app
from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import activate, locate
from model_store.bundles.manifest import read_manifest
from model_store.encoder.contract import Embeddings
from model_store.errors import GalleryUnavailable, ItemNotFound
from model_store.gallery import FaissGallery, NewItem
from model_store.gallery.milvus.collection import MilvusAccess
from model_store.gallery.opening import DatabaseAccess
from tests.end_to_end.database_bundles import bundles_in_database
from tests.end_to_end.processes import Process, Service, free_port, wait_until
from tests.end_to_end.replicas import Replicas
from tests.end_to_end.writes import SETTINGS, CrashTest
from tests.support.bundle_copies import republished
from tests.support.milvus import IS_REAL, START_S, MilvusServer, write_milvus_gallery
from tests.support.postgres import a_postgres

ANSWER_S = 10
"""A busy Milvus answers within it; one that is killed refuses connections at once."""


class Milvus(Process):
    """A Milvus that listens: milvus-lite, or the real server, which goes on from what it had."""

    def __init__(self, directory: Path, port: int) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        log = directory / "milvus.log"
        if IS_REAL:
            (directory / "server").mkdir(exist_ok=True)
            server = MilvusServer(directory / "server", port, session_s=20)
            super().__init__(server.command, log, server.environment)
            deadline = time.monotonic() + START_S
            while not server.is_healthy():
                self.require_running()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            return
        folder = str(directory / "d")
        command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", folder]
        super().__init__([*command, "--port", str(port)], log, {})
        wait_until(self._answers, self)

    def _answers(self) -> bool:
        try:
            # A client alone would take over a connection to a Milvus that was at this address.
            socket.create_connection(("127.0.0.1", int(self.uri.rpartition(":")[2]))).close()
            MilvusClient(self.uri, timeout=2).close()
        except (OSError, MilvusException):
            return False
        return True


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("milvus")


class Tended:
    """A Milvus that tests kill, and start again where they need one: a start is dear."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, free_port()
        self._running = Milvus(directory, self._port)
        self.uri = self._running.uri

    def running(self) -> Milvus:
        """Return it, started once more if it was killed."""
        if self._running.popen.poll() is not None:
            self._running = Milvus(self._directory, self._port)
        return self._running

    def kill(self) -> None:
        """End it as a power cut would."""
        self._running.kill()


@pytest.fixture(scope="module")
def milvus(place: Path) -> Iterator[Tended]:
    tended = Tended(place)
    yield tended
    tended.kill()


@pytest.fixture(scope="module")
def bundles(milvus: Tended, place: Path, digits_bundle: Path, digits_run: Path) -> Path:
    """Bundles of the run behind `digits_bundle`, with their gallery in Milvus."""
    given = {"VOUCH_MILVUS_URI": milvus.uri}  # the bundle names another
    return bundles_in_database(digits_run, place, ["--milvus", "http://milvus:19530"], given)


def test_the_bundle_names_the_collection_and_holds_no_gallery(bundles: Path) -> None:
    directory = locate(bundles)
    index = read_manifest(directory).gallery["index"]
    assert (index["engine"], index["type"], index["recall_at_10"]) == ("milvus", "FLAT", 1)
    assert index["collection"] in (directory / "milvus.json").read_text(encoding="utf-8")
    assert not list(directory.glob("gallery.faiss")) + list(directory.glob("items.sqlite"))


def outages(log: Path) -> list[dict[str, Any]]:
    """Return the lines that say why Milvus is thought to be down.

    Either a request or the service's own look finds out first, and only that one knows why.
    """
    lines = log.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if '"Milvus does not answer;' in line]


def test_answers_are_those_of_files_and_an_outage_is_said(
    bundles: Path, milvus: Tended, place: Path, digits_bundle: Path, samples: list[bytes]
) -> None:
    variables = {
        "VOUCH_MILVUS_URI": milvus.uri,
        "VOUCH_MILVUS_TIMEOUT_S": str(ANSWER_S),
        "VOUCH_CANARY_PERIOD_S": "0.3",
    }
    # A service that others have asked too may have seen a drift, and then promises nothing.
    with (
        Service(digits_bundle, place / "files.log") as service,
        Service(bundles, place / "service.log", variables) as served,
    ):
        for image in samples[:6]:
            expected, answer = (one.answer(image, limit=20) for one in (service, served))
            for name in ("verdict", "results", "result_set", "query"):
                assert answer[name] == expected[name]
            assert answer["results"][0]["match_probability"] is not None
        item = service.answer(samples[0], limit=1)["results"][0]["id"]
        for path in (f"items/{item}", f"items/{item}/thumbnail", f"items/{item}/similar"):
            paths = f"/v1/galleries/digits/{path}"
            assert served.http.get(paths).status_code == 200, path

        milvus.kill()
        started = time.monotonic()
        refused = served.ask(samples[0])
        assert time.monotonic() - started < 5
        assert (refused.status_code, refused.json()["code"]) == (503, "gallery_unavailable")
        assert refused.headers["Retry-After"] == "2"
        assert milvus.uri.split(":")[-1] not in refused.text
        wait_until(lambda: outages(place / "service.log") != [], served)
        [line] = outages(place / "service.log")
        assert "Fail connecting to server" in line["reason"]
        wait_until(lambda: not served.is_ready(), served)
        with pytest.raises(GalleryUnavailable):
            open_bundle(
                bundles, "cpu", access=DatabaseAccess(milvus=MilvusAccess(milvus.uri, timeout_s=1))
            )
        milvus.running()
        wait_until(served.is_ready, served)
        assert served.answer(samples[0], limit=20)["results"]


@pytest.fixture
def again(milvus: Tended) -> Milvus:
    """The Milvus of these tests, started once more if the test before has killed it."""
    return milvus.running()


GALLERY = "/v1/galleries/digits"


def test_items_are_put_and_deleted_over_http(
    bundles: Path, milvus: Tended, again: Milvus, place: Path, samples: list[bytes]
) -> None:
    variables = {"VOUCH_MILVUS_URI": again.uri, "VOUCH_MILVUS_TIMEOUT_S": str(ANSWER_S)}
    with Service(bundles, place / "writing.log", variables) as served:
        http, before = served.http, served.http.get(GALLERY).json()["n_items"]

        def put(key: str) -> tuple[int, bool]:
            image = {"image": ("i", samples[0])}
            headers = {"Idempotency-Key": key}
            fields = {"label": "new one", "metadata": '{"shelf": 3}'}
            said = http.put(f"{GALLERY}/items/mine", files=image, data=fields, headers=headers)
            return said.status_code, "Idempotency-Replayed" in said.headers

        assert [put("1"), put("1")] == [(200, False), (200, True)]
        found = served.answer(samples[0], limit=1)["results"][0]
        assert (found["id"], found["label"], found["metadata"]) == ("mine", "new one", {"shelf": 3})
        assert http.get(found["thumbnail_url"]).status_code == 200
        gallery = http.get(GALLERY).json()
        assert gallery["n_items"] == before + 1
        assert "new one" in gallery["labels"]

        entries = json.dumps([{"id": "good"}, {"id": "bad"}])
        files = [("images", ("i", samples[1])), ("images", ("i", b"no image"))]
        written = http.post(f"{GALLERY}/items", files=files, data={"items": entries}).json()
        assert [entry["status"] for entry in written["items"]] == [200, 415]
        assert served.answer(samples[1], limit=1)["results"][0]["id"] == "good"

        assert http.delete(f"{GALLERY}/items/good").status_code == 200
        assert http.delete(f"{GALLERY}/items/good").status_code == 404
        assert served.answer(samples[1], limit=1)["results"][0]["id"] != "good"
        compacted = http.post(f"{GALLERY}/compact")
        assert compacted.status_code == 409
        assert "nothing to compact" in compacted.json()["detail"]

        again.kill()
        assert put("2") == (503, False)
        milvus.running()
        wait_until(lambda: put("2")[0] == 200, served)  # as a client would, with its key
        assert http.delete(f"{GALLERY}/items/mine").status_code == 200
        assert http.get(GALLERY).json()["n_items"] == before


def test_python_opens_the_gallery_of_the_environment(
    bundles: Path, again: Milvus, samples: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOUCH_MILVUS_URI", again.uri)
    with vouch_search.open(bundles, provider="cpu") as gallery:
        assert len(gallery.search(samples[0], k=3).results) == 3


def test_items_are_put_and_deleted_by_the_command_line(
    bundles: Path, again: Milvus, tmp_path: Path, samples: list[bytes]
) -> None:
    (tmp_path / "seven.png").write_bytes(samples[0])

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments], env={"VOUCH_MILVUS_URI": again.uri})

    put = "items", "put", str(bundles), str(tmp_path / "seven.png"), "--id", "seven"
    # This process knew the Milvus that was killed, and takes a moment to find the new one.
    wait_until(lambda: run(*put).exit_code == 0, again)
    said = run(*put).output
    assert said.startswith("1 items put")
    n_items = said.split()[-1]
    assert f" {int(n_items):,} items of " in run("doctor", str(bundles)).output
    elsewhere = tmp_path / "without the log"
    shutil.copytree(bundles, elsewhere, symlinks=True, ignore=shutil.ignore_patterns("changes"))
    examined = run("doctor", str(elsewhere))
    assert examined.exit_code == 1
    assert "are in another log" in " ".join(examined.output.split())
    assert run("items", "delete", str(bundles), "seven").exit_code == 0
    assert isinstance(run("items", "delete", str(bundles), "seven").exception, ItemNotFound)
    compacted = run("compact", str(bundles)).exception
    assert "nothing to compact" in str(compacted)
    backed_up = run("backup", str(bundles), str(tmp_path / "backup.tar")).exception
    assert "is in Milvus" in str(backed_up)
    assert not (tmp_path / "backup.tar").exists()


SECONDS = 8


def write_anew(directory: Path, bundle: Path, uri: str) -> None:
    """Write the gallery of a bundle into a collection whose changes nobody has logged yet."""
    gallery = FaissGallery(bundle)
    rows = np.arange(1, gallery.n_items)  # of other content, so that it is another collection
    items = [
        NewItem(item.id, item.label, item.metadata, gallery.thumbnail(item.id))
        for item in gallery.items(rows)
    ]
    mean, variance = gallery.directions(rows), gallery.variances(rows)
    embeddings = Embeddings(mean, variance, mean[:, :0])
    write_milvus_gallery(directory, embeddings, items, gallery.encoder_fingerprint, uri)


def test_services_on_several_machines_answer_as_one(
    bundles: Path, again: Milvus, tmp_path: Path, digits_bundle: Path
) -> None:
    changed = shutil.copytree(locate(bundles), tmp_path / "changed")

    def written() -> bool:
        try:
            write_anew(changed, digits_bundle, again.uri)
        except GalleryUnavailable:  # this process knew the Milvus that was killed
            return False
        return True

    wait_until(written, again)
    roots = [tmp_path / name / "bundles" for name in ("one", "other")]
    for root in roots:
        activate(root, republished(changed, root))
    with a_postgres() as address:
        settings = {
            **SETTINGS,
            "VOUCH_MILVUS_URI": again.uri,
            "VOUCH_MILVUS_LOG": address,
        }
        log = tmp_path / "service.log"
        replicas = Replicas(
            roots[0], digits_bundle, log, seed=0, settings=settings, elsewhere=roots[1:]
        )

        def enough() -> bool:
            return replicas.counts["put 200"] > 0 and replicas.n_operations > 30

        replicas.run(SECONDS, math.inf, kill_every_s=SECONDS / 3, enough=enough)
    assert replicas.violations() == []
    assert enough()


def test_a_service_that_is_killed_loses_no_write(
    bundles: Path, again: Milvus, place: Path, digits_bundle: Path
) -> None:
    settings = {**SETTINGS, "VOUCH_MILVUS_URI": again.uri}
    crash = CrashTest(bundles, digits_bundle, place / "crash.log", 6, settings, compacts=False)
    crash.run(n_kills=1)
    assert crash.counts["acknowledged"] > 0
    assert crash.counts["results checked"] > 0
