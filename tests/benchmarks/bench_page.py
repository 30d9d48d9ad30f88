"""The page as its visitors meet it, in numbers: ``make bench NAME=page``.

::

    python -m tests.benchmarks.bench_page BUNDLES

In a real Chromium, and with Lighthouse where npm reaches its registry. Writes ``build/page.json``,
and beside it pictures of what a visitor does, on a desk and on a phone, under ``build/page/``.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, FilePayload, Page, sync_playwright

from index_builder.datasets.small_images import digits
from tests.benchmarks.measured import record_figures
from tests.end_to_end.browsers import WHOLE, installed, launched
from tests.end_to_end.first_view import transferred
from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import FILES, Shown
from tests.end_to_end.stage import stage
from tests.end_to_end.test_page_browsing import N_ITEMS, items
from tests.end_to_end.test_page_map import LAST, map_of
from tests.end_to_end.test_page_map import opened as open_map
from tests.support.image_files import encoded

LIGHTHOUSE = "lighthouse@13.5.0"
CATEGORIES = ("performance", "accessibility", "best-practices")
N_VISITS = 7
N_BATCH = 50
N_FRAMES = 240

SIZES: Mapping[str, Mapping[str, Any]] = {
    "desk": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "phone": {
        "viewport": {"width": 360, "height": 740},
        "device_scale_factor": 2,
        "has_touch": True,
        "is_mobile": True,
        "color_scheme": "dark",
        "locale": "de-DE",
    },
}


def first_paint_ms(browser: Browser, address: str) -> float:
    """The time to the first contentful paint of a first visit: the median of some."""
    times = []
    for _ in range(N_VISITS):
        page = browser.new_page()
        page.goto(address)
        page.get_by_test_id("sample").first.wait_for()
        read = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times.append(float(page.evaluate(read)))
        page.close()
    return statistics.median(times)


def script_kb(service: Service) -> float:
    """All scripts of the page as they are served, each compressed alone, in kB."""
    paths = [path.relative_to(FILES).as_posix() for path in FILES.rglob("*.js")]
    served = [service.http.get(f"/page/{path}").content for path in paths]
    return sum(len(gzip.compress(script)) for script in served) / 1000


def first_view_kb(browser: Browser, address: str) -> dict[str, float]:
    """All bytes of a first visit in each language, with headers, data and pictures, in kB."""
    names = {"first_view_kb": "en-US", "first_view_de_kb": "de-DE", "first_view_fr_kb": "fr-FR"}
    return {
        name: round(sum(transferred(browser, address, locale).values()) / 1000, 1)
        for name, locale in names.items()
    }


def map_main_thread_ms(browser: Browser) -> float:
    """The main thread's own time for a frame of a map of 100,000 items that is moved."""
    shown = Shown(browser, viewport={"width": 1280, "height": 860})
    x, y = np.random.default_rng(0).integers(0, LAST + 1, (2, N_ITEMS))
    open_map(shown, map_of(x, y, np.arange(N_ITEMS) % 8))
    session = shown.page.context.new_cdp_session(shown.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def main_thread_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    before = main_thread_s()
    shown.page.evaluate(
        """async (n) => {
            const canvas = document.querySelector("[data-testid=map-canvas]");
            const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
            press("+");
            for (let i = 0; i < n; i += 1) {
                press(i % 40 < 20 ? "ArrowLeft" : "ArrowRight");
                await new Promise(requestAnimationFrame);
            }
        }""",
        N_FRAMES,
    )
    spent = main_thread_s() - before
    shown.page.close()
    return round(1000 * spent / N_FRAMES, 2)


def frames_a_second(browser: Browser) -> dict[str, float]:
    """The frames drawn while a gallery of 100,000 items is scrolled, a row every three frames.

    The main thread's own time tells what the page costs, however busy the machine is: 60 frames a
    second leave it 16.7 ms each.
    """
    shown = Shown(browser, viewport={"width": 1280, "height": 860})
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator(".cell").first.wait_for()
    session = shown.page.context.new_cdp_session(shown.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def main_thread_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    before = main_thread_s()
    gaps: list[float] = shown.page.evaluate(
        """async (n) => {
            const node = document.querySelector(".window");
            const frame = () => new Promise(requestAnimationFrame);
            const gaps = [];
            let before = await frame();
            while (gaps.length < n) {
                node.scrollTop += 55;
                const now = await frame();
                gaps.push(now - before);
                before = now;
            }
            return gaps;
        }""",
        N_FRAMES,
    )
    spent = main_thread_s() - before
    shown.page.close()
    return {
        "browse_main_thread_ms_a_frame": round(1000 * spent / N_FRAMES, 2),
        "browse_items": N_ITEMS,
        "browse_frames_a_second": round(1000 / statistics.mean(gaps), 1),
        "browse_late_frames_share": sum(gap > 25 for gap in gaps) / len(gaps),
    }


def photographs() -> list[FilePayload]:
    """Digits large enough that nobody is advised to take another one."""
    images = digits()
    return [
        FilePayload(
            name=f"digit-{n}.png",
            mimeType="image/png",
            buffer=encoded(images.pixels(n).repeat(16, 0).repeat(16, 1), "PNG"),
        )
        for n in range(N_BATCH)
    ]


def visit(page: Page, address: str, keep: Path) -> None:
    """What a visitor does, from a photograph to an export, with a picture of each step."""
    keep.mkdir(parents=True, exist_ok=True)
    page.set_default_timeout(120_000)
    page.goto(address)
    page.get_by_test_id("sample").first.wait_for()

    def picture(name: str) -> None:
        page.wait_for_timeout(400)  # until what comes in has come in
        page.screenshot(path=keep / f"{name}.png")

    picture("01-start")
    page.locator("#crop-first").check()
    page.get_by_test_id("file-input").set_input_files(photographs()[:1])
    page.get_by_test_id("crop").wait_for()
    page.keyboard.press("Shift+ArrowLeft")
    picture("02-crop")
    page.get_by_role("dialog").locator(".primary").click()
    page.get_by_test_id("verdict").wait_for()
    picture("03-answer")
    page.get_by_test_id("look").click()
    page.get_by_role("dialog").wait_for()
    picture("04-compare")
    page.keyboard.press("y")
    page.get_by_role("dialog").wait_for(state="detached")
    page.get_by_test_id("open-report").click()
    page.get_by_test_id("line").press("ArrowLeft")
    picture("05-line")
    page.keyboard.press("Escape")
    page.get_by_test_id("open-browse").click()
    dialog = page.get_by_test_id("browse")
    dialog.locator("summary").click()
    dialog.locator(".values input").first.check()
    dialog.locator(".cell").nth(1).click()
    picture("06-browse-filtered")
    dialog.locator(".about button").first.click()
    picture("07-browse-similar")
    page.keyboard.press("Escape")
    page.locator("#crop-first").uncheck()
    page.get_by_test_id("file-input").set_input_files(photographs())
    page.get_by_test_id("batch").wait_for()
    page.get_by_role("progressbar").wait_for(state="hidden")
    picture("08-batch")
    with page.expect_download() as saved:
        page.get_by_test_id("export").click()
    saved.value.save_as(keep / "batch.csv")


def lighthouse(address: str, place: str, *options: str) -> dict[str, float | None]:
    """The scores of Lighthouse, of 100; None where it could not be fetched.

    ``machine`` is its own index of the machine: it slows a phone's down to a quarter, which says
    little of a machine that is busy or slow (below 1,000 or so).
    """
    names = {f"lighthouse_{place}_{name.replace('-', '_')}": name for name in CATEGORIES}
    chromium = installed(WHOLE)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *("npx", "--yes", LIGHTHOUSE, address, "--quiet"),
            *("--output=json", f"--output-path={report}", *options),
            f"--only-categories={','.join(CATEGORIES)}",
            "--chrome-flags=--headless --no-sandbox --disable-gpu",
        ]
        env = os.environ | ({"CHROME_PATH": chromium} if chromium else {})
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"Lighthouse did not run:\n{done.stderr}", file=sys.stderr)
            return dict.fromkeys(names)
        found = json.loads(report.read_text(encoding="utf-8"))
    scores = {key: 100 * found["categories"][name]["score"] for key, name in names.items()}
    return scores | {f"lighthouse_{place}_machine": found["environment"]["benchmarkIndex"]}


def main(bundles: Path, out: Path = Path("build")) -> None:
    """Measure all, and print it."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        sync_playwright() as playwright,
        Service(
            bundles, Path(scratch) / "log", {"VOUCH_FEEDBACK": f"{scratch}/feedback.sqlite3"}
        ) as service,
    ):
        address = str(service.http.base_url)
        browser = launched(playwright, stage().option, names=WHOLE)  # as people see the page
        numbers: dict[str, float | None] = {
            "first_paint_ms": first_paint_ms(browser, address),
            "script_kb": script_kb(service),
            **first_view_kb(browser, address),
            "map_main_thread_ms_a_frame": map_main_thread_ms(browser),
            **frames_a_second(browser),
        }
        for name, size in SIZES.items():
            page = browser.new_page(**size)
            visit(page, address, out / "page" / name)
            page.close()
        browser.close()
        numbers |= lighthouse(address, "phone")
        numbers |= lighthouse(address, "desk", "--preset=desktop")
    text = json.dumps(numbers, indent=1)
    (out / "page.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    record_figures("page", numbers, globals())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
