"""What comes late, twice or not at all, while a person goes on: real Chromium."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.end_to_end.shown_page import ANSWER, GALLERY, PICTURE, Shown, result
from tests.end_to_end.test_page_batch import UNSURE, batch_of
from tests.end_to_end.test_page_looking import heard, listening, looked_at

pytestmark = pytest.mark.browser

BOOTS = {**GALLERY, "name": "boots", "description": "Boots of a shop."}
BUSY = {"title": "Busy", "detail": "The service is busy."}


def two_galleries(shown: Shown) -> None:
    """Another gallery beside the first."""
    both = [{"name": name, "n_items": 1500} for name in ("shoes", "boots")]
    shown.replies["/v1/galleries"] = {"galleries": both}
    shown.replies["/v1/galleries/boots"] = BOOTS
    shown.replies["/v1/galleries/boots/calibration"] = shown.report


def test_a_question_in_another_gallery_is_decided_on_there(shown: Shown) -> None:
    listening(shown)
    two_galleries(shown)
    shown.replies["/v1/galleries/boots/feedback"] = {"number": 1}
    looked_at(shown)
    shown.page.keyboard.press("Escape")
    query = {**ANSWER["query"], "id": "query-2"}
    shown.answer = {**ANSWER, "gallery": "boots", "query": query, "results": [result(1, id="boot")]}
    with shown.page.expect_response("**/boots/search"):
        shown.found("gallery-picker").select_option("boots")
    expect(shown.found("neighbour")).to_have_count(1)
    shown.found("look").click()
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_contain_text("label-1")
    assert heard(shown, 1) == [("this_item", "boot")]
    assert shown.sent("/boots/feedback")[0]["query_id"] == "query-2"


def test_a_key_that_is_held_decides_once(shown: Shown) -> None:
    listening(shown)
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE, "c.png": UNSURE}, 0.9)
    shown.found("go-through").click()
    expect(shown.page.get_by_role("dialog")).to_be_visible()
    for _ in range(3):
        shown.page.keyboard.down("y")
    shown.page.keyboard.up("y")
    assert len(heard(shown, 1)) == 1
    shown.page.wait_for_timeout(300)
    assert len(heard(shown, 1)) == 1


def test_a_double_click_decides_once(shown: Shown) -> None:
    listening(shown)
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE, "c.png": UNSURE}, 0.9)
    shown.found("go-through").click()
    shown.found("decide-is").dblclick()
    shown.page.wait_for_timeout(300)
    assert len(heard(shown, 1)) == 1


def test_a_picture_that_comes_late_takes_the_place_of_no_other(shown: Shown) -> None:
    held: list[Route] = []
    shown.page.route("**/item-1/preview", lambda route: held.append(route))
    shown.page.route("**/item-2/preview", lambda route: route.fulfill(body=PICTURE))
    shown.open()
    shown.run("api", "m.key.set('secret')")
    results = [result(n, preview_url=f"/v1/galleries/shoes/items/item-{n}/preview") for n in (1, 2)]
    shown.answer = {**ANSWER, "results": results}
    shown.choose("a.png")
    shown.found("look").click()
    image = shown.found("pane-candidate").locator("img")
    shown.page.keyboard.press("ArrowRight")
    expect(image).to_have_attribute("src", re.compile("^blob:"))
    before = image.get_attribute("src")
    for _ in range(100):
        if held:
            break
        shown.page.wait_for_timeout(50)
    [late] = held
    late.fulfill(body=PICTURE)
    shown.page.wait_for_timeout(500)
    assert image.get_attribute("src") == before


def test_items_that_are_found_late_are_shown_for_no_other_photograph(shown: Shown) -> None:
    listening(shown)
    held: list[Route] = []
    batch_of(shown, {"a.png": UNSURE, "b.png": UNSURE}, 0.9)
    shown.page.route("**/similar?*", lambda route: held.append(route))
    shown.found("go-through").click()
    dialog = shown.page.get_by_role("dialog")
    with shown.page.expect_request("**/similar?*"):
        shown.found("similar").click()
    shown.page.keyboard.press("y")
    expect(dialog.get_by_role("heading")).to_contain_text("label of b.png")
    held[0].fulfill(json={"results": [result(1, label="late")]})
    shown.page.wait_for_timeout(300)
    expect(dialog.get_by_role("heading")).to_contain_text("label of b.png")


def test_of_two_lists_that_are_asked_for_the_last_is_shown(shown: Shown) -> None:
    held: list[Route] = []
    shown.replies["/v1/galleries/shoes/labels"] = {"labels": ["boot"], "next_after": None}
    dialog = looked_at(shown)
    shown.page.route("**/search", lambda route: held.append(route))
    for words in ("clog", "boot"):
        shown.page.keyboard.press("/")
        shown.page.keyboard.type(words)
        with shown.page.expect_request("**/search"):
            shown.page.keyboard.press("Enter")
    for route, label in zip(reversed(held), ("boot", "clog"), strict=True):
        route.fulfill(json={**ANSWER, "results": [result(1, label=label)]})
        shown.page.wait_for_timeout(300)
    expect(dialog.get_by_role("heading")).to_have_text("boot")
