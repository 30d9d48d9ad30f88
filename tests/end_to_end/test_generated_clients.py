"""Clients that generators make from the OpenAPI document: compiled, and used.

Hey API and openapi-typescript for node, openapi-python-client for Python.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.bundles.bundle import Bundle
from tests.end_to_end.element_package import run
from tests.end_to_end.processes import Service
from tests.end_to_end.questions import search

HERE = Path(__file__).parent
SOURCES = HERE / "typescript"
DOCUMENT = HERE.parent / "service" / "openapi.json"

PYTHON_GENERATOR = "openapi-python-client==0.29.1"
"""In an environment of its own: it wants an older typer than the index builder."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the generated client and of what uses it, compiled.

    `use.ts` says where it expects errors, such as a string in place of a file: where the compiler
    finds none, that is one.
    """
    place = tmp_path_factory.mktemp("front-end") / "client"
    shutil.copytree(SOURCES, place, ignore=shutil.ignore_patterns("node_modules"))
    run(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"], place)
    generate = ["npx", "openapi-ts", "--input", str(DOCUMENT), "--output", "client"]
    run([*generate, "--client", "@hey-api/client-fetch"], place)
    types = ["npx", "openapi-typescript", str(DOCUMENT), "--output", "schema.d.ts"]
    run([*types, "--default-non-nullable=false"], place)
    run(["npx", "tsc", "--strict"], place)
    return place


def test_documentation_installs_the_tested_major_version_of_typescript() -> None:
    tested = json.loads((SOURCES / "package.json").read_text("utf-8"))["devDependencies"]
    [documented] = re.findall(
        r"npm install @hey-api/openapi-ts typescript@?(\S*)",
        (HERE.parents[1] / "docs" / "howto" / "clients.md").read_text("utf-8"),
    )
    assert documented == tested["typescript"].partition(".")[0]


def test_a_front_end_searches(
    compiled: Path, service: Service, library: Bundle, digits_bundle: Path
) -> None:
    photograph = digits_bundle / "samples" / "1.png"
    command = ["node", "build/use.js", str(service.http.base_url), str(photograph)]
    seen: dict[str, Any] = json.loads(run(command, compiled))
    expected = search(service.http, photograph.read_bytes(), limit=3).json()
    for name in ("query", "results", "verdict", "result_set", "bundle"):
        assert seen["found"][name] == expected[name], name
    assert seen["raw"] == seen["json"] == expected["results"]
    assert [result["rank"] for result in seen["next"]] == [4, 5, 6]
    assert seen["batch"] == [expected["results"][0]["id"], "unsupported_image"]
    assert seen["assessed"] == expected["query"]
    ids = [item.id for item in library.retriever.gallery.items(np.arange(2))]
    assert seen["listed"] == ids
    similar = [match.id for match in library.retriever.similar(ids[0], 2).matches]
    assert seen["similar"] == similar
    assert seen["status"] == seen["problem"]["status"] == 400
    assert seen["problem"]["code"] == "empty_image"
    assert seen["problem"]["request_id"]
    assert seen["words"]


def test_client_with_types_of_openapi_typescript_searches(
    compiled: Path, service: Service, digits_bundle: Path
) -> None:
    photograph = digits_bundle / "samples" / "1.png"
    command = ["node", "build/fetch.js", str(service.http.base_url), str(photograph)]
    seen: dict[str, Any] = json.loads(run(command, compiled))
    options: dict[str, Any] = {"limit": 2, "filter": '{"label": "7"}'}
    expected = search(service.http, photograph.read_bytes(), **options).json()["results"]
    assert seen["json"] == seen["form"] == [result["id"] for result in expected]
    assert seen["labels"] == seen["listed"] == ["7", "7"]
    assert seen["problem"]["code"] == "unsupported_image"


def test_client_of_openapi_python_client_searches(
    service: Service, digits_bundle: Path, tmp_path: Path
) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("there is no uv beside this Python (`make install` puts it there)")
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    document["info"]["version"] = "0"
    (tmp_path / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    alone = ["run", "--no-project", "--isolated", "--python", sys.executable]
    python = [str(uv), *alone, "--with", PYTHON_GENERATOR]
    generate = ["openapi-python-client", "generate", "--path", "openapi.json", "--meta", "none"]
    run([*python, *generate, "--output-path", "client"], tmp_path)
    photograph = digits_bundle / "samples" / "1.png"
    program = [str(HERE / "generated_python.py"), str(service.http.base_url), str(photograph)]
    seen = json.loads(run([*python, "env", "PYTHONPATH=.", "python", *program], tmp_path))
    assert seen["n_modules"] > 150
    image = photograph.read_bytes()
    seven = search(service.http, image, limit=2, filter='{"label": "7"}').json()
    expected = [result["id"] for result in search(service.http, image, limit=2).json()["results"]]
    assert seen["found"] == [result["id"] for result in seven["results"]]
    assert seen["labels"] == ["7", "7"]
    assert seen["by_vector"] == expected
    assert seen["batch"] == [expected[0]] * 2
    assert len(seen["listed"]) == 2
    assert seen["problem"] == "empty_image"
