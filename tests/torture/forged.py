"""Forged strings: in manifests of bundles, in archives and tables, and in settings.

Each attempt puts one or more strings where a stranger, or a slip of the operator, could put them.
What the process opens and connects to is recorded by an audit hook: the code under attack is not
asked.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from index_builder.datasets.image_files import LeftOut
from index_builder.exchange.places import BundleFolder
from index_builder.exchange.pull import pull
from index_builder.indexing.sources import open_source
from index_builder.storage import NotFetched, Patience, Storage
from model_store.bundles.backup import SUMMARY_FILE, back_up, restore
from model_store.bundles.directory import CURRENT_FILE, current_id
from model_store.bundles.manifest import MANIFEST_FILE, read_manifest
from model_store.errors import VouchError
from model_store.files import inside, json_text
from service.access import command as keys_command
from service.access.keys import change_keys, mint
from service.client import mcp_server
from service.command_line import read_command_line
from service.settings import Settings
from tests.support.web_server import WebServer, web_server
from tests.torture.damage import Rng
from tests.torture.outcome import Outcome, Place
from tests.torture.small_galleries import members, rewritten, small_gallery

PART = "SWORDFISH"
SECRET = f"hunter2-{PART}"
PASSWORD = base64.b64encode(f"ann:{SECRET}".encode()).decode()
"""As a request has it."""

MOST = 10_000
HASTY = Patience(file_s=2.0, stall_s=1.0, n_tries=1, backoff_s=0.0)


@dataclass(slots=True)
class Watched:
    """What the process does while something is attacked.

    Attributes
    ----------
    opened : paths; connected : hosts and ports.
    """

    is_on: bool = False
    opened: list[str] = field(default_factory=list)
    connected: list[object] = field(default_factory=list)

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """An audit hook; see `sys.addaudithook`."""
        if self.is_on and event == "open" and isinstance(given[0], str | bytes):
            self.opened.append(os.fsdecode(given[0]))
        elif self.is_on and event == "socket.connect":
            self.connected.append(given[1])

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record anew."""
        self.opened.clear()
        self.connected.clear()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


WATCHED = Watched()
sys.addaudithook(WATCHED.hear)  # which stays: Python removes none


def paths(secret: Path) -> tuple[str, ...]:
    """Names that lead to a secret file, or elsewhere, on this system or another."""
    up = "../" * 12
    return (
        *(str(secret), f"{up}{secret}", f"samples/{up}{secret}", f"./{secret}", f"//{secret}"),
        *("/etc/passwd", f"{up}etc/passwd", "samples/../../../../etc/passwd", "/proc/self/environ"),
        *("..", ".", "", "/", "~", "~root/x", "..\\..\\x", "C:\\x", "a\0b", "a\nb", "\u202ex"),
        *(
            "x" * 300,
            "samples/",
            "samples//1.png",
            "%2e%2e/x",
            "file:///etc/passwd",
            "-rf",
            "\ud800",
        ),
        *("manifest.json", "manifest.sig", "link", "link/secret.txt", "../secret.txt", "a/../../x"),
    )


def attack_bundles(place: Place, seconds: float, seed: int) -> Outcome:
    """Read, pull, back up and restore bundles whose manifests and archives were forged."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    secret = place.folder / "secret.txt"
    secret.write_text(SECRET, encoding="utf-8")
    root = small_gallery(place.folder)
    good = place.folder / "good.tar"
    back_up(root, good)
    bundle = root / str(current_id(root))
    (bundle / "samples").mkdir()
    (bundle / "samples" / "1.png").write_bytes(b"pixels")
    manifest = json.loads((bundle / MANIFEST_FILE).read_bytes())
    content = (bundle / "samples" / "1.png").read_bytes()
    described = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"]["samples/1.png"] = described
    manifest["samples"] = [{"id": "1", "file": "samples/1.png", "caption": "c", "belongs": True}]
    manifest["gallery"]["compacted_from"] = "0" * 16
    strings, until, n_refused = paths(secret), time.monotonic() + seconds, 0
    tried: dict[str, Callable[[Path], object]] = {
        "read": _samples_of,
        "pull": lambda forged: pull(BundleFolder(forged), place.folder / "pulled"),
        "restore": lambda forged: restore(_archive_of(forged, good), place.folder / "restored"),
    }
    while outcome.n < len(tried) or time.monotonic() < until:
        forged = _forged(manifest, bundle, strings, rng)
        before = _outside(place.folder)
        for name, attempt in tried.items():
            outcome.n += 1
            with WATCHED.watching():
                try:
                    attempt(forged)
                except VouchError:
                    n_refused += 1
                except Exception as error:
                    outcome.violations.append(f"{name}: {error!r}")
            outcome.violations += [f"{name}: opened {one}" for one in _stray(place.folder, secret)]
        for left in (forged.parent, place.folder / "pulled", place.folder / "restored"):
            shutil.rmtree(left, ignore_errors=True)
        if strange := _outside(place.folder) ^ before:
            outcome.violations.append(f"wrote {sorted(strange)[:3]}")
    outcome.figures |= {"refused": n_refused}
    return outcome


def _forged(manifest: dict[str, Any], bundle: Path, strings: tuple[str, ...], rng: Rng) -> Path:
    """A copy of a bundle whose manifest has other strings, and the id that it has then."""
    fields = json.loads(json.dumps(manifest))
    for _ in range(int(rng.integers(1, 3))):
        spots = list(_spots(fields))
        holder, key = spots[int(rng.integers(len(spots)))]
        string = strings[int(rng.integers(len(strings)))]
        if isinstance(holder, dict) and rng.uniform() < 0.4:
            holder[string] = holder.pop(key)
        else:
            holder[key] = string
    fields.pop("id", None)
    try:
        bundle_id = hashlib.sha256(json_text(fields).encode()).hexdigest()[:16]
        text = json_text({**fields, "id": bundle_id}).encode()
    except UnicodeEncodeError:
        bundle_id, text = "0" * 16, json.dumps({**fields, "id": "0" * 16}).encode()
    root = bundle.parent.parent / "forged"
    forged = root / bundle_id
    shutil.copytree(bundle, forged)
    (forged / "link").symlink_to(bundle.parent.parent)
    if rng.uniform() < 0.9:
        (forged / "link").unlink()
    (forged / MANIFEST_FILE).write_bytes(text)
    (root / CURRENT_FILE).write_text(bundle_id, encoding="ascii")
    return forged


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON document."""
    found = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in found:
        yield value, key
        if isinstance(part, dict | list):
            yield from _spots(part)


def _samples_of(bundle: Path) -> None:
    """Do with a manifest what a service does: send its samples."""
    for sample in read_manifest(bundle).samples:
        inside(bundle, sample.file).read_bytes()


def _archive_of(bundle: Path, good: Path) -> Path:
    """A backup of a bundle that no `back_up` would make."""
    archive = bundle.parent / "forged.tar"
    said = json.loads(members(good)[SUMMARY_FILE]) | {"bundle_id": bundle.name}
    rewritten(good, archive, {SUMMARY_FILE: json.dumps(said)})
    with tarfile.open(archive, "w") as tar:
        data = json.dumps(said).encode()
        member = tarfile.TarInfo(SUMMARY_FILE)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
        tar.add(bundle, "bundle")
    return archive


def _stray(folder: Path, secret: Path) -> set[str]:
    """Files that were opened and are secret, or lie where forged names lead."""
    real = {os.path.realpath(one) for one in WATCHED.opened if "\0" not in one}
    forbidden = {str(secret), "/etc/passwd", "/proc/self/environ"}
    return {one for one in real if one in forbidden or one.startswith(f"{folder.parent}/x")}


def _outside(folder: Path) -> set[str]:
    """What lies in the folder, but for what an attempt makes, and beside it."""
    kept = [*folder.iterdir(), *folder.parent.iterdir()]
    return {str(path) for path in kept if path.name not in {"forged", "pulled", "restored"}}


def attack_sources(place: Place, seconds: float, seed: int) -> Outcome:
    """List and fetch the images of tables, annotations and archives that were forged.

    Of two servers on this machine the command names one; for both there is a password.
    """
    rng, outcome = np.random.default_rng(seed), Outcome()
    secret = place.folder / "secret.txt"
    secret.write_text(SECRET, encoding="utf-8")
    served, scratch = place.folder / "served", place.folder / "scratch"
    for path in (served, scratch):
        path.mkdir()
    (served / "1.png").write_bytes(b"pixels")
    (served / "link").symlink_to(secret)
    netrc = place.folder / "netrc"
    hosts = ("127.0.0.1", "localhost")
    lines = [f"machine {host} login ann password {SECRET}\n" for host in hosts]
    netrc.write_text("".join(lines), encoding="utf-8")
    until, n_refused = time.monotonic() + seconds, 0
    with web_server(served) as named, web_server(served) as intern:
        named.answers["/leads"] = lambda request: request.send(b"", 302, Location=_url(intern))
        strings = (*paths(secret), *_urls(named, intern))
        variables = {"NETRC": str(netrc), "no_proxy": "*"}
        with patch.dict(os.environ, variables):
            while outcome.n < len(_TABLES) or time.monotonic() < until:
                writer = _TABLES[outcome.n % len(_TABLES)]
                chosen = [strings[i] for i in rng.integers(len(strings), size=3)]
                path = writer(served, chosen)
                is_remote = rng.uniform() < 0.5
                outcome.n += 1
                with WATCHED.watching():
                    source = f"{named.url}/{path.name}" if is_remote else str(path)
                    errors, n = _read(source, scratch)
                n_refused += n
                outcome.violations += [f"{path.name} {chosen}: {error}" for error in errors]
                # The server of a remote source is in this process, and opens what it serves.
                stray = set() if is_remote else _stray(place.folder, secret)
                outcome.violations += [f"{path.name} {chosen}: opened {one}" for one in stray]
                asked = "".join(intern.heads)
                if (is_remote and asked) or PASSWORD in asked:
                    outcome.violations.append(f"{path.name} {chosen}: asked {asked}")
                if not is_remote and PASSWORD in "".join(named.heads):
                    outcome.violations.append(f"{path.name} {chosen}: sent a password")
                intern.heads.clear()
                named.heads.clear()
                shutil.rmtree(scratch)
                scratch.mkdir()
                path.unlink()
    outcome.figures |= {"refused": n_refused}
    return outcome


def _url(server: WebServer) -> str:
    """The server by the name that a command does not use."""
    return server.url.replace("127.0.0.1", "localhost") + "/1.png"


def _urls(named: WebServer, intern: WebServer) -> tuple[str, ...]:
    """Addresses of the two servers, and of nothing that answers."""
    port = intern.url.rpartition(":")[2]
    return (
        *(f"{named.url}/1.png", f"{named.url}/leads", f"{intern.url}/1.png", _url(intern)),
        *(f"http://ann@localhost:{port}/1.png", f"http://[::ffff:127.0.0.1]:{port}/1.png"),
        *(
            f"http://0.0.0.0:{port}/1.png",
            f"http://127.1:{port}/1.png",
            f"http://2130706433:{port}/",
        ),
        *(f"HTTP://LOCALHOST:{port}/1.png", f"http://127.0.0.1\\@localhost:{port}/1.png"),
        *(f"{named.url}@localhost:{port}/1.png", f"{named.url}\\@localhost:{port}/1.png"),
        *("ftp://127.0.0.1/x", "http://", "http://[", "http://a:b/", "javascript:1", "s3:///x"),
    )


def _csv(folder: Path, strings: list[str]) -> Path:
    path = folder / "list.csv"
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([["path", "id"], *([one, n] for n, one in enumerate(strings))])
    return path


def _jsonl(folder: Path, strings: list[str]) -> Path:
    path = folder / "list.jsonl"
    lines = [json.dumps({"path": one, "id": str(n)}) for n, one in enumerate(strings)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _coco(folder: Path, strings: list[str]) -> Path:
    path = folder / "boxes.json"
    images = [{"id": n, "file_name": one} for n, one in enumerate(strings)]
    boxes = [{"id": n, "image_id": n, "bbox": [0, 0, 2, 2]} for n in range(len(strings))]
    path.write_text(json.dumps({"images": images, "annotations": boxes}), encoding="utf-8")
    return path


def _iiif(folder: Path, strings: list[str]) -> Path:
    path = folder / "iiif.json"
    canvases = [
        {"id": str(n), "images": [{"resource": {"@type": "dctypes:Image", "@id": one}}]}
        for n, one in enumerate(strings)
    ]
    context = "http://iiif.io/api/presentation/2/context.json"
    content = {"@context": context, "@type": "sc:Manifest", "sequences": [{"canvases": canvases}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _tar(folder: Path, strings: list[str]) -> Path:
    path = folder / "images.tar"
    with tarfile.open(path, "w", errors="replace") as tar:
        for n, one in enumerate(strings):
            name = one.encode(errors="replace").decode()
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (tarfile.REGTYPE, tarfile.SYMTYPE)[n % 2], name
            tar.addfile(member, io.BytesIO())
    return path


_TABLES = (_csv, _jsonl, _coco, _iiif, _tar)


def _read(source: str, scratch: Path) -> tuple[list[str], int]:
    """List the images of a source and fetch them; what went wrong, and how much was refused."""
    errors, n_refused = [], 0
    storage = Storage(HASTY)
    try:
        opened = open_source(source, storage=storage)
        for entry in opened.entries(scratch, LeftOut()):
            if not entry.place.is_remote:
                continue
            try:
                storage.read(entry.place.path, MOST, entry.place.version)
            except (NotFetched, VouchError):
                n_refused += 1
    except VouchError:
        n_refused += 1
    except Exception as error:
        errors.append(repr(error))
    finally:
        storage.close()
    return errors, n_refused


SHAPES: tuple[str, ...] = (
    *("{}", " {}", "{}\n", "[{}", '["{}', '["{}"]', '[{{"{}": 1}}]', '{{"{}"', '{{"{}": "{}"}}'),
    *("{}={}", "a={}", "={}", "-{}", "--{}", "1{}", "{}/minute", "1/{}", "true{}", "\udcff{}"),
    *(
        "redis://u:{}@h:x",
        "redis://u:SWORDFISH/{}@h:1",
        "redis://u:#{}@h",
        "redis://u:SWORDFISH?{}@h",
        "{}://h",
    ),
    *("redis://:{}@h/?db={}", "redis://h/{}", "redis://:{}@h/?ssl_cert_reqs={}", "redis://[{}@h"),
    *("rediss://:{}@h/?ssl_cert_reqs={}", "unix://{}", "redis://:{}@h@i", "redis://:a b{}@h"),
    *("http://u:{}@h:x", "http://u:{}@h", "http://{}:x", "https://{}", "http://[{}", "ftp://{}@h"),
    *(
        "postgresql://u:{}@h:x/d",
        "postgresql://u:SWORDFISH/{}@h/d",
        "postgresql://u:{}@h,i/d",
        "host={}",
    ),
    *("https://a.example/{{{}}}", "a=https://{}", "/{}\x01", "{}" * 300, "{},{}", '"{}"', "'{}'"),
)
"""Values of settings, with the secret in them."""


def attack_settings(place: Place, seconds: float, seed: int) -> Outcome:
    """Give settings values that they cannot have; they are refused in one line, without values."""
    rng, outcome, n_refused = np.random.default_rng(seed), Outcome(), 0
    keys = place.folder / "keys.json"
    change_keys(keys, lambda _: [mint("one", "read")[0]])
    names = [name for name in Settings.model_fields if name != "keys"]  # whose path is shown
    until = time.monotonic() + seconds
    while outcome.n < len(_PROGRAMS) or time.monotonic() < until:
        values = {
            names[int(rng.integers(len(names)))]: _value(SHAPES[int(rng.integers(len(SHAPES)))])
            for _ in range(int(rng.integers(1, 9)))
        }
        program = _PROGRAMS[outcome.n % len(_PROGRAMS)]
        printed, status = _printed(program, values, keys)
        outcome.n += len(values)
        n_refused += status != 0
        lines = [line for line in printed.splitlines() if not line.startswith("usage: ")]
        if PART in printed:
            outcome.violations.append(f"{program.__name__} {values}: printed {printed[:200]!r}")
        if len(lines) > 1 or (status != 0 and not lines):
            said = f"{len(lines)} lines, {printed[-300:]!r}"
            outcome.violations.append(f"{program.__name__} {values}: {said}")
    outcome.figures |= {"refused": n_refused}
    return outcome


def _value(shape: str) -> str:
    return shape.replace("{}", SECRET).replace("{{", "{").replace("}}", "}")


Values = Mapping[str, str]


def _by_variables(_: Values) -> None:
    settings = read_command_line([])
    secret = (settings.redis_url, settings.cache_secret, settings.milvus_token, settings.milvus_log)
    print(secret)


def _by_options(values: Values) -> None:
    read_command_line([f"{_option(name)}={value}" for name, value in values.items()])


def _by_misspelt_options(values: Values) -> None:
    read_command_line(
        [part for name, value in values.items() for part in (_option(name) + "x", value)]
    )


def _keys(values: Values) -> None:
    keys_command.main(["revoke", next(iter(values.values()))])


def _keys_by_options(values: Values) -> None:
    keys_command.main(
        ["create", "shop", *(f"{_option(name)}x" for name in values), *values.values()]
    )


def _mcp(values: Values) -> None:
    url = next((value for value in values.values() if "://" in value), None)
    with patch("service.client.mcp_tools.mcp_server"):
        mcp_server.main([] if url is None else ["--url", url])


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_PROGRAMS: tuple[Callable[[Values], None], ...] = (
    *(_by_variables, _by_options, _by_misspelt_options, _keys, _keys_by_options, _mcp),
)


def _printed(program: Callable[[Values], None], values: Values, keys: Path) -> tuple[str, int]:
    """What a program prints, a traceback too, and its exit status."""
    printed, status = io.StringIO(), 0
    variables = {name: value for name, value in os.environ.items() if not name.startswith("VOUCH_")}
    variables |= {f"VOUCH_{name.upper()}": value for name, value in values.items()}
    variables |= {"VOUCH_KEYS": str(keys), mcp_server.API_KEY_VARIABLE: [*values.values()][-1]}
    with (
        patch.dict(os.environ, variables, clear=True),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            program(values)
        except SystemExit as end:
            status = int(end.code or 0)
        except Exception as error:
            print(f"Traceback\n{error!r}")
            status = 1
    return printed.getvalue(), status
