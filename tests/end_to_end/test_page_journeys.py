"""A visit from beginning to end, on a desk and on a phone, with the real service.

What is seen on the way is kept in ``build/screenshots``.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, FilePayload, Locator, Page, Request, expect

from index_builder.datasets.small_images import digits
from model_store.bundles.bundle import Bundle
from tests.end_to_end.browsers import QUIETLY, installed
from tests.end_to_end.first_view import transferred
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.shown_page import NAMED, TOURED
from tests.support.image_files import encoded
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SIZES: dict[str, dict[str, Any]] = {
    "desk": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}

Keep = Callable[[str], None]


@pytest.fixture(params=list(SIZES))
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(browser: Browser, service: Service, size: str) -> Iterator[Page]:
    """The page of the service; at its end it is no wider than its window, and nothing was wrong."""
    complaints: list[str] = []
    expect.set_options(timeout=20_000)
    page = browser.new_page(**SIZES[size], reduced_motion="reduce")
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(str(service.http.base_url))
    expect(page.get_by_test_id("sample").first).to_be_visible()
    yield page
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(width) <= 0
    assert complaints == []
    page.close()
    expect.set_options(timeout=1000 * TIMEOUT_S)


@pytest.fixture
def keep(page: Page, size: str) -> Keep:
    """Keep a picture of what is seen, under a name."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    def kept(name: str) -> None:
        page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")
        page.screenshot(path=SCREENSHOTS / f"{name}-{size}.png")

    return kept


def file(name: str, data: bytes) -> FilePayload:
    return FilePayload(name=name, mimeType="image/png", buffer=data)


def test_photograph_crop_compare_decide(
    page: Page, keep: Keep, own_images: dict[str, bytes]
) -> None:
    item_id, data = next(iter(own_images.items()))
    digit = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    photograph = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    photograph[8:16, 8:16] = digit  # something that the gallery knows, in the midst of noise
    page.get_by_label("Crop & rotate before the search").check()
    page.locator("#camera-input").set_input_files([file("photo.png", encoded(photograph, "PNG"))])
    stage = page.get_by_test_id("crop-stage").bounding_box()
    assert stage is not None
    for move, share in ((page.mouse.down, 1 / 3), (page.mouse.up, 2 / 3)):
        x, y = stage["x"] + share * stage["width"], stage["y"] + share * stage["height"]
        page.mouse.move(x, y, steps=4)
        move()
    keep("photograph-1-crop")
    page.get_by_role("button", name="Search with this").click()
    expect(page.get_by_test_id("verdict")).to_be_visible()
    keep("photograph-2-answer")
    page.get_by_test_id("look").click()
    facts = page.get_by_test_id("facts")
    expect(facts.locator("dd").first).to_have_text(item_id)
    expect(facts).to_contain_text("1.000")  # what was cut out is that very item
    page.keyboard.press("+")
    keep("photograph-3-compare")
    page.get_by_label("Overlay").check(force=True)
    keep("photograph-4-overlay")
    page.get_by_test_id("decide-is").click()
    expect(page.get_by_test_id("look-status")).to_have_text(
        "Enter your name first: each decision is stored with it."
    )
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")  # which is all it takes, once
    expect(page.get_by_test_id("decision")).to_contain_text("It is “")
    keep("photograph-5-decided")


def held_out(library: Bundle, n: int) -> dict[str, FilePayload]:
    """Digits that are not in the gallery though their label is, by label and a number."""
    gallery, images = library.retriever.gallery, digits()
    there = {item.id for item in gallery.items(np.arange(gallery.n_items))}
    others = [
        row
        for row, name in enumerate(images.ids)
        if name not in there and images.labels[row] in gallery.labels
    ]
    rows = np.random.default_rng(0).permutation(others)[:n]
    return {
        f"{images.labels[row]}-{row}": file(
            f"{images.labels[row]}-{row}", encoded(images.pixels(int(row)), "PNG")
        )
        for row in rows
    }


def test_fifty_files_budget_export(page: Page, keep: Keep, library: Bundle) -> None:
    files = held_out(library, 50)
    page.get_by_test_id("file-input").set_input_files([*files.values()])
    expect(page.get_by_test_id("batch")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    page.get_by_test_id("budget").select_option("0.1")
    sentence = page.get_by_test_id("budget-sentence")
    expect(page.get_by_test_id("promise")).to_contain_text("10")
    expect(sentence).not_to_contain_text("0 accepted")
    accepted = page.locator("tr[data-state=accepted]").count()
    expect(sentence).to_contain_text(f"{accepted} accepted automatically")
    expect(sentence).to_contain_text(f"{50 - accepted} to review")
    keep("batch-1-budget")
    assert 25 < accepted <= 50
    with page.expect_download() as saved:
        page.get_by_test_id("export").click()
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text("utf-8-sig"))))
    assert {row["file"] for row in rows} == set(files)
    taken = [row for row in rows if row["state"] == "accepted"]
    assert len(taken) == accepted
    assert np.mean([1 - float(row["match_probability"]) for row in taken]) <= 0.1
    assert np.mean([row["first_label"] != row["file"][0] for row in taken]) <= 0.1  # it came true


class Restarted:
    """A browser that keeps what it stores, and can be closed and started again."""

    def __init__(self, browser: Browser, profile: Path) -> None:
        self._browser, self._profile = browser, profile
        self._context: BrowserContext | None = None

    def page(self, address: str) -> Page:
        """Close the browser, start it again, and open a page."""
        self.close()
        self._context = self._browser.browser_type.launch_persistent_context(
            self._profile, executable_path=installed(), args=[*QUIETLY]
        )
        for script in (NAMED, TOURED):
            self._context.add_init_script(script)
        self._context.set_default_timeout(20_000)
        page = self._context.new_page()
        page.goto(address)
        return page

    def close(self) -> None:
        """End the browser."""
        if self._context is not None:
            self._context.close()
            self._context = None


@pytest.fixture
def restarted(browser: Browser, tmp_path: Path) -> Iterator[Restarted]:
    expect.set_options(timeout=20_000)
    restarted = Restarted(browser, tmp_path / "profile")
    yield restarted
    restarted.close()
    expect.set_options(timeout=1000 * TIMEOUT_S)


N_BATCH = int(os.environ.get("VOUCH_TEST_BATCH", "120"))
"""Photographs of a batch. 500 take two minutes: VOUCH_TEST_BATCH=500."""


def test_batch_survives_a_reload_and_a_restart(
    restarted: Restarted, service: Service, tmp_path: Path
) -> None:
    """None is lost and no decision is made twice; colleagues read the report offline."""
    images, folder = digits(), tmp_path / "digits"
    names = [f"{images.labels[row]}/{row:03}.png" for row in range(N_BATCH)]
    for row, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(images.pixels(row), "PNG"))
    address = str(service.http.base_url)
    searches = itertools.count()

    def counted(asked: Request) -> None:
        if asked.url.endswith("/search"):
            next(searches)

    def opened(page: Page) -> Locator:
        """The rows of the batch, while it is searched with."""
        page.on("request", counted)
        return page.get_by_test_id("batch-row")

    page = restarted.page(address)
    rows = opened(page)
    page.get_by_test_id("folder-input").set_input_files(folder)
    expect(rows).to_have_count(N_BATCH)
    page.get_by_test_id("go-through").click()  # once it is enabled
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    wait_until(lambda: page.locator("[data-state=waiting]").count() < N_BATCH - 20, page.title)
    expect(page.get_by_test_id("kept")).to_have_attribute("aria-busy", "false")
    page.reload()
    expect(rows).to_have_count(N_BATCH)
    wait_until(lambda: page.locator("[data-state=waiting]").count() < N_BATCH - 40, page.title)

    page = restarted.page(address)
    rows = opened(page)
    page.get_by_role("button", name="Back to the batch").click()
    expect(rows).to_have_count(N_BATCH)
    expect(page.get_by_role("progressbar")).to_be_hidden(timeout=5000 * TIMEOUT_S)
    expect(page.locator("[data-state=waiting], [data-state=failed]")).to_have_count(0)
    expect(page.get_by_test_id("budget-sentence")).to_contain_text("1 decided")
    n_at_once = 3
    assert N_BATCH <= next(searches) <= N_BATCH + 2 * n_at_once

    with page.expect_download(timeout=1000 * TIMEOUT_S) as saved:
        page.get_by_test_id("export-zip").click()
    shutil.unpack_archive(saved.value.path(), tmp_path / "unpacked", "zip")
    text = (tmp_path / "unpacked/results.csv").read_text("utf-8-sig")
    table = {row["file"]: row for row in csv.DictReader(io.StringIO(text))}
    assert set(table) == {f"digits/{name}" for name in names}
    assert all(row["verdict"] for row in table.values())
    [decided] = [row for row in table.values() if row["decision"]]
    assert (decided["decision"], decided["reviewer"]) == ("none", "Ada")
    page.context.set_offline(True)
    page.goto((tmp_path / "unpacked/report.html").as_uri())
    expect(page.locator("li")).to_have_count(N_BATCH)
    wait_until(lambda: page.locator("img").evaluate_all(LOADED), page.title)
    assert len(list((tmp_path / "unpacked/thumbnails").glob("*.jpg"))) == N_BATCH


LOADED = "images => images.length && images.every(one => one.complete && one.naturalWidth > 0)"


def test_slider_other_verdicts(
    page: Page, keep: Keep, service: Service, belonging: list[bytes]
) -> None:
    matched = next(data for data in belonging if service.answer(data)["verdict"] == "match")
    page.get_by_test_id("file-input").set_input_files([file("one.png", matched)])
    verdict = page.get_by_test_id("verdict")
    anyway = page.get_by_role("button", name="Search anyway")
    expect(verdict.or_(anyway)).to_be_visible()
    if anyway.is_visible():
        anyway.click()
    expect(verdict).to_have_attribute("data-verdict", "match")
    page.get_by_test_id("open-report").click()
    line, cost = page.get_by_test_id("line"), page.get_by_test_id("cost")
    before = cost.inner_text()
    line.press("Home")  # the strictest: nothing is as sure
    expect(cost).not_to_have_text(before)
    keep("slider-1-strict")
    page.keyboard.press("Escape")
    expect(verdict).to_have_attribute("data-verdict", "ambiguous")
    expect(page.get_by_test_id("own-verdict")).to_contain_text("The service itself says: Match")
    keep("slider-2-other-verdict")
    page.get_by_test_id("open-report").click()
    page.get_by_test_id("own-line").click()
    page.keyboard.press("Escape")
    expect(verdict).to_have_attribute("data-verdict", "match")


def test_browse_filter_similar(page: Page, keep: Keep, service: Service) -> None:
    page.get_by_test_id("open-browse").click()
    browse, status = page.get_by_test_id("browse"), page.get_by_test_id("browse-status")
    n_items = service.http.get("/v1/galleries/digits").json()["n_items"]
    expect(status).to_contain_text(f"of {n_items:,} items")
    keep("browse-1-all")
    browse.locator("summary").click()
    seven = browse.locator(".values label", has=page.get_by_text("7", exact=True)).first
    n_sevens = int(seven.locator("small").inner_text())
    seven.get_by_role("checkbox").check()
    expect(status).to_contain_text(f"of {n_sevens} items")
    keep("browse-2-filtered")
    browse.locator("summary").click()
    browse.locator(".cell").first.click()
    expect(page.get_by_test_id("browse-about")).to_contain_text("7")
    page.get_by_role("button", name="Items like this one").click()
    expect(status).to_contain_text("items like “7”, without probabilities")
    expect(browse.locator(".cell").first).to_be_visible()
    keep("browse-3-similar")


MAX_BYTES = 90_000
PICTURES_BYTES = 16_000
"""Sample pictures of a gallery of photographs; those of digits are smaller."""


@pytest.mark.parametrize("locale", ["en-US", "de-DE", "fr-FR"])
def test_first_view_is_small_in_each_language(
    browser: Browser, service: Service, locale: str
) -> None:
    sizes = transferred(browser, str(service.http.base_url).rstrip("/"), locale)
    others = {path: size for path, size in sizes.items() if "/samples/" not in path}
    assert {"/", "/page/answer.js", "/v1/galleries/digits"} <= set(others)
    assert (f"/page/languages/{locale[:2]}.js" in others) == (locale != "en-US")
    assert not any(path.startswith("/page/batch/") for path in others)
    assert sum(others.values()) <= MAX_BYTES - PICTURES_BYTES
