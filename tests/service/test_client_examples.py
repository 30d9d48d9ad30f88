"""Examples in the docstrings of the Python client: each public name has one, and it runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

import service.client
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import activate
from model_store.identities import Grouping
from service import schemas
from service.client import VouchClient
from service.client.management import GalleryManagement, ReviewQueueClient, UnknownQueriesClient
from tests.support.bundle_copies import copied

StartClient = Callable[..., TestClient]

PATHS = json.loads((Path(__file__).parent / "openapi.json").read_text("utf-8"))["paths"]
CLASSES = (VouchClient, ReviewQueueClient, UnknownQueriesClient, GalleryManagement)
NEED_OTHER_SOFTWARE = {
    "VouchClient": "",
    "search_text": "search_text",
    "decide": "decide",
    "compact": "compact_gallery",
    "calibrate": "calibrate_gallery",
    "calibration_run": "get_calibration_run",
}
"""A service at a port, a text encoder, a vector database, and a program that writes bundles: the
names whose examples need one, with their operations."""
SENT_IN_OTHER_TESTS = {*NEED_OTHER_SOFTWARE.values(), "enrol_unknown"}
"""There is no group of unknown queries to enrol here."""

WITHOUT_A_METHOD = {
    "search_raw": "as `search`",
    "search_json": "as `search`",
    "get_map": "for the page",
    "list_map_items": "for the page",
    "get_sample": "for the page",
    "livez": "a probe",
    "readyz": "a probe",
    "metrics": "for Prometheus",
}
"""Operations of the service without a method of the client, and why."""


def documented() -> Iterator[tuple[str, object]]:
    """Yield the public classes and functions, and the methods of the classes, with their names."""
    for name in service.client.__all__:
        thing = getattr(service.client, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield name, thing
    for one in CLASSES:
        yield one.__name__, one
        for name, method in vars(one).items():
            if inspect.isfunction(method) and not name.startswith("_") and name != "close":
                yield name, method


DOCUMENTED = dict(documented())


def source_of(name: str) -> str:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(DOCUMENTED[name]) or "")
    return "".join(example.source for example in examples)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_name_has_an_example_that_uses_it(name: str) -> None:
    tree = ast.parse(source_of(name))
    assert tree.body
    if inspect.isfunction(method := DOCUMENTED[name]):
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
        ]
        assert calls
        for call in calls:
            named = {one.arg: one.value for one in call.keywords if one.arg}
            inspect.signature(method).bind(None, *call.args, **named)


def operations() -> set[str]:
    return {one["operationId"] for path in PATHS.values() for one in path.values()}


def operation_of(method: str, path: str) -> str:
    """Return the operation that a request is for: of the paths that fit, that with most words."""
    fitting = [one for one in PATHS if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), path)]
    return str(PATHS[min(fitting, key=lambda one: one.count("{"))][method]["operationId"])


class Recording(httpx2.BaseTransport):
    """Passes requests on, and keeps the method and the path of each."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner, self.sent = inner, set[tuple[str, str]]()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.add((request.method.lower(), request.url.path))
        return self._inner.handle_request(request)


@pytest.fixture
def vouch(
    start: StartClient,
    bundle: Bundle,
    digits_bundle: Path,
    uncalibrated_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[VouchClient]:
    """A client of a service that takes changes, in a folder with the files of the examples."""
    root = tmp_path / "bundles"
    for one in (digits_bundle, uncalibrated_bundle):
        copied(one, root / one.name)
    activate(root, digits_bundle.name)
    app = start(
        replace(bundle.within(root), directory=root / digits_bundle.name),
        feedback=tmp_path / "feedback.sqlite3",
        galleries=tmp_path / "galleries",
        review_reasons=["random"],
        audit_share=1.0,
    )
    # The encoder was trained on the labels of the gallery, so it has no groups of its own.
    monkeypatch.setattr(
        Grouping, "of_bundle", lambda bundle: Grouping.of_gallery(bundle.retriever.gallery)
    )
    monkeypatch.chdir(tmp_path)
    for name in ("photo", "one", "two"):
        Path(f"{name}.png").write_bytes((digits_bundle / "samples" / "1.png").read_bytes())
    Path("annotated.json").write_text("[]", encoding="utf-8")
    with VouchClient("http://127.0.0.1", transport=Recording(app._transport)) as client:
        yield client


def test_examples_run_and_reach_every_operation(
    vouch: VouchClient, uncalibrated_bundle: Path
) -> None:
    item_id = next(vouch.items("digits")).id
    names: dict[str, Any] = {name: getattr(service.client, name) for name in service.client.__all__}
    names |= {"vouch": vouch, "schemas": schemas, "Path": Path, "json": json}
    names["bundle_id"] = uncalibrated_bundle.name
    for name in DOCUMENTED:
        if name not in NEED_OTHER_SOFTWARE:
            names["answer"] = vouch.search("digits", Path("photo.png"), limit=3)
            source = source_of(name).replace('"demo"', '"digits"').replace("chair-7", item_id)
            exec(compile(source, name, "exec"), names)
            if name == "delete_item":
                vouch.put_item("digits", item_id, Path("photo.png"), label="chair")

    recording = vouch._http._transport
    assert isinstance(recording, Recording)
    reached = SENT_IN_OTHER_TESTS | {operation_of(*one) for one in recording.sent}
    assert operations() - reached == {*WITHOUT_A_METHOD}
