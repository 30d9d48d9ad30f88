"""Buckets and the web: the same images give the same bundle, and what fails is an item or said."""

from __future__ import annotations

import json
import logging
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import obstore
import pyarrow as pa
import pytest
from pyarrow import parquet

from index_builder.datasets.folder import COPIED_ITEMS
from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import NONE, Entry, parse_tolerance
from index_builder.indexing.collection import Indexing, IndexingResult, index_collection
from index_builder.indexing.dry_run import inspect_collection
from index_builder.indexing.fetching import reader
from index_builder.indexing.local_copy import copy_images
from index_builder.indexing.sources import name_of, open_source
from index_builder.indexing.workdir import Shard, ShardStore
from index_builder.storage import NotFetched, Patience, Storage
from model_store import open_bundle
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import DatasetError, SourceUnavailable, TooManyBadImages
from model_store.images import ImageLimits
from tests.index_builder.foreign_encoders.test_onnx_graphs import brought, linear
from tests.support.build_command import vouch_build
from tests.support.collection_files import N_IMAGES, lines, write_drawings
from tests.support.narrowing import not_none
from tests.support.other_buckets import AZURITE, OtherBucket, azure_bucket, google_bucket
from tests.support.s3_server import BUCKET, KEY, SECRET, S3Server, s3_server
from tests.support.web_server import (
    WebServer,
    dribbling_body,
    endless,
    hangs_up,
    promises_more,
    silent,
    status,
    web_server,
)

pytestmark = pytest.mark.process

SHORT = Patience(file_s=3.0, stall_s=1.2, n_tries=2, backoff_s=0.05)

To = Callable[..., Indexing]
Content = dict[str, bytes]
"""All files of a bundle."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, and its credentials in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(scope="module")
def uploaded(server: S3Server, drawings: Path) -> str:
    """The URL of the drawings in the bucket."""
    server.put_folder(drawings, "some/drawings")
    return f"s3://{BUCKET}/some/drawings"


@pytest.fixture
def web(drawings: Path, tmp_path: Path) -> Iterator[WebServer]:
    """A server with the drawings; what is written to its folder is of one test."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "drawings").symlink_to(drawings)
    with web_server(served) as running:
        yield running


@pytest.fixture
def to(indexing: Indexing, tmp_path: Path) -> To:
    """An indexing of a source at a path or URL."""

    def of(source: str | Path, name: str = "remote", **fields: Any) -> Indexing:
        storage = Storage(fields.pop("patience", Patience()))
        return replace(
            indexing,
            source=open_source(source, fields.pop("root", None), storage=storage),
            directory=tmp_path / f"run of {name}",
            bundles=tmp_path / f"bundles of {name}",
            storage=storage,
            **{"n_workers": 1, **fields},
        )

    return of


@pytest.fixture(scope="module")
def whole(digits_bundle: Path, drawings: Path, tmp_path_factory: pytest.TempPathFactory) -> Content:
    """The bundle of the drawings in a folder."""
    place = tmp_path_factory.mktemp("whole")
    of_folder = Indexing(
        open_source(drawings),
        digits_bundle / ENCODER_FILE,
        "drawings",
        "some digits",
        place / "run",
        place / "bundles",
        NONE,
        resume=True,
        n_workers=2,
        provider="cpu",
    )
    return content_of(index_collection(of_folder))


def entries(source: str | Path, scratch: Path, **options: Any) -> list[Entry]:
    with closing(Storage()) as storage:
        opened = open_source(source, storage=storage, **options)
        return list(opened.entries(scratch, LeftOut()))


def described(found: list[Entry]) -> list[tuple[object, ...]]:
    """What of entries does not depend on where they lie."""
    return [(one.id, one.label, dict(one.metadata), one.group, one.place.box) for one in found]


def write_manifest(path: Path, drawings: Path, start: str, n: int = N_IMAGES) -> None:
    """A line for each drawing; an id that does not say where it lies."""
    names = [one.relative_to(drawings).as_posix() for one in sorted(drawings.rglob("*.png"))][:n]
    rows = [
        {"id": name, "path": f"{start}{name}", "label": name.partition("/")[0]} for name in names
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def content_of(outcome: IndexingResult) -> Content:
    """All files of a bundle."""
    return {
        path.relative_to(outcome.bundle).as_posix(): path.read_bytes()
        for path in sorted(outcome.bundle.rglob("*"))
        if path.is_file()
    }


@pytest.mark.usefixtures("s3")
def test_a_folder_a_bucket_and_the_web_give_the_same_bundle(
    to: To, drawings: Path, uploaded: str, web: WebServer, tmp_path: Path, whole: Content
) -> None:
    bucket = index_collection(to(uploaded, "bucket"))
    write_manifest(web.folder / "list.jsonl", drawings, "drawings/")
    by_web = index_collection(to(f"{web.url}/list.jsonl", "web"))
    assert bucket.n_items == by_web.n_items == N_IMAGES
    assert content_of(bucket) == content_of(by_web) == whole
    for name in ("bucket", "web"):
        left = tmp_path / f"run of {name}" / "index.json"
        assert json.loads(left.read_text())["state"] == "published"
        assert not list(left.parent.glob("*/*"))


@pytest.fixture(params=["gs", "az"])
def other_bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OtherBucket]:
    """A bucket of another cloud, empty, and its credentials in the environment."""
    serve = google_bucket
    if request.param == "az":
        if AZURITE not in os.environ:
            pytest.skip(f"{AZURITE} names no Azurite; `make try NAME=azurite` installs one")
        serve = azure_bucket
    (tmp_path / "emulator").mkdir()
    with serve(tmp_path / "emulator") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        yield bucket


def test_buckets_of_other_clouds_give_the_same_bundle(
    to: To, drawings: Path, other_bucket: OtherBucket, tmp_path: Path, whole: Content
) -> None:
    url = other_bucket.put_folder(drawings, "some/drawings")
    bucket = index_collection(to(url, "other"))
    assert content_of(bucket) == whole
    other_bucket.put("odd/a b/ü #1.png", b"one")
    (found,) = entries(f"{other_bucket.url}/odd", tmp_path)
    assert found.id == "a b/ü #1.png"
    with closing(Storage()) as storage:
        assert storage.read(found.place.path, 99, found.place.version) == b"one"


def test_every_step_is_taken_of_images_in_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "drawn").mkdir()
    write_drawings(tmp_path / "drawn", 280)
    s3.put_folder(tmp_path / "drawn", "all/drawn")
    encoder = str(brought(linear(tmp_path / "a.onnx"))[0].directory)
    done = vouch_build(
        *("all", "--images", f"s3://{BUCKET}/all/drawn", "--encoder", encoder), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "The first result is right for " in done.stderr
    retriever = open_bundle(tmp_path / "bundles" / "drawn", "cpu", threads=1).retriever
    assert retriever.calibration is not None
    (item,) = retriever.gallery.items(np.array([0]))
    answer = retriever.search((tmp_path / "drawn" / item.id).read_bytes())
    assert answer.matches[0].id == item.id
    assert answer.predictive.spherical_variance > 0
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.usefixtures("s3")
class TestReaders:
    """Whatever is read here is read there, by the same readers."""

    def test_a_folder_is_in_the_order_of_a_disk(self, s3: S3Server, tmp_path: Path) -> None:
        folder = tmp_path / "odd"
        for name in ("a/1.png", "a/b/2.png", "a.b/3.png", "a b/4%41 #?.png", "ü/é.png", "z.HEIC"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(name.encode())
        s3.put_folder(folder, "odd")
        found = entries(f"s3://{BUCKET}/odd/", tmp_path)
        assert described(found) == described(entries(folder, tmp_path))
        assert len({one.place.version for one in found}) == len(found)
        with closing(Storage()) as storage:
            read = [storage.read(one.place.path, 99, one.place.version) for one in found]
        assert read == [one.id.encode() for one in found]

    @pytest.mark.parametrize("start", ["", "s3"])
    def test_a_manifest_names_what_is_beside_it_or_anywhere(
        self, s3: S3Server, uploaded: str, drawings: Path, tmp_path: Path, start: str
    ) -> None:
        manifest = tmp_path / "list.jsonl"
        write_manifest(manifest, drawings, f"{uploaded}/" if start else "", 5)
        obstore.put(s3.store(), "some/drawings/list.jsonl", manifest)
        by_bucket = entries(f"{uploaded}/list.jsonl", tmp_path)
        by_root = entries(manifest, tmp_path, root=uploaded)
        assert [one.place for one in by_bucket] == [one.place for one in by_root]
        assert {one.place.path.rpartition("/")[0].rpartition("/")[0] for one in by_root} == {
            uploaded
        }

    def test_a_tar_with_sidecars(
        self, s3: S3Server, drawings: Path, web: WebServer, tmp_path: Path
    ) -> None:
        for suffix in ("tar", "tar.gz"):
            path = tmp_path / f"shard.{suffix}"
            (tmp_path / "1.cls").write_text("one")
            with tarfile.open(path, "w:gz" if suffix == "tar.gz" else "w") as file:
                file.add(min(drawings.rglob("*.png")), "1.png")
                file.add(tmp_path / "1.cls", "1.cls")
            obstore.put(s3.store(), f"shards/{path.name}", path)
            (web.folder / path.name).write_bytes(path.read_bytes())
            wanted = described(entries(path, tmp_path))
            assert wanted[0][:2] == ("1.png", "one")
            for url in (f"s3://{BUCKET}/shards/{path.name}", f"{web.url}/{path.name}?sig=1"):
                found = entries(url, tmp_path / "scratch")
                assert described(found) == wanted
                assert name_of(url) == "shard"

    def test_parquet_with_images_and_without(
        self, s3: S3Server, drawings: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "set"
        (folder / "data").mkdir(parents=True)
        files = sorted(drawings.rglob("*.png"))[:6]
        for part in range(2):
            rows = [{"image": one.read_bytes(), "label": one.parent.name} for one in files[part::2]]
            parquet.write_table(pa.Table.from_pylist(rows), folder / f"data/{part}.parquet")
        s3.put_folder(folder, "set")
        (tmp_path / "1").mkdir()
        (tmp_path / "2").mkdir()
        found = entries(f"s3://{BUCKET}/set", tmp_path / "1")
        assert described(found) == described(entries(folder, tmp_path / "2"))
        assert len(found) == 6

    def test_boxes_of_one_picture_are_fetched_once(
        self, to: To, web: WebServer, drawings: Path
    ) -> None:
        names = [one.relative_to(drawings).as_posix() for one in sorted(drawings.rglob("*.png"))]
        content = {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(names[:2])],
            "annotations": [
                {"id": n, "image_id": n % 2, "bbox": [0, n // 2, 4, 4]} for n in range(8)
            ],
        }
        (web.folder / "boxes.json").write_text(json.dumps(content))
        outcome = index_collection(
            to(f"{web.url}/boxes.json", root=f"{web.url}/drawings", tolerance=NONE)
        )
        assert outcome.n_items == 8
        assert [web.asked[f"/drawings/{name}"] for name in names[:2]] == [1, 1]


def test_hostile_answers_cost_an_item_each(
    to: To, web: WebServer, drawings: Path, tmp_path: Path
) -> None:
    """And what could not be fetched is tried again by the next run."""
    bad = {
        "refuses": status(403),
        "is gone": status(404),
        "fails": status(500),
        "hangs up": hangs_up,
        "says nothing": silent,
        "dribbles": dribbling_body,
        "lies": promises_more(b"\x89PNG"),
        "never ends": endless,
        "is a page": lambda request: request.send(b"<html>"),
        "is empty": lambda request: request.send(b""),
    }
    web.answers |= {f"/{name}": answer for name, answer in bad.items()}
    manifest = tmp_path / "list.jsonl"
    write_manifest(manifest, drawings, f"{web.url}/drawings/", 100)
    with manifest.open("a") as file:
        for name in bad:
            file.write("\n" + json.dumps({"id": name, "path": f"{web.url}/{quote(name)}"}))
    limits = ImageLimits(max_bytes=100_000)
    refused = to(manifest, tolerance=NONE, limits=limits, patience=SHORT)
    with pytest.raises(TooManyBadImages, match="Finished embeddings are kept"):
        index_collection(refused)
    indexing = replace(refused, tolerance=parse_tolerance("10"))
    outcome = index_collection(indexing)
    assert (outcome.n_items, outcome.n_quarantined) == (100, 10)
    said = {one["id"]: one["error"] for one in lines(indexing.directory / "quarantine.jsonl")}
    assert said == dict.fromkeys(bad, "NotFetched") | {
        "never ends": "ImageTooLarge",
        "is a page": "UnsupportedImage",
        "is empty": "EmptyImage",
    }
    assert outcome.n_kept == 64  # the first block, in which nothing was bad


class Killed(Exception):
    """What happens at the worst of moments."""


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_vanishes_ends_the_run_and_loses_nothing(
    s3: S3Server, to: To, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawings = tmp_path / "many"  # more than are fetched before the first is embedded
    drawings.mkdir()
    write_drawings(drawings, 500)
    assert s3.make_bucket("passing") == 200
    s3.put_folder(drawings, "x", "passing")
    write = ShardStore.write

    def write_and_remove(store: ShardStore, shard: Shard) -> None:
        write(store, shard)
        kept.append(shard)
        if shard.number == 0:
            s3.remove_bucket("passing")

    kept: list[Shard] = []

    indexing = to("s3://passing/x")
    monkeypatch.setattr(ShardStore, "write", write_and_remove)
    with pytest.raises(
        SourceUnavailable,
        match=r"s3://passing no longer exists.* of 500 images are embedded and kept.*resumes",
    ) as ended:
        index_collection(indexing)
    n_kept = int(not_none(re.search(r"(\d+) of 500", str(ended.value)))[1])
    assert n_kept == sum(len(shard.ids) for shard in kept)
    monkeypatch.setattr(ShardStore, "write", write)
    with pytest.raises(SourceUnavailable, match=r"s3://passing cannot be listed.*credentials"):
        index_collection(indexing)
    assert s3.make_bucket("passing") == 200
    s3.put_folder(drawings, "x", "passing")
    outcome = index_collection(indexing)
    assert outcome.n_items == 500
    assert outcome.n_kept >= 64


@pytest.mark.usefixtures("s3")
def test_a_killed_run_goes_on_though_its_urls_are_signed_anew(
    to: To,
    web: WebServer,
    drawings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Content,
) -> None:
    manifest = tmp_path / "list.jsonl"
    names = [one.relative_to(drawings).as_posix() for one in sorted(drawings.rglob("*.png"))]

    def sign(signature: str) -> None:
        rows = [
            {
                "id": name,
                "path": f"{web.url}/drawings/{name}?X-Amz-Signature={signature}",
                "label": name.partition("/")[0],
            }
            for name in names
        ]
        manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    write = ShardStore.write

    def write_one(store: ShardStore, shard: Shard) -> None:
        if list(store.directory.glob("*.shard")):
            raise Killed
        write(store, shard)

    monkeypatch.setattr(ShardStore, "write", write_one)
    sign("first")
    with pytest.raises(Killed):
        index_collection(to(manifest))
    monkeypatch.setattr(ShardStore, "write", write)
    sign("second")
    outcome = index_collection(to(manifest))
    assert outcome.n_kept >= 8
    assert content_of(outcome) == whole


def test_secrets_of_urls_are_nowhere(
    web: WebServer,
    digits_bundle: Path,
    drawings: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    signed = web.url.replace("//", "//ann:hidden-1@")
    names = [one.relative_to(drawings).as_posix() for one in sorted(drawings.rglob("*.png"))][:70]
    rows = [{"path": f"{signed}/drawings/{name}?sig=hidden-2"} for name in names]
    gone = [{"path": f"{signed}/gone.png?sig=hidden-2"}]
    lost = [{"path": "https://ann:hidden-1@name.invalid/x.png?sig=hidden-2"}]
    manifest = web.folder / "list.jsonl"
    manifest.write_text("\n".join(map(json.dumps, [*rows, *gone, *lost])), encoding="utf-8")
    url = f"{signed}/list.jsonl?sig=hidden-2"
    command = ("index", url, "--encoder", str(digits_bundle), "--workers", "1")
    refused = vouch_build(*command, "--strict", cwd=tmp_path)
    assert refused.returncode == 1
    kept = tmp_path / "runs" / "list" / "index" / "catalogue.sqlite"
    assert b"hidden" in kept.read_bytes()
    assert kept.stat().st_mode & 0o077 == 0  # nobody else reads what has to be known to go on
    done = vouch_build(*command, "--max-bad", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ids = {item["id"] for item in lines(tmp_path / "runs" / "list" / "index" / "quarantine.jsonl")}
    assert ids == {f"{web.url}/gone.png", "https://name.invalid/x.png"}
    for folder in ("runs", "bundles"):
        for path in (tmp_path / folder).rglob("*"):
            assert not path.is_file() or b"hidden" not in path.read_bytes(), path
    said = refused.stdout + refused.stderr + done.stdout + done.stderr
    assert "hidden" not in said + caplog.text
    gallery = open_bundle(tmp_path / "bundles" / "list", "cpu").retriever
    answer = gallery.search((drawings / names[0]).read_bytes(), limit=1)
    assert answer.matches[0].id == f"{web.url}/drawings/{names[0]}"


def test_credentials_that_are_wrong_are_said_and_not_shown(
    s3: S3Server, uploaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with pytest.raises(SourceUnavailable, match=r"cannot be listed.*403.*credentials") as caught:
        entries(uploaded, tmp_path)
    shown = f"{caught.value} {caught.value!r}"
    assert not any(secret in shown for secret in (KEY, SECRET, "another-secret"))
    for name in s3.environment:
        monkeypatch.delenv(name)
    with pytest.raises(DatasetError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        entries("az://container/x", tmp_path)


def test_an_object_that_has_changed_since_it_was_listed_costs_an_item(
    s3: S3Server, drawings: Path, tmp_path: Path
) -> None:
    s3.put_folder(drawings / "0", "changing")
    place = entries(f"s3://{BUCKET}/changing", tmp_path)[0].place
    obstore.put(s3.store(), place.path.removeprefix(f"s3://{BUCKET}/"), b"another content")
    with closing(Storage()) as storage:
        with pytest.raises(NotFetched, match="has changed since the bucket was listed"):
            storage.read(place.path, 99, place.version)
        with pytest.raises(NotFetched, match=f"There is no s3://{BUCKET}/nothing"):
            storage.read(f"s3://{BUCKET}/nothing", 99)


@pytest.mark.usefixtures("s3")
def test_a_dry_run_of_a_bucket(to: To, uploaded: str) -> None:
    indexing = to(uploaded)
    found = inspect_collection(indexing)
    assert (found.contents.n_images, found.contents.n_labels) == (N_IMAGES, 10)
    assert found.contents.n_bytes > 0
    assert not found.unreadable
    assert not indexing.directory.exists()


def test_an_indexed_image_is_read_again_for_calibration(
    s3: S3Server, drawings: Path, tmp_path: Path
) -> None:
    s3.put_folder(drawings / "5", "again")
    here = entries(drawings / "5", tmp_path)[0].place
    there = entries(f"s3://{BUCKET}/again", tmp_path)[0].place
    with closing(Storage()) as storage:
        read = reader(storage, ImageLimits())
        np.testing.assert_array_equal(read(there, None), read(here, None))
        obstore.delete(s3.store(), f"again/{Path(here.path).name}")
        with pytest.raises(NotFetched, match="There is no s3://"):
            read(there, None)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3://bucket/x.png", "is in a bucket, but its manifest is on the web"),
        ("../x.png", "leads out of http://127"),
        ("/etc/passwd", "leads out of http://127"),
        ("file:///etc/passwd", "file:///etc/passwd cannot be read; wanted"),
    ],
)
def test_a_manifest_of_the_web_names_nothing_of_its_reader(
    web: WebServer, tmp_path: Path, path: str, said: str
) -> None:
    (web.folder / "list.csv").write_text(f"path\n{path}\n")
    with pytest.raises(DatasetError, match=said):
        entries(f"{web.url}/list.csv", tmp_path)


def test_what_is_no_source_of_the_web_is_refused(web: WebServer, tmp_path: Path) -> None:
    (web.folder / "page").write_text("<html>")
    with pytest.raises(DatasetError, match=r"page is neither a folder nor one of \.csv"):
        entries(f"{web.url}/page?sig=hidden", tmp_path)
    with pytest.raises(SourceUnavailable, match=r"list\.csv cannot be copied.*\(404\)"):
        entries(f"{web.url}/list.csv", tmp_path)
    with pytest.raises(DatasetError, match=r"ftp://host/x\.tar cannot be read; wanted a path"):
        open_source("ftp://host/x.tar")


@pytest.mark.usefixtures("s3")
class TestLocalCopies:
    """What a build reads again and again is copied first."""

    def files(self, folder: Path) -> dict[str, bytes]:
        return {
            one.relative_to(folder).as_posix(): one.read_bytes()
            for one in folder.rglob("*")
            if one.is_file() and one.name != COPIED_ITEMS
        }

    def test_a_bucket_is_mirrored_and_nothing_is_fetched_twice(
        self, s3: S3Server, drawings: Path, tmp_path: Path
    ) -> None:
        s3.put_folder(drawings / "3", "mirrored/3")
        url, folder = f"s3://{BUCKET}/mirrored", tmp_path / "run" / "images" / "mirrored"
        copy_images(url, folder, Storage())
        copied = self.files(folder)
        assert copied == {f"3/{name}": data for name, data in self.files(drawings / "3").items()}
        first, second, *_ = sorted(copied)
        inode = (folder / first).stat().st_ino
        obstore.delete(s3.store(), f"mirrored/{second}")
        obstore.put(s3.store(), "mirrored/4/new.png", b"new")
        copy_images(url, folder, Storage())
        assert set(self.files(folder)) == (set(copied) - {second}) | {"4/new.png"}
        assert (folder / first).stat().st_ino == inode

    def test_a_manifest_becomes_folders_of_labels(
        self, web: WebServer, drawings: Path, tmp_path: Path
    ) -> None:
        names = [one.relative_to(drawings).as_posix() for one in sorted(drawings.rglob("*.png"))]
        rows = ["path,label,id", f"drawings/{names[0]},a/b,..", f"drawings/{names[1]},c,x y"]
        (web.folder / "list.csv").write_text("\n".join(rows))
        copy_images(f"{web.url}/list.csv", tmp_path / "copy", Storage())
        found = self.files(tmp_path / "copy")
        assert sorted(name.partition("/")[0] for name in found) == ["a%2Fb", "c"]
        assert sorted(found.values()) == sorted((drawings / one).read_bytes() for one in names[:2])
        with (web.folder / "list.csv").open("a") as file:
            file.write("\ndrawings/gone.png,c,gone")
        with pytest.raises(TooManyBadImages, match="1 of 3 images could not be copied"):
            copy_images(f"{web.url}/list.csv", tmp_path / "copy", Storage())
        assert self.files(tmp_path / "copy") == found
