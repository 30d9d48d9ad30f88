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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

from index_builder.metrics.charts import HEIGHT, LEFT, UNIT, WIDTH
from tests.end_to_end.browsers import launched
from tests.end_to_end.processes import Service

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


def reliability_diagram(bins: Sequence[dict[str, Any]]) -> str:
    """Return an SVG: what was foretold across, how often it was right down."""
    points = [(one["probability"], one["share"], one["weight"]) for one in bins if one["n"]]
    most = max(weight for *_, weight in points)
    dots = "".join(
        f'<circle cx="{UNIT.x(x)}" cy="{UNIT.y(y)}" r="{2 + 6 * (weight / most) ** 0.5:.2f}"/>'
        for x, y, weight in points
    )
    ticks = "".join(
        f'<text x="{tick.place}" y="{HEIGHT - 24}" text-anchor="middle">{tick.label}</text>'
        for tick in UNIT.x_ticks
    ) + "".join(
        f'<text x="{LEFT - 8}" y="{tick.place + 4}" text-anchor="end">{tick.label}</text>'
        for tick in UNIT.y_ticks
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="11" fill="#555">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<path d="{UNIT.path([(0, 1), (0, 0), (1, 0)])}" fill="none" stroke="#999"/>'
        f'<path d="{UNIT.path([(0, 0), (1, 1)])}" fill="none" stroke="#999"'
        ' stroke-dasharray="4 3"/>'
        f'<g fill="#1f5fbf" fill-opacity="0.75">{dots}</g>{ticks}'
        f'<text x="{UNIT.x(0.5)}" y="{HEIGHT - 6}" text-anchor="middle">match probability</text>'
        f'<text transform="translate(14 {UNIT.y(0.5)}) rotate(-90)" text-anchor="middle">'
        "share that was right</text></svg>\n"
    )


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
    diagram = reliability_diagram(report["reliability"])
    (folder / "reliability.svg").write_text(diagram, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
