"""The page's scripts are checked with the types of the API: `make page-types`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.element_package import install, run
from tests.service.test_openapi import SNAPSHOT
from tests.support.typescript import declarations


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("types"))


def errors(package: Path) -> list[str]:
    """Return what the check of the page finds: ``browse/map.js(80,5): error …``."""
    lines = run(["npm", "run", "--silent", "types"], package, may_fail=True).splitlines()
    return [line.removeprefix("../../http/page/") for line in lines if ": error TS" in line]


def test_page_fits_the_api(package: Path) -> None:
    assert errors(package) == []


RENAMED = [
    ("SearchAnswer", "no_match_probability", {"answer.js", "batch/csv.js"}),
    ("Result", "match_probability", {"answer.js", "batch/budget.js", "look/facts.js"}),
    ("CalibrationReport", "risk_coverage", {"accuracy/accuracy.js", "search.js"}),
    ("ItemList", "next_cursor", {"browse/browsing.js"}),
    ("PossibleLabelError", "suggested_label", {"browse/label_errors.js"}),
    ("ReviewSummary", "counts", {"look/reviewing.js", "collect/guarantees.js"}),
    ("UnknownGroup", "p_same", {"collect/unknown.js"}),
    ("FeedbackRequest", "query_id", {"look/decisions.js"}),
    ("Facet", "n_values", {"filters/fields.js"}),
]
"""Fields of the API, and modules of the page that use them."""


def test_renamed_fields_of_the_api_are_found(package: Path) -> None:
    document: dict[str, Any] = json.loads(SNAPSHOT.read_text("utf-8"))
    for schema, field, _ in RENAMED:
        properties = document["components"]["schemas"][schema]["properties"]
        properties[f"{field}_renamed"] = properties.pop(field)
    types = package / "api.d.ts"
    before = types.read_text("utf-8")
    types.write_text(declarations(document), "utf-8")
    found = errors(package)
    types.write_text(before, "utf-8")
    for _, field, modules in RENAMED:
        named = {one.partition("(")[0] for one in found if f"'{field}'" in one}
        assert modules <= named, field


MISSPELT = [
    ("collect/unknown.js", "/unknown/{group}/enrol", "/unknown/{group}/enroll"),
    ("look/finding.js", "limit: 1000", "limits: 1000"),
    ("look/reviewing.js", "reviewer: by, limit", "reviewers: by, limit"),
    ("browse/labels.js", 'method: "PATCH"', 'method: "POST"'),
    ("look/decisions.js", "number }, keepalive", "decision: number }, keepalive"),
]
"""Modules with a request: a path, a query, JSON, a method, a parameter of a path."""


def test_misspelt_requests_are_found(package: Path) -> None:
    scripts = {name: package.parents[1] / "http" / "page" / name for name, _, _ in MISSPELT}
    before = {name: script.read_text("utf-8") for name, script in scripts.items()}
    for name, right, wrong in MISSPELT:
        assert before[name].count(right) == 1
        scripts[name].write_text(before[name].replace(right, wrong), "utf-8")
    found = errors(package)
    for name, script in scripts.items():
        script.write_text(before[name], "utf-8")
    assert {one.partition("(")[0] for one in found} == set(scripts)
