"""What the keyboard does to buttons: held, and while an answer is waited for; real Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.end_to_end.shown_page import Shown, look_closely
from tests.end_to_end.test_page_browsing import items
from tests.end_to_end.test_page_late import BUSY
from tests.end_to_end.test_page_looking import listening

pytestmark = pytest.mark.browser


def test_tab_that_is_held_goes_past_a_button(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator("[data-place='1']").click()
    shown.found("delete").focus()
    shown.page.keyboard.down("Tab")
    shown.found("delete").focus()
    shown.page.keyboard.down("Tab")  # held, by now
    shown.page.keyboard.up("Tab")
    expect(shown.found("delete")).not_to_be_focused()


def test_what_is_pressed_keeps_the_focus(shown: Shown) -> None:
    listening(shown)
    shown.ask(audit=True, next_cursor="after-2")
    shown.page.route("**/search/next?*", lambda route: route.fulfill(status=503, json=BUSY))
    yes, more = shown.found("audit").get_by_role("button", name="Yes"), shown.found("more")
    for button, outcome in ((yes, "Thank you."), (more, "The service is busy.")):
        button.press("Enter")
        expect(shown.page.get_by_text(outcome)).to_be_visible()
        expect(button).to_be_focused()
    look_closely(shown.page)
    shown.page.keyboard.press("a")
    add = shown.page.get_by_role("button", name="Add to the gallery")
    add.press("Enter")
    expect(shown.found("add-form").get_by_role("alert")).not_to_be_empty()
    expect(add).to_be_focused()
