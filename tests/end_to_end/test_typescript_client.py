"""A client that a generator makes from the OpenAPI document: compiled strictly, used by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.bundles.bundle import Bundle
from tests.end_to_end.processes import Service
from tests.end_to_end.questions import search

HERE = Path(__file__).parent
SOURCES = HERE / "typescript"
DOCUMENT = HERE.parent / "service" / "openapi.json"
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")


def run(command: Sequence[str], place: Path) -> str:
    """Run a command in ``place``; what it printed."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if command[0] == "npm" and any(code in done.stderr for code in UNREACHABLE):
        pytest.skip(f"npm reaches no registry: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the generated client and of what uses it, compiled.

    `use.ts` says where it expects errors, such as a string in place of a file: where the compiler
    finds none, that is one.
    """
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here (https://nodejs.org, 20 or later)")
    place = tmp_path_factory.mktemp("front-end") / "client"
    shutil.copytree(SOURCES, place, ignore=shutil.ignore_patterns("node_modules"))
    run(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"], place)
    generate = ["npx", "openapi-ts", "--input", str(DOCUMENT), "--output", "client"]
    run([*generate, "--client", "@hey-api/client-fetch"], place)
    run(["npx", "tsc", "--strict"], place)
    return place


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
    similar = [match.item.id for match in library.retriever.similar(ids[0], 2).matches]
    assert seen["similar"] == similar
    assert seen["status"] == seen["problem"]["status"] == 400
    assert seen["problem"]["code"] == "empty_image"
    assert seen["problem"]["request_id"]
    assert seen["words"]
