"""Make the README's pictures of a bundle: ``make pictures``.

::

    python -m tests.readme.pictures BUNDLE FOLDER

The page as a visitor sees it after a search, from a real browser, and the reliability diagram of
the calibration that the service reports.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from index_builder.metrics.charts import HEIGHT, LEFT, UNIT, WIDTH
from tests.end_to_end.browsers import launched
from tests.end_to_end.processes import Service

SIZE: ViewportSize = {"width": 1080, "height": 760}


def picture_page(service: Service, path: Path) -> None:
    """Save the page after the search for the first sample, with few colours."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = launched(playwright)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(str(service.http.base_url))
        page.get_by_test_id("sample").first.click()
        page.get_by_test_id("neighbour").last.wait_for()
        page.wait_for_load_state("networkidle")
        whole = Path(folder) / "page.png"
        page.screenshot(path=whole)
        browser.close()
        Image.open(whole).convert("RGB").quantize(64).save(path, optimize=True)


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
    """Make both pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Service(bundle, Path(scratch) / "service.log") as service,
    ):
        picture_page(service, folder / "page.png")
        (gallery,) = service.http.get("/v1/galleries").json()["galleries"]
        report = service.http.get(f"/v1/galleries/{gallery['name']}/calibration").json()
    diagram = reliability_diagram(report["reliability"])
    (folder / "reliability.svg").write_text(diagram, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
