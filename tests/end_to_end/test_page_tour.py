"""The tour at the first visit: four steps, by pointer or keyboard, and then never again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.end_to_end.shown_page import Shown
from tests.end_to_end.stage import ORIGIN
from tests.end_to_end.test_page_accessible import SMALL, complaints

pytestmark = pytest.mark.browser


@pytest.fixture
def first(browser: Browser) -> Iterator[Shown]:
    """A page of a browser that has not visited it."""
    expect.set_options(timeout=20_000)
    shown = Shown(browser, is_toured=False)
    yield shown
    shown.close()


def test_tour_has_four_steps_and_ends_for_good(first: Shown) -> None:
    first.open()
    tour, heading = first.found("tour"), first.found("tour").locator("h2")
    expect(heading).to_have_text("1 of 4: Choose a photo")
    expect(first.page.locator(".toured")).to_have_id("drop-zone")
    requests: list[str] = []
    first.page.on("request", lambda request: requests.append(request.url))
    for step, title in ((2, "Read the answer"), (3, "Look through the gallery")):
        first.found("tour-next").click()
        expect(heading).to_have_text(f"{step} of 4: {title}")
    expect(first.page.locator(".toured")).to_have_text("Browse gallery")
    tour.get_by_role("button", name="Back").click()
    expect(heading).to_have_text("2 of 4: Read the answer")
    first.found("tour-next").click()
    first.found("tour-next").click()
    expect(first.found("tour-skip")).to_be_hidden()
    expect(first.found("tour-next")).to_have_text("Done")
    first.found("tour-next").click()
    expect(tour).to_have_count(0)
    expect(first.page.locator(".toured")).to_have_count(0)
    assert requests == []
    first.page.reload()
    expect(first.page.locator("#legend")).to_be_visible()
    expect(tour).to_have_count(0)
    assert first.complaints == []


def test_tour_is_used_and_left_by_keyboard(first: Shown) -> None:
    first.open()
    first.found("tour-next").focus()
    for step in (2, 3, 4):
        first.page.keyboard.press("Enter")
        expect(first.found("tour").locator("h2")).to_contain_text(f"{step} of 4")
    first.page.keyboard.press("Escape")
    expect(first.found("tour")).to_have_count(0)
    expect(first.page.locator("#file-input")).to_be_focused()


def test_skipped_tour_and_a_linked_place_show_none(first: Shown) -> None:
    first.replies["/v1/galleries/shoes/items"] = {"items": [], "n_items": 0, "next_cursor": None}
    first.page.goto(f"{ORIGIN}/#/shoes/items")
    expect(first.page.get_by_role("dialog")).to_be_visible()
    expect(first.found("tour")).to_have_count(0)
    first.page.goto("about:blank")
    first.open()
    first.found("tour-skip").click()
    expect(first.found("tour")).to_have_count(0)
    first.page.reload()
    expect(first.page.locator("#legend")).to_be_visible()
    expect(first.found("tour")).to_have_count(0)


def test_answer_takes_the_place_of_the_tour(first: Shown) -> None:
    first.open()
    expect(first.found("tour")).to_be_visible()
    first.ask()
    expect(first.found("tour")).to_be_hidden()


LINES = """() => [...document.querySelectorAll(".tour button:not([hidden])")].map((button) => {
    const text = document.createRange();
    text.selectNodeContents(button);
    return text.getClientRects().length;
})"""


def test_buttons_of_the_tour_are_whole_on_a_narrow_screen(browser: Browser) -> None:
    narrow = {"width": 320, "height": 740}
    shown = Shown(browser, is_toured=False, locale="de-DE", viewport=narrow)
    shown.open()
    expect(shown.found("tour")).to_be_visible()
    assert shown.page.evaluate(LINES) == [1, 1, 1]
    assert shown.overflow() <= 0
    shown.close()


@pytest.mark.parametrize(
    ("locale", "title"),
    [("en-GB", "Choose a photo"), ("de-DE", "Wählen Sie ein Foto"), ("fr-FR", "Choisissez une")],
)
def test_tour_is_accessible_in_every_language(browser: Browser, locale: str, title: str) -> None:
    expect.set_options(timeout=20_000)
    for context in (
        {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"},
        {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    ):
        shown = Shown(browser, is_toured=False, locale=locale, reduced_motion="reduce", **context)
        shown.open()
        expect(shown.found("tour").locator("h2")).to_contain_text(title)
        assert complaints(shown.page) == []
        assert shown.page.evaluate(SMALL) == []
        assert shown.overflow() <= 0
        shown.close()
