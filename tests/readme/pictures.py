"""Make the README's pictures of a bundle: ``make pictures``.

::

    python -m tests.readme.pictures BUNDLE FOLDER

The page as a visitor sees it after a search and the verdicts on all samples, from a real browser,
and the reliability diagram of the calibration that the service reports.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

from tests.end_to_end.browsers import launched
from tests.end_to_end.processes import Service
from vouch_search import plots

SIZE: ViewportSize = {"width": 1080, "height": 900}

N_COLOURS = 256

GAP = 12
"""Pixels between verdicts."""


def picture_page(page: Page, number: int, path: Path) -> None:
    """Save the page after the search for a sample."""
    ask_sample(page, number)
    save(Image.open(io.BytesIO(page.screenshot())), path)


def picture_verdicts(page: Page, n_samples: int, path: Path) -> None:
    """Save the verdicts on the samples, two in a row."""
    shots = []
    for number in range(n_samples):
        ask_sample(page, number)
        shots.append(Image.open(io.BytesIO(page.get_by_test_id("verdict").screenshot())))
    width, height = (max(sizes) + GAP for sizes in zip(*(shot.size for shot in shots), strict=True))
    n_rows = -(-n_samples // 2)
    whole = Image.new("RGB", (2 * width - GAP, n_rows * height - GAP), "white")
    for number, shot in enumerate(shots):
        whole.paste(shot, (number % 2 * width, number // 2 * height))
    save(whole, path)


def ask_sample(page: Page, number: int) -> None:
    """Search with a sample, and wait for the pictures of the answer."""
    with page.expect_response(lambda response: response.url.endswith("/search")):
        page.get_by_test_id("sample").nth(number).click()
    page.get_by_test_id("neighbour").last.wait_for()
    page.wait_for_load_state("networkidle")


def save(picture: Image.Image, path: Path) -> None:
    """Save a picture with few colours."""
    picture.convert("RGB").quantize(N_COLOURS).save(path, optimize=True)


def picture_reliability(report: Mapping[str, Any], path: Path) -> None:
    """Save the reliability diagram of a calibration report."""
    with mpl.rc_context({"svg.hashsalt": "vouch"}):
        figure = Figure(figsize=(4.6, 3.4), layout="constrained")
        plots.reliability(report, ax=figure.add_subplot())
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def main(bundle: Path, folder: Path) -> None:
    """Make all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Service(bundle, Path(scratch) / "service.log") as service,
        sync_playwright() as playwright,
    ):
        (gallery,) = service.http.get("/v1/galleries").json()["galleries"]
        path = f"/v1/galleries/{gallery['name']}"
        n_samples = len(service.http.get(path).json()["samples"])
        browser = launched(playwright)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(str(service.http.base_url))
        picture_page(page, 0, folder / "page.png")
        picture_verdicts(page, n_samples, folder / "verdicts.png")
        browser.close()
        report = service.http.get(f"{path}/calibration").json()
    picture_reliability(report, folder / "reliability.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
