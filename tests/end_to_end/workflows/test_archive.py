"""Which of our works is this? Masters in an archive, a visitor's photograph, and an honest decline.

One image a work and no labels; what is on the wall has a frame around it, glare and an angle.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index_builder.datasets.corruption import view
from tests.end_to_end.processes import Service
from tests.end_to_end.questions import embed
from tests.end_to_end.workflows.commands import Commands, as_jpeg, matches, verdicts

pytestmark = pytest.mark.real_data

N_WORKS, N_VISITORS = 220, 30
"""Works of the archive, and photographs of visitors: as many of its works as of others."""

N_WITH_WALL = 10
"""Of these with the wall around the work, as if nobody cut it out."""

N_WITH_COPIES = 15
"""Visitors who have the picture of a work, as it was printed or published."""

MASTER_PIXELS, LARGE_PIXELS = 60_000, 41_000_000
"""Pixels of a master, and of one that is larger than the usual limit of 40 megapixels."""

RECORDS = "https://museum.example/works/{id}"
DECISIONS = "/v1/galleries/works/feedback"
PROMISES = ("--max-error", 0.05, "--max-false-match-rate", 0.1, "--expected-absent", 0.05)
"""What the archive fears are near misses, so that it is promised how many of them are a match."""


def test_an_archive(shuffled: list[Path], encoder: Path, commands: Commands) -> None:
    write_masters(shuffled[:N_WORKS], commands.place / "masters")
    shown = ("--no-labels", "--previews", 256)
    limits = ("--max-pixels", 60_000_000, "--max-bytes", "300MiB")
    commands.index("masters", encoder, "works", *shown, *limits, "--calibrate", *PROMISES)
    assert not (commands.place / "runs" / "works" / "quarantine.jsonl").exists()
    with commands.serve("works", record_urls=json.dumps({"works": RECORDS})) as service:
        ask_as_visitors(service, shuffled)
        assert service.http.get("/v1/galleries/works").json()["record_url"] == RECORDS
        shared = embed(service.http, on_the_wall(shuffled[0], 0), "works").json()
        assert shared["encoder"]["fingerprint"]
        assert np.linalg.norm(shared["direction"]) == pytest.approx(1, abs=1e-3)
    said = commands.exported_decisions("works")
    commands.run("feedback", "import", "elsewhere.sqlite3", "decisions.csv")
    commands.run("feedback", "export", "elsewhere.sqlite3", "again.csv", "--gallery", "works")
    assert commands.read_table("again.csv") == said
    assert Counter(line["decision"] for line in said) == {"that_item": 1, "none_of_these": 1}


def write_masters(works: Sequence[Path], folder: Path) -> None:
    """Write TIFF files, the first of them larger than usual limits allow."""
    folder.mkdir()
    for number, path in enumerate(works):
        n_pixels = LARGE_PIXELS if number == 0 else MASTER_PIXELS
        with Image.open(path) as picture:
            scale = (n_pixels / (picture.width * picture.height)) ** 0.5
            size = round(picture.width * scale), round(picture.height * scale)
            master = picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
            compression = "raw" if number == 0 else "tiff_lzw"  # of so large a one it takes long
            master.save(folder / f"{number:04d}.tif", compression=compression)


def photographed(path: Path, number: int) -> Image.Image:
    """Return what a visitor's camera sees of a work: another view than any of calibration."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return Image.fromarray(view(pixels, np.random.default_rng([number, 5])))


def on_the_wall(path: Path, number: int) -> bytes:
    """Return a work with its frame, and the wall around it."""
    seen = photographed(path, number)
    width, height = seen.size
    wall = Image.new("RGB", (2 * width, 2 * height), (196, 192, 184))
    wall.paste(
        (70, 45, 20), (width // 2 - 8, height // 2 - 8, 3 * width // 2 + 8, 3 * height // 2 + 8)
    )
    wall.paste(seen, (width // 2, height // 2))
    return as_jpeg(wall)


def cut_out(image: bytes) -> bytes:
    """Return what the page sends when the visitor has drawn a frame around the work."""
    with Image.open(io.BytesIO(image)) as picture:
        width, height = picture.size
        return as_jpeg(picture.crop((width // 4, height // 4, 3 * width // 4, 3 * height // 4)))


def ask_as_visitors(service: Service, works: list[Path]) -> None:
    """Ask for works of the archive and for others, and decide on one of either.

    The first come with pictures of the masters themselves: better ones than calibration expected
    are no reason to trust it less, nor are ordinary ones after them.
    """
    names = [f"{number:04d}.tif" for number in range(N_VISITORS)]
    exact = [answer_to(service, path.read_bytes()) for path in works[:N_WITH_COPIES]]
    assert matches(exact, names[:N_WITH_COPIES], "id") == [True] * N_WITH_COPIES
    ours = [on_the_wall(works[number], number) for number in range(N_VISITORS)]
    others = [on_the_wall(works[N_WORKS + n], N_WORKS + n) for n in range(N_VISITORS)]
    found = [answer_to(service, cut_out(image)) for image in ours]
    with_wall = [answer_to(service, image) for image in ours[:N_WITH_WALL]]
    assert certainty(found[:N_WITH_WALL]) > certainty(with_wall), "the wall is no part of the work"
    of_matches = matches(found, names, "id")
    assert len(of_matches) > N_VISITORS / 4, verdicts(found)
    assert of_matches.count(False) <= 1
    declined = [answer_to(service, cut_out(image)) for image in others]
    assert verdicts(declined)["match"] <= N_VISITORS / 5
    that = {"decision": "that_item", "item_id": names[0]}
    for answer, said in ((found[0], that), (declined[0], {"decision": "none_of_these"})):
        line = {"query_id": answer["query"]["id"], "reviewer": "curator", **said}
        service.http.post(DECISIONS, json=line).raise_for_status()


def certainty(answers: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([answer["results"][0]["match_probability"] for answer in answers]))


def answer_to(service: Service, image: bytes) -> dict[str, Any]:
    return service.answer(image, gallery="works", limit=1)
