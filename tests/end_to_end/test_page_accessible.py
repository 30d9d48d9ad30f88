"""Nobody is kept out: axe, two languages, right to left, dark and light, on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.shown_page import FILES, GALLERY, Shown, result
from tests.end_to_end.test_page_believing import REPORT

pytestmark = pytest.mark.browser

AXE = Axe()
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def complaints(page: Page) -> list[str]:
    """What axe finds: rule, and where."""
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")
    found = AXE.run(page, options={"runOnly": WCAG}).response
    return [
        f"{one['id']}: {node['html'][:200]} {node['any'][:1]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def start(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "samples": [SAMPLE, {**SAMPLE, "belongs": False}]}
    shown.open()


def looking(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "record_url": "https://shop.example/{id}"}
    shown.ask()
    shown.found("look").click()
    shown.page.keyboard.press("a")
    expect(shown.found("add-form")).to_be_visible()


def cropping(shown: Shown) -> None:
    shown.ask()
    shown.found("edit").click()
    expect(shown.found("crop")).to_be_visible()


def advised(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/assess"] = {
        "quality": {"hints": [{"advice": "Hold still."}]},
        "query": {"ood": {"flag": True}},
    }
    shown.open()
    shown.choose("one.png")
    expect(shown.found("advice")).to_be_visible()


def believing(shown: Shown) -> None:
    shown.report = REPORT
    shown.ask()
    shown.found("open-report").click()
    shown.found("line").press("ArrowLeft")


def batch(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/calibration/operating-points"] = {
        "point": {"threshold": 0.5}
    }
    shown.open()
    shown.choose("one.png", "two.png", "three.png")
    expect(shown.found("batch")).to_be_visible()
    expect(shown.page.get_by_role("progressbar")).to_be_hidden()


def problem(shown: Shown) -> None:
    shown.status = 503
    shown.ask(title="Busy", detail="Wait.", code="busy", request_id="r-1")


def key(shown: Shown) -> None:
    shown.status = 401
    shown.ask(title="A key is wanted", detail="Send one.", code="key", request_id="r-1")


SAMPLE = {"id": "1", "image_url": "/v1/sample", "caption": "A boot", "belongs": True}
ANSWERS = {
    verdict: (lambda shown, verdict=verdict: shown.ask(verdict=verdict))
    for verdict in ("match", "ambiguous", "no_match", "out_of_distribution")
}
VIEWS: dict[str, Callable[[Shown], Any]] = {
    one.__name__: one
    for one in (start, looking, cropping, advised, believing, batch, problem, key)
} | ANSWERS  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing(browser: Browser, name: str) -> None:
    """On a phone in the dark and in German, and on a desk in the light and in English."""
    for context in (
        {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "locale": "de-DE"},
        {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    ):
        shown = Shown(browser, reduced_motion="reduce", **context)
        VIEWS[name](shown)
        assert complaints(shown.page) == []
        assert shown.overflow() <= 0
        shown.page.close()


def test_axe_sees_what_is_wrong(shown: Shown) -> None:
    shown.open()
    shown.page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    assert [one.split(":")[0] for one in complaints(shown.page)] == ["image-alt"]
