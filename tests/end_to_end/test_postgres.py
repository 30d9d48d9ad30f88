"""A bundle whose gallery is in PostgreSQL, built by the command line and asked over HTTP."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

import vouch_search
from index_builder.commands.app import app, run
from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import locate
from model_store.bundles.manifest import read_manifest
from model_store.errors import (
    ArchiveError,
    ConfigError,
    ItemNotFound,
    StepNotReady,
    WriteRefused,
)
from tests.end_to_end.database_bundles import bundles_in_database
from tests.end_to_end.processes import Service, wait_until
from tests.end_to_end.replicas import replicas_in_postgres
from tests.end_to_end.writes import SETTINGS, CrashTest
from tests.support.postgres import Postgres, run_tool

NAMED = "postgresql://db.example/vouch"
GALLERY = "/v1/galleries/digits"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("postgres")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def bundles(postgres: Postgres, place: Path, digits_bundle: Path, digits_run: Path) -> Path:
    """Bundles of the run behind `digits_bundle`, with their gallery in PostgreSQL."""
    given = {"VOUCH_POSTGRES_URI": postgres.uri}  # the bundle names another
    return bundles_in_database(digits_run, place, ["--database", NAMED], given)


def test_the_bundle_names_the_schema_and_holds_no_gallery(
    bundles: Path, postgres: Postgres
) -> None:
    directory = locate(bundles)
    index = read_manifest(directory).gallery["index"]
    assert (index["engine"], index["type"], index["recall_at_10"]) == ("postgresql", "flat", 1)
    described = (directory / "postgres.json").read_text(encoding="utf-8")
    assert index["schema"] in described
    assert NAMED in described
    assert postgres.uri not in described
    assert not list(directory.glob("gallery.faiss")) + list(directory.glob("items.sqlite"))
    with pytest.raises(ConfigError, match="Set VOUCH_POSTGRES_URI"):
        open_bundle(bundles, "cpu")


def test_answers_are_those_of_files_and_an_outage_is_said(
    bundles: Path, postgres: Postgres, place: Path, digits_bundle: Path, samples: list[bytes]
) -> None:
    variables = {
        "VOUCH_POSTGRES_URI": postgres.uri,
        "VOUCH_POSTGRES_TIMEOUT_S": "1",
        "VOUCH_CANARY_PERIOD_S": "0.3",
    }
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
            assert served.http.get(f"{GALLERY}/{path}").status_code == 200, path
        listed, expected = (one.http.get(f"{GALLERY}/items").json() for one in (served, service))
        assert [one["id"] for one in listed["items"]] == [one["id"] for one in expected["items"]]

        postgres.stop()
        refused = served.ask(samples[0])
        assert (refused.status_code, refused.json()["code"]) == (503, "gallery_unavailable")
        assert refused.headers["Retry-After"] == "2"
        wait_until(lambda: not served.is_ready(), served)

        def is_refused_at_once() -> bool:
            """Whether nothing was waited for; a busy machine may take as long at times."""
            started = time.monotonic()
            assert served.ask(samples[0]).status_code == 503
            return time.monotonic() - started < 1

        wait_until(is_refused_at_once, served)
        postgres.start()
        wait_until(served.is_ready, served)
        assert served.answer(samples[0], limit=20)["results"]


def test_a_service_without_permission_to_read_is_not_ready(
    bundles: Path, postgres: Postgres, place: Path
) -> None:
    schema = read_manifest(locate(bundles)).gallery["index"]["schema"]
    variables = {
        "VOUCH_POSTGRES_URI": postgres.uri.replace("postgres:@", "reader@"),
        "VOUCH_CANARY_PERIOD_S": "0.3",
    }
    with psycopg.connect(postgres.uri, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
        with Service(bundles, place / "reader.log", variables) as served:
            connection.execute(f"REVOKE SELECT ON {schema}.items FROM reader")
            wait_until(lambda: not served.is_ready(), served)
            connection.execute(f"GRANT SELECT ON {schema}.items TO reader")
            wait_until(served.is_ready, served)
        connection.execute("DROP OWNED BY reader")
        connection.execute("DROP ROLE reader")


def test_items_are_put_and_deleted_over_http(
    bundles: Path, postgres: Postgres, place: Path, samples: list[bytes]
) -> None:
    variables = {"VOUCH_POSTGRES_URI": postgres.uri}
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
        null = http.put(
            f"{GALLERY}/items/null",
            files={"image": ("i", samples[0])},
            data={"metadata": json.dumps({"a": "\0"})},
        )
        assert null.status_code == 409
        assert "null character" in null.json()["detail"]

        assert http.delete(f"{GALLERY}/items/mine").status_code == 200
        assert http.delete(f"{GALLERY}/items/mine").status_code == 404
        gallery = http.get(GALLERY).json()
        assert (gallery["n_items"], "new one" in gallery["labels"]) == (before, False)
        compacted = http.post(f"{GALLERY}/compact")
        assert compacted.status_code == 409
        assert "nothing to compact" in compacted.json()["detail"]


def test_python_opens_the_gallery_of_the_environment(
    bundles: Path, postgres: Postgres, samples: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOUCH_POSTGRES_URI", postgres.uri)
    with vouch_search.open(bundles, provider="cpu") as gallery:
        assert len(gallery.search(samples[0], k=3).results) == 3


def test_a_running_service_follows_a_restore(
    bundles: Path, postgres: Postgres, place: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    schema = read_manifest(locate(bundles)).gallery["index"]["schema"]
    with Service(bundles, place / "restored.log", {"VOUCH_POSTGRES_URI": postgres.uri}) as served:

        def put(item_id: str) -> None:
            image, fields = {"image": ("i", samples[1])}, {"label": f"label of {item_id}"}
            served.http.put(f"{GALLERY}/items/{item_id}", files=image, data=fields)

        def listed() -> list[str]:
            query = {"filter": '{"id": {"gte": "zz"}}'}
            return [
                one["id"]
                for one in served.http.get(f"{GALLERY}/items", params=query).json()["items"]
            ]

        before = served.http.get(GALLERY).json()["n_items"]
        dump = tmp_path / "gallery.dump"
        run_tool("pg_dump", "--format=custom", "--file", dump, postgres.uri)
        put("zz lost 1")
        put("zz lost 2")
        assert listed() == ["zz lost 1", "zz lost 2"]
        # As in docs/howto/postgres.md.
        options = ["--clean", "--if-exists", "--single-transaction", "--no-owner"]
        run_tool("pg_restore", *options, "--schema", schema, "--dbname", postgres.uri, dump)
        assert listed() == []
        assert served.http.get(GALLERY).json()["n_items"] == before
        put("zz new")
        assert listed() == ["zz new"]
        assert served.answer(samples[1], limit=1)["results"][0]["label"] == "label of zz new"
        assert served.http.delete(f"{GALLERY}/items/zz new").status_code == 200


def test_items_are_put_and_deleted_by_the_command_line(
    bundles: Path, postgres: Postgres, place: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    (tmp_path / "seven.png").write_bytes(samples[0])

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments], env={"VOUCH_POSTGRES_URI": postgres.uri})

    put = run("items", "put", str(bundles), str(tmp_path / "seven.png"), "--id", "seven")
    assert put.output.startswith("1 items put")
    assert run("items", "delete", str(bundles), "seven").exit_code == 0
    assert isinstance(run("items", "delete", str(bundles), "seven").exception, ItemNotFound)
    assert isinstance(run("compact", str(bundles)).exception, WriteRefused)
    again = run("calibrate", str(bundles)).exception
    assert isinstance(again, WriteRefused)
    assert "build it again" in str(again)
    again = run("calibrate", "--config", "digits", "--run", str(place / "run")).exception
    assert isinstance(again, StepNotReady)
    assert "Run `vouch-build index` again" in str(again)
    backed_up = run("backup", str(bundles), str(tmp_path / "backup.tar")).exception
    assert isinstance(backed_up, ArchiveError)
    assert "pg_dump" in str(backed_up)


def test_commands_say_why_the_database_cannot_be_used(
    bundles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index_builder.configuration.environment.TIMEOUT_S", 1)
    for query, reason in [("", "onnection refused"), ("?bogus=hunter2", "invalid URI query")]:
        uri = f"postgresql://vouch:hunter2@127.0.0.1:1/vouch{query}"
        monkeypatch.setenv("VOUCH_POSTGRES_URI", uri)
        for arguments in (["doctor", str(bundles)], ["items", "delete", str(bundles), "seven"]):
            monkeypatch.setattr("sys.argv", ["vouch-build", *arguments])
            with pytest.raises(SystemExit):
                run("vouch-build")
            said = " ".join("".join(capsys.readouterr()).split())
            assert reason in said
            assert "hunter2" not in said
            assert "The log of the service" not in said


def test_a_service_that_is_killed_loses_no_write(
    postgres: Postgres, bundles: Path, place: Path, digits_bundle: Path
) -> None:
    settings = {**SETTINGS, "VOUCH_POSTGRES_URI": postgres.uri}
    crash = CrashTest(bundles, digits_bundle, place / "crash.log", 6, settings, compacts=False)
    crash.run(n_kills=1)
    assert crash.counts["acknowledged"] > 0
    assert crash.counts["results checked"] > 0


SECONDS = 8


def test_services_on_several_machines_answer_as_one(
    postgres: Postgres, tmp_path: Path, digits_bundle: Path
) -> None:
    settings = {**SETTINGS, "VOUCH_POSTGRES_URI": postgres.uri}
    replicas = replicas_in_postgres(digits_bundle, postgres.uri, tmp_path, 0, settings)

    def enough() -> bool:
        return replicas.counts["put 200"] > 0 and replicas.n_operations > 30

    replicas.run(SECONDS, math.inf, kill_every_s=SECONDS / 3, enough=enough)
    assert replicas.violations() == []
    assert enough()
