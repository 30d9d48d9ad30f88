"""A season of a survey: known animals found again, an unknown one named, and found from then on.

The re-identification of individuals, with kinds of Caltech-101 in the part of animals.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.end_to_end.processes import Service
from tests.end_to_end.workflows.commands import (
    Commands,
    matches,
    verdicts,
    wait_for_another_bundle,
)

pytestmark = pytest.mark.real_data

N_ANIMALS, N_KNOWN, N_LAST_YEAR, N_THIS_YEAR = 20, 14, 4, 2
"""Animals of the catalogue, and photographs of each in it, and of two surveys."""

NOBODY_KNOWS = ("dalmatian", "garfield", "octopus")
"""Photographed, and not in the catalogue."""

N_FIRST = 14
"""Photographs of each of them that come before it is named; the others come afterwards."""

MAX_ERROR = 0.1
SURE: dict[str, Any] = {"precision": 0.8}


@pytest.fixture
def animals(photographs: Path) -> dict[str, list[Path]]:
    """Photographs by animal."""
    names = sorted({path.name for path in photographs.iterdir()} - set(NOBODY_KNOWS))
    chosen = [*names[:N_ANIMALS], *NOBODY_KNOWS]
    return {name: sorted((photographs / name).iterdir()) for name in chosen}


def test_a_season_of_a_survey(
    animals: dict[str, list[Path]], encoder: Path, commands: Commands
) -> None:
    build(animals, encoder, commands)
    known = list(animals)[:N_ANIMALS]
    this_year = [path for name in known for path in animals[name][-N_THIS_YEAR:]]
    shown = [path.parent.name for path in this_year]
    strangers = [path for name in NOBODY_KNOWS for path in animals[name][:N_FIRST]]
    reasons = json.dumps(["ambiguous", "absent", "alien"])
    with commands.serve("animals", canary_period_s="0.5", review_reasons=reasons) as service:
        found = asked(service, this_year)
        right = matches(found, shown, "label")
        assert len(right) > len(this_year) / 3
        assert right.count(False) <= MAX_ERROR * len(this_year)
        of_strangers = asked(service, strangers)
        # No false-match rate was asked for, and unusual queries do not silence the gallery.
        assert verdicts(of_strangers)["match"] <= 2 * MAX_ERROR * len(strangers)
        confirm(service, found[0])
        named = enrol(service, dict(zip(strangers, of_strangers, strict=True)))
        compacted = service.http.post("/v1/galleries/animals/compact").raise_for_status()
        wait_for_another_bundle(service, "animals", compacted.json()["bundle_id"])
        late = animals[named][N_FIRST:]
        of_named = matches(asked(service, late), [named] * len(late), "label")
        assert of_named.count(True) >= len(late) / 2
        assert all(of_named)
        still = matches(asked(service, this_year), shown, "label")
        assert len(still) > 0.8 * len(right)
    exported = commands.exported_decisions("animals")
    assert {line["reviewer"] for line in exported} == {"ann"}
    assert Counter(line["decision"] for line in exported)["this_item"] == 1


def build(animals: dict[str, list[Path]], encoder: Path, commands: Commands) -> None:
    """Index and calibrate the catalogue, and measure it by last year's survey."""
    catalogue: list[dict[str, object]] = []
    last_year: list[dict[str, object]] = []
    for name, paths in animals.items():
        label = "" if name in NOBODY_KNOWS else name
        lines = [crop(path, number, label) for number, path in enumerate(paths)]
        if label:
            catalogue += lines[:N_KNOWN]
        last_year += lines[N_KNOWN : N_KNOWN + N_LAST_YEAR]
    commands.write_table("known.csv", catalogue)
    commands.write_table("last-year.csv", last_year)
    commands.index("known.csv", encoder, "animals", "--calibrate", "--max-error", MAX_ERROR)
    out = ("--out", "last-year.json", "--page", "last-year.html")
    commands.run("evaluate", "bundles/animals", "--queries", "last-year.csv", *out)
    report = json.loads((commands.place / "last-year.json").read_text())
    assert report["recall_at_1"] > 0.7
    assert report["stream"]["n_absent"] == len(NOBODY_KNOWS) * N_LAST_YEAR
    assert report["stream"]["fpir"]["share"] <= 0.5
    assert (commands.place / "last-year.html").stat().st_size > 10_000


def crop(path: Path, number: int, label: str) -> dict[str, object]:
    """A line as a detector of animals writes it: a box, an encounter, a station."""
    with Image.open(path) as picture:
        width, height = picture.size
    return {
        "id": f"{path.parent.name}/{path.stem}",
        "path": path.relative_to(path.parents[2]),
        "bbox": json.dumps([1, 1, width - 2, height - 2]),
        "label": label,
        "group": f"{path.parent.name}, encounter {number // 2}",
        "source": f"station {number // 2 % 2}",
        "viewpoint": "left",
    }


def asked(service: Service, paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [service.answer(path.read_bytes(), gallery="animals", limit=3) for path in paths]


def confirm(service: Service, answer: dict[str, Any]) -> None:
    """Say that the first result is right, and see who said so."""
    said = {
        "query_id": answer["query"]["id"],
        "decision": "this_item",
        "item_id": answer["results"][0]["id"],
        "reviewer": "ann",
    }
    service.http.post("/v1/galleries/animals/feedback", json=said).raise_for_status()
    (listed,) = service.http.get("/v1/galleries/animals/feedback").json()["decisions"]
    assert (listed["reviewer"], listed["decision"]) == ("ann", "this_item")


def enrol(service: Service, answers: dict[Path, dict[str, Any]]) -> str:
    """Name the largest group of photographs that matched nothing by what most of them show."""
    path = "/v1/galleries/animals/unknown"
    found = service.http.get(path, params=SURE).json()
    group = found["groups"][0]
    shown = {answer["query"]["id"]: path.parent.name for path, answer in answers.items()}
    ((name, n),) = Counter(shown[one["query_id"]] for one in group["members"]).most_common(1)
    assert n >= 0.8 * group["n"]
    said = {"label": name, "reviewer": "ann"}
    enrolled = service.http.post(f"{path}/{group['id']}/enrol", params=SURE, json=said)
    enrolled.raise_for_status()
    return name
