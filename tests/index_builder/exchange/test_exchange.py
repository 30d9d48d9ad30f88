"""Bundles pushed and pulled by the command line, through a folder, S3 and the Hub."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import obstore
import pytest
import yaml

from index_builder.exchange.places import BundleFolder, model_card, place_at
from model_store.bundles.directory import bundle_ids, current_id, locate
from model_store.bundles.manifest import MANIFEST_FILE, file_names, read_manifest
from model_store.bundles.signatures import new_key
from tests.index_builder.exchange.conftest import Elsewhere
from tests.support.hub_server import Hub
from tests.support.s3_server import SECRET, S3Server
from tests.support.small_bundles import small_bundle

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # huggingface_hub's
]

ROOT = Path(__file__).parents[3]


def contents(bundle: Path) -> dict[str, bytes]:
    return {name: (bundle / name).read_bytes() for name in file_names(bundle)}


def put_object(s3: S3Server, bucket: Elsewhere, name: str, content: bytes) -> None:
    """Write an object of a bucket behind the back of ``vouch-build``."""
    place, _, prefix = bucket.address.removeprefix("s3://").partition("/")
    obstore.put(s3.store(place), f"{prefix}/{name}", content)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return small_bundle(tmp_path / "own" / "bundles")


def test_what_is_pulled_is_what_was_pushed(
    elsewhere: Elsewhere, bundle: Path, tmp_path: Path
) -> None:
    assert elsewhere.push(bundle.parent).returncode == 0
    root = tmp_path / "pulled"
    done = elsewhere.pull(root)
    assert (done.returncode, done.stdout.strip()) == (0, str(root / bundle.name)), done.stderr
    assert contents(root / bundle.name) == contents(bundle)
    assert current_id(root) == bundle.name
    assert [path.name for path in root.iterdir() if "pulling" in path.name] == [".pulling"]

    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert elsewhere.pull(root).returncode == 0
    assert elsewhere.push(bundle).returncode == 0
    after = {path: path.stat().st_mtime_ns for path in before}
    assert before == after


def test_the_next_push_is_what_is_pulled_next(
    elsewhere: Elsewhere, bundle: Path, tmp_path: Path, hub: Hub
) -> None:
    first = small_bundle(tmp_path / "own" / "bundles", stale=b"in the first alone")
    second = small_bundle(tmp_path / "own" / "bundles", "renamed")
    root = tmp_path / "pulled"
    for pushed in (first, second):
        assert elsewhere.push(pushed).returncode == 0
        assert elsewhere.pull(root, "--keep-current").returncode == 0
        assert current_id(root) is None
    assert sorted(bundle_ids(root)) == sorted([first.name, second.name])
    assert elsewhere.pull(root).returncode == 0
    assert current_id(root) == second.name
    if repository := hub.repositories.get("me/small"):
        assert set(repository.commits[repository.head]) == {
            *file_names(second), "README.md", ".gitattributes",
        }  # fmt: skip
        assert len(repository.commits) == 3


def test_only_bundles_that_a_trusted_key_has_signed_are_taken(
    elsewhere: Elsewhere, bundle: Path, tmp_path: Path
) -> None:
    public, other = new_key(tmp_path / "publisher"), new_key(tmp_path / "other")
    root = tmp_path / "pulled"
    elsewhere.push(bundle)
    for options, more in (
        (("--trust", str(public)), {}),
        ((), {"VOUCH_BUNDLE_KEYS": json.dumps([str(public)])}),
        ((), {"VOUCH_BUNDLE_KEYS": f"{public},{other}"}),
    ):
        refused = elsewhere.pull(root, *options, **more)
        assert refused.returncode == 1
        assert "is not signed" in refused.stderr
    elsewhere.run("sign", str(bundle), "--key", str(tmp_path / "publisher"))
    elsewhere.push(bundle)
    refused = elsewhere.pull(root, "--trust", str(other))
    assert (refused.returncode, bundle_ids(root)) == (1, [])
    assert "not trusted" in refused.stderr
    assert list(root.rglob("*.onnx")) == []
    pulled = elsewhere.pull(root, "--trust", f"{other},{public}")
    assert (pulled.returncode, bundle_ids(root)) == (0, [bundle.name])
    assert contents(root / bundle.name) == contents(bundle)


def test_a_push_to_s3_that_broke_off_is_seen_by_nobody(
    s3: S3Server, bucket: Elsewhere, bundle: Path, tmp_path: Path
) -> None:
    for name in ("encoder.onnx", "gallery.faiss"):
        put_object(s3, bucket, f"{bundle.name}/{name}", (bundle / name).read_bytes())
    refused = bucket.pull(tmp_path / "pulled")
    assert refused.returncode == 1
    assert "no bundle" in refused.stderr
    assert not (tmp_path / "pulled").exists()
    assert bucket.push(bundle).returncode == 0
    assert bucket.pull(tmp_path / "pulled").returncode == 0


def test_one_bundle_of_a_bucket_is_named_by_its_id(
    bucket: Elsewhere, bundle: Path, tmp_path: Path
) -> None:
    bucket.push(bundle)
    bucket.push(small_bundle(tmp_path / "other" / "bundles", "renamed"))
    bucket.address += f"/{bundle.name}"
    assert bucket.pull(tmp_path / "pulled").returncode == 0
    assert bundle_ids(tmp_path / "pulled") == [bundle.name]


def test_keys_that_may_read_and_not_list_are_enough(
    bucket: Elsewhere, bundle: Path, tmp_path: Path
) -> None:
    """S3 answers 403 to these where there is nothing."""
    files = {f"{bundle.name}/{name}": content for name, content in contents(bundle).items()}
    files["CURRENT"] = bundle.name.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path.removeprefix("/bucket/bundles/"))
            self.send_response(403 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
        done = bucket.run("pull", "s3://bucket/bundles", str(tmp_path / "pulled"), **own)
        unknown = bucket.run("pull", "s3://bucket/others", str(tmp_path / "others"), **own)
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "pulled" / bundle.name) == contents(bundle)
    assert unknown.returncode == 1
    assert "credentials" in unknown.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "'' is not the address of a bundle; wanted a directory, s3://BUCKET"),
        (" ", "' ' is not the address of a bundle; wanted a directory, s3://BUCKET"),
        ("s3:/bucket", "'s3:/bucket' is not the address of a bundle: s3:// has two slashes."),
        ("HF:me/small", "'HF:me/small' is not the address of a bundle: hf:// has two slashes."),
    ],
)
def test_an_address_that_is_empty_or_misspelt_is_refused(
    bucket: Elsewhere, bundle: Path, tmp_path: Path, address: str, said: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for command in (("push", str(bundle), address), ("pull", address, str(tmp_path / "pulled"))):
        done = bucket.run(*command)
        assert done.returncode == 1
        assert said in " ".join(done.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_whose_name_has_a_colon_is_a_place(tmp_path: Path) -> None:
    for folder in (f"{tmp_path}/s3:", "shop:bundles"):
        assert isinstance(place_at(folder), BundleFolder)


@pytest.mark.parametrize("change", [b"x" * 5000, b"longer" * 1000, b"short"])
def test_what_was_changed_in_a_bucket_is_not_taken(
    s3: S3Server, bucket: Elsewhere, bundle: Path, tmp_path: Path, change: bytes
) -> None:
    bucket.push(bundle)
    name = f"{bundle.name}/encoder.onnx"
    put_object(s3, bucket, name, change)
    refused = bucket.pull(tmp_path / "pulled")
    assert refused.returncode == 1
    assert "encoder.onnx" in refused.stderr
    assert bundle_ids(tmp_path / "pulled") == []
    assert current_id(tmp_path / "pulled") is None
    put_object(s3, bucket, name, (bundle / "encoder.onnx").read_bytes())
    assert bucket.pull(tmp_path / "pulled").returncode == 0
    assert bundle_ids(tmp_path / "pulled") == [bundle.name]


def test_a_transfer_by_the_hub_goes_on_from_where_it_broke_off(
    repository: Elsewhere, hub: Hub, bundle: Path, tmp_path: Path
) -> None:
    hub.refuses = "uploads"
    refused = repository.push(bundle)
    assert refused.returncode == 1
    assert "No more of these today" in " ".join(refused.stderr.split())
    assert "no bundle" in repository.pull(tmp_path / "pulled").stderr
    hub.refuses = None
    assert repository.push(bundle).returncode == 0
    assert max(hub.sent.values()) == hub.sent["uploads"] == len(hub.stored)

    hub.refuses = "labels.npy"
    refused = repository.pull(tmp_path / "pulled")
    assert (refused.returncode, bundle_ids(tmp_path / "pulled")) == (1, [])
    assert current_id(tmp_path / "pulled") is None
    hub.refuses = None
    assert repository.pull(tmp_path / "pulled").returncode == 0
    assert contents(tmp_path / "pulled" / bundle.name) == contents(bundle)
    assert hub.sent["encoder.onnx"] == hub.sent["gallery.faiss"] == 1


def test_a_repository_has_a_card_of_the_evaluation_and_is_private(
    repository: Elsewhere, hub: Hub, bundle: Path, tmp_path: Path
) -> None:
    repository.push(bundle)
    state = hub.repositories["me/small"]
    assert state.private
    _, front, text = state.commits[state.head]["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(io.StringIO(front))
    [result] = card["model-index"][0]["results"]
    measured = {one["type"]: one["value"] for one in result["metrics"]}
    metrics = read_manifest(bundle).metrics
    assert metrics is not None
    assert measured == {
        "recall_at_1": metrics["recall_at_1"],
        "outlier_auroc.far.outlier_score": metrics["outlier_auroc"]["far"]["outlier_score"],
    }
    for said in ("| Recall at 1 | 0.875 |", "on 8 queries", "| items | 3 |", bundle.name):
        assert said in text
    assert "<b>" not in text
    unknown = repository.pull(tmp_path / "pulled", HF_TOKEN="")
    assert unknown.returncode == 1
    assert "hf auth login" in " ".join(unknown.stderr.split())

    repository.address = "hf://me/open"
    repository.run("push", str(bundle), repository.address, "--public")
    assert not hub.repositories["me/open"].private


def test_a_card_says_of_vectors_and_of_what_was_not_measured(bundle: Path) -> None:
    manifest = replace(
        read_manifest(bundle),
        encoder={"dim": 4, "posterior": "point", "vectors": {"made_by": "dinov2"}},
        calibration=None,
        metrics=None,
    )
    card = model_card(manifest, "me/vectors")
    assert "model-index" not in card
    assert "thumbnails" not in card
    for said in ("vectors from `dinov2`", "`not_calibrated`", "without an evaluation"):
        assert said in card


def test_an_older_commit_can_be_pulled(
    repository: Elsewhere, hub: Hub, bundle: Path, tmp_path: Path
) -> None:
    repository.push(bundle)
    commit = hub.repositories["me/small"].head
    repository.push(small_bundle(tmp_path / "own" / "bundles", "renamed"))
    repository.address += f"@{commit}"
    assert repository.pull(tmp_path / "pulled").returncode == 0
    assert current_id(tmp_path / "pulled") == bundle.name


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("ftp://host/bundles", "wanted a directory, s3://"),
        ("nowhere", "No bundle at nowhere"),
        ("s3://no-such-bucket/x", "no bundle at s3://no-such-bucket/x"),
        ("hf://nobody/nothing@", "cannot be read"),
        ("hf://no name", "cannot be read"),
    ],
)
def test_what_is_not_there_is_an_error(
    bucket: Elsewhere, repository: Elsewhere, source: str, said: str
) -> None:
    done = bucket.run("pull", source)
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert SECRET not in done.stderr
    assert not (bucket.here / "bundles").exists()


def test_a_service_that_is_not_there_is_an_error(bucket: Elsewhere, bundle: Path) -> None:
    for arguments in (("pull", bucket.address), ("push", str(bundle), bucket.address)):
        done = bucket.run(*arguments, AWS_ENDPOINT_URL="http://127.0.0.1:1")
        assert done.returncode == 1
        assert "credentials" in done.stderr
        assert SECRET not in done.stderr


def test_the_hub_is_where_its_environment_says(
    hub: Hub, repository: Elsewhere, bundle: Path, tmp_path: Path
) -> None:
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "index_builder", "push", str(bundle), "hf://me/another"]
    environment = {**os.environ, **repository.environment, **own}
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    assert b"/me/another/commit/" in done.stdout
    assert "me/another" in hub.repositories


def test_the_directory_is_called_after_the_source(folder: Elsewhere, bundle: Path) -> None:
    folder.push(bundle)
    assert folder.run("pull", folder.address).returncode == 0
    assert locate(folder.here / "bundles" / "bundles").name == bundle.name


def test_a_damaged_bundle_is_not_pushed(elsewhere: Elsewhere, bundle: Path, hub: Hub) -> None:
    (bundle / "labels.npy").write_bytes(b"damage")
    done = elsewhere.push(bundle)
    assert done.returncode == 1
    assert "labels.npy" in done.stderr
    assert hub.repositories == {}
    assert not Path(elsewhere.address).exists()


def test_changes_that_are_not_pushed_are_spoken_of(folder: Elsewhere, bundle: Path) -> None:
    changes = bundle.parent / "changes" / f"{bundle.name}.sqlite"
    changes.parent.mkdir()
    changes.touch()
    done = folder.push(bundle.parent)
    assert done.returncode == 0
    assert not (Path(folder.address) / "changes").exists()
    assert (Path(folder.address) / bundle.name / MANIFEST_FILE).exists()
