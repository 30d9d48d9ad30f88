"""Make the pictures of the documentation from the demo: ``make pictures``.

::

    python -m tests.readme.pictures BUNDLE FOLDER

Five screens of the page from a real browser, the verdicts on all samples, and the reliability
diagram of the calibration that the service reports. The service runs on a copy of the bundle.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from service.client import VouchClient
from tests.end_to_end.browsers import launched
from tests.end_to_end.processes import Service
from vouch_search import plots

SIZE: ViewportSize = {"width": 1080, "height": 900}
SCREEN: ViewportSize = {"width": 1280, "height": 800}

N_COLOURS = 256
QUALITY = 60
"""WebP quality of the screens: text stays sharp, and most screens take less than 60 kB."""

GAP = 12
"""Pixels between verdicts."""

PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "demo" / "photographs"
NEW_GALLERY = "collection"
ABSENT_LABELS = ("dolphin", "hedgehog", "umbrella")
"""Labels of the batch that the new gallery lacks: as many as its calibration expects."""


def picture_screens(browser: Browser, service: Service, demo: str, folder: Path) -> None:
    """Save the five screens that a curator sees most."""
    page = browser.new_page(viewport=SCREEN, color_scheme="light")
    home = str(service.http.base_url)
    page.goto(home)
    page.get_by_test_id("tour-skip").click()
    ask_sample(page, 0)
    save_screen(page, folder / "answer.webp")
    open_room(page, f"{home}/#/{demo}/map")
    expect(page.get_by_test_id("browse-status")).to_contain_text("on the map")
    save_screen(page, folder / "map.webp")
    open_room(page, f"{home}/#/{demo}/report")
    save_screen(page, folder / "report.webp")
    fill_gallery(service, NEW_GALLERY)
    open_room(page, f"{home}/#/{NEW_GALLERY}/guarantees")
    save_screen(page, folder / "guarantees.webp")
    with tempfile.TemporaryDirectory() as scratch:
        photographs = Path(scratch) / "survey"
        n_photographs = take_photographs(photographs)
        calibrate(service, NEW_GALLERY)
        page.goto("about:blank")
        page.goto(f"{home}/#/{NEW_GALLERY}/batch")
        page.get_by_test_id("folder-input").set_input_files(photographs)
        page.get_by_test_id("batch-row").nth(n_photographs - 1).wait_for()
        expect(page.get_by_role("progressbar")).to_be_hidden(timeout=120_000)
        save_screen(page, folder / "batch.webp")
    page.close()


def open_room(page: Page, address: str) -> None:
    """Open a dialog of the page by its address; the page is loaded anew."""
    page.goto("about:blank")
    page.goto(address)
    page.get_by_role("dialog").wait_for()


def new_photographs() -> list[list[Path]]:
    """Return the photographs of each label of the new gallery. The last of each is not added."""
    folders = sorted(PHOTOGRAPHS.iterdir())
    return [sorted(one.iterdir()) for one in folders if one.name not in ABSENT_LABELS]


def fill_gallery(service: Service, name: str) -> None:
    """Create a gallery and add photographs."""
    with VouchClient(str(service.http.base_url)) as client:
        client.manage.create(name)
        for *paths, _ in new_photographs():
            label = paths[0].parent.name
            client.put_items(name, [(f"{label}/{one.name}", one) for one in paths], label=label)


def calibrate(service: Service, name: str) -> None:
    """Calibrate the gallery."""
    with VouchClient(str(service.http.base_url)) as client:
        run = client.manage.calibrate(name)
        while run.state == "running":
            time.sleep(1)
            run = client.manage.calibration_run(name)
        if run.state != "succeeded":
            raise SystemExit(f"The calibration failed: {run.reason}")


def take_photographs(folder: Path) -> int:
    """Put a photograph of each label into a folder, and return their number."""
    absent = [min((PHOTOGRAPHS / label).iterdir()) for label in ABSENT_LABELS]
    taken = [*(paths[-1] for paths in new_photographs()), *absent]
    folder.mkdir()
    for path in taken:
        shutil.copy(path, folder / f"{path.parent.name}{path.suffix}")
    return len(taken)


def save_screen(page: Page, path: Path) -> None:
    """Save what the window shows, once all pictures are there."""
    page.wait_for_load_state("networkidle")
    page.evaluate("scrollTo(0, 0)")
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, quality=QUALITY, method=6)


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
    whole.quantize(N_COLOURS).save(path, optimize=True)


def ask_sample(page: Page, number: int) -> None:
    """Search with a sample, and wait for the pictures of the answer."""
    with page.expect_response(lambda response: response.url.endswith("/search")):
        page.get_by_test_id("sample").nth(number).click()
    page.get_by_test_id("neighbour").last.wait_for()
    page.wait_for_load_state("networkidle")


def picture_reliability(report: Mapping[str, Any], path: Path) -> None:
    """Save the reliability diagram of a calibration report."""
    with mpl.rc_context({"svg.hashsalt": "vouch"}):
        figure = Figure(figsize=(4.6, 3.4), layout="constrained")
        plots.reliability(report, ax=figure.add_subplot())
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def main(bundle: Path, folder: Path) -> None:
    """Make all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(bundle, Path(scratch) / bundle.name)
        variables = {
            "VOUCH_GALLERIES": f"{scratch}/galleries",
            "VOUCH_FEEDBACK": f"{scratch}/feedback.sqlite3",
        }
        with (
            Service(copy, Path(scratch) / "service.log", variables) as service,
            sync_playwright() as playwright,
        ):
            (gallery,) = service.http.get("/v1/galleries").json()["galleries"]
            path = f"/v1/galleries/{gallery['name']}"
            n_samples = len(service.http.get(path).json()["samples"])
            report = service.http.get(f"{path}/calibration").json()
            browser = launched(playwright)
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto(str(service.http.base_url))
            picture_verdicts(page, n_samples, folder / "verdicts.png")
            picture_screens(browser, service, gallery["name"], folder)
            browser.close()
    picture_reliability(report, folder / "reliability.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
