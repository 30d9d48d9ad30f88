"""What the keyboard does to buttons: held, and while an answer is waited for; real Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.end_to_end.shown_page import Shown
from tests.end_to_end.test_page_browsing import items

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
