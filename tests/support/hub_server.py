"""A Hugging Face Hub in memory: the endpoints that huggingface_hub's own client calls for models.

Repositories, commits, plain and LFS uploads, and files at a revision; no Xet, which a client leaves
alone with ``HF_HUB_DISABLE_XET=1``. It counts what is sent, and refuses what a test names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_of_the_tests"

LARGE = 1000
"""Bytes from which a file is sent as LFS has it."""


@dataclass
class Repository:
    """Commits, each a whole state of its files."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    head: str = ""

    def commit(self, files: dict[str, bytes]) -> str:
        self.head = hashlib.sha1(f"{self.head} {len(self.commits)}".encode()).hexdigest()
        self.commits[self.head] = files
        return self.head

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.head if revision == "main" else revision
        return (commit, self.commits[commit]) if commit in self.commits else None


class Hub:
    """The server, in a thread of this process."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.stored: dict[str, bytes] = {}
        self.sent: Counter[str] = Counter()
        self.refuses: str | None = None
        hub = self

        class Handler(_Handler):
            state = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._describe(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(*found.groups())
        else:
            self._problem(404, f"no such path: GET {path}")

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._problem(401, "Invalid credentials")
        elif path == "/api/validate-yaml":
            card = yaml.safe_load(json.loads(body)["content"].split("---")[1])
            wrong = [] if card["library_name"] == "vouch" else [{"message": "not a card of Vouch"}]
            self._answer({"errors": wrong, "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["size"] >= LARGE else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            self._answer(
                {"transfer": "basic", "objects": list(map(self._lfs, json.loads(body)["objects"]))}
            )
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._problem(404, f"no such path: POST {path}")

    def do_PUT(self) -> None:
        body = self._body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        if self.state.refuses == "uploads" and self.state.stored:
            self._problem(403, "No more of these today.")
            return
        self.state.stored[oid] = body
        self.state.sent["uploads"] += 1
        self._answer({})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.state.repositories:
            self._problem(409, "You already created this model repo", {"url": name})
            return
        repository = Repository(asked.get("visibility") == "private" or bool(asked.get("private")))
        repository.commit({".gitattributes": b""})
        self.state.repositories[name] = repository
        self._answer({"url": f"{self.state.url}/{name}"})

    def _describe(self, name: str, revision: str) -> None:
        if (found := self._at(name, revision)) is not None:
            commit, files = found
            siblings = [{"rfilename": path, "size": len(files[path])} for path in sorted(files)]
            self._answer({"id": name, "sha": commit, "siblings": siblings, "tags": []})

    def _file(self, name: str, revision: str, path: str) -> None:
        if (found := self._at(name, revision)) is None:
            return
        commit, files = found
        if path not in files:
            self._problem(404, "Entry not found", code="EntryNotFound")
            return
        if self.state.refuses == path:
            self._problem(403, "Not this one.")
            return
        content = files[path]
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.state.sent[path] += 1
            self.wfile.write(content)

    def _lfs(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["oid"] in self.state.stored:
            return one
        return {**one, "actions": {"upload": {"href": f"{self.state.url}/lfs/{one['oid']}"}}}

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        repository = self.state.repositories[name]
        files = dict(repository.commits[repository.head])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                if value.get("parentCommit") not in {None, repository.head}:
                    self._problem(412, "A commit has happened since.")
                    return
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.state.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.commit(files)
        url = f"{self.state.url}/{name}/commit/{commit}"
        self._answer({"commitUrl": url, "commitOid": commit, "success": True})

    def _at(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        repository = self.state.repositories.get(name)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.private and not known):
            self._problem(401, "Invalid username or password.", code="RepoNotFound")
            return None
        if (found := repository.at(revision)) is None:
            self._problem(404, "Invalid rev id", code="RevisionNotFound")
        return found

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, content: dict[str, Any]) -> None:
        self._send(200, json.dumps(content).encode())

    def _problem(
        self, status: int, said: str, more: dict[str, Any] | None = None, code: str = ""
    ) -> None:
        body = json.dumps({"error": said, **(more or {})}).encode()
        self._send(
            status, body, {"X-Error-Message": said, **({"X-Error-Code": code} if code else {})}
        )

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
