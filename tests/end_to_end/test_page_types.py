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


@pytest.mark.parametrize(
    ("schema", "field", "modules"),
    [
        ("SearchAnswer", "no_match_probability", {"answer.js", "batch/csv.js"}),
        ("Result", "match_probability", {"answer.js", "batch/budget.js", "look/facts.js"}),
        ("CalibrationReport", "risk_coverage", {"accuracy/accuracy.js", "search.js"}),
        ("ItemList", "next_cursor", {"browse/browsing.js"}),
        ("PossibleLabelError", "suggested_label", {"browse/label_errors.js"}),
        ("ReviewSummary", "counts", {"look/reviewing.js", "collect/guarantees.js"}),
        ("UnknownGroup", "p_same", {"collect/unknown.js"}),
        ("FeedbackRequest", "query_id", {"look/decisions.js"}),
        ("Facet", "n_values", {"filters/bar.js"}),
    ],
)
def test_renamed_field_of_the_api_is_found(
    package: Path, schema: str, field: str, modules: set[str]
) -> None:
    document: dict[str, Any] = json.loads(SNAPSHOT.read_text("utf-8"))
    properties = document["components"]["schemas"][schema]["properties"]
    properties[f"{field}_renamed"] = properties.pop(field)
    types = package / "api.d.ts"
    before = types.read_text("utf-8")
    types.write_text(declarations(document), "utf-8")
    found = errors(package)
    types.write_text(before, "utf-8")
    assert modules <= {one.partition("(")[0] for one in found}


@pytest.mark.parametrize(
    ("module", "right", "wrong"),
    [
        ("collect/unknown.js", "/unknown/{group}/enrol", "/unknown/{group}/enroll"),
        ("look/finding.js", "limit: 1000", "limits: 1000"),
        ("look/reviewing.js", "reviewer: by, limit", "reviewers: by, limit"),
        ("browse/labels.js", 'method: "PATCH"', 'method: "POST"'),
        ("look/decisions.js", "number }, keepalive", "decision: number }, keepalive"),
    ],
    ids=["path", "query", "json", "method", "path-parameter"],
)
def test_misspelt_request_is_found(package: Path, module: str, right: str, wrong: str) -> None:
    script = package.parents[1] / "http" / "page" / module
    before = script.read_text("utf-8")
    assert before.count(right) == 1
    script.write_text(before.replace(right, wrong), "utf-8")
    found = errors(package)
    script.write_text(before, "utf-8")
    assert {one.partition("(")[0] for one in found} == {module}
