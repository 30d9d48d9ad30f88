"""More than the first results: further pages, one of each label, items like an item."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import ANSWER, Shown, result

pytestmark = pytest.mark.browser


def test_further_results_come_by_a_button(shown: Shown) -> None:
    following = {**ANSWER, "results": [result(3), result(4)], "next_cursor": None}
    shown.replies["/v1/galleries/shoes/search/next"] = following
    shown.ask(next_cursor="after-2")
    shown.found("more").click()
    expect(shown.found("neighbour")).to_have_count(4)
    expect(shown.found("more")).to_be_hidden()
    # What came later is looked at in its place, and the keyboard goes on there.
    third = shown.page.get_by_role("button", name="Compare with label-3")
    expect(third).to_be_focused()
    third.press("Enter")
    heading = shown.page.get_by_role("dialog").get_by_role("heading")
    expect(heading).to_have_text("label-3: 3 of 4")
    shown.page.keyboard.press("Escape")
    shown.page.get_by_role("button", name="Compare with label-4").click()
    expect(heading).to_have_text("label-4: 4 of 4")


@pytest.mark.parametrize(("word", "decision"), [("Yes", "this_item"), ("No", "not_this_item")])
def test_a_review_is_sent_once_it_is_given(shown: Shown, word: str, decision: str) -> None:
    shown.ask(audit=True)
    audit = shown.found("audit")
    audit.get_by_role("button", name=word).click()
    expect(audit).to_contain_text("Thank you.")
    assert shown.sent("/feedback") == [
        {"query_id": "query-1", "item_id": "item-1", "decision": decision, "reviewer": "Ada"}
    ]
    refused = {"title": "No", "detail": "Reviews are not kept."}
    shown.page.route("**/feedback", lambda route: route.fulfill(status=400, json=refused))
    audit.get_by_role("button", name=word).click()
    expect(audit).to_contain_text("Reviews are not kept.")


def test_a_gallery_that_did_not_open_is_opened_by_the_next_question(shown: Shown) -> None:
    problem = {"title": "Busy", "detail": ""}
    shown.page.route(
        "**/v1/galleries/shoes", lambda route: route.fulfill(status=503, json=problem), times=1
    )
    shown.page.goto("http://vouch.test/")
    expect(shown.found("problem").locator("h2")).to_have_text("Busy")
    shown.choose("shoe.png")
    expect(shown.found("verdict")).to_be_visible()
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items")


def test_a_list_without_an_end_has_no_button(shown: Shown) -> None:
    shown.ask()
    expect(shown.found("more")).to_be_hidden()


def test_a_list_is_asked_for_anew_with_options(shown: Shown) -> None:
    shown.ask()
    for name, value in (("group_by", b"label"), ("duplicate_similarity", b"0.98")):
        with shown.page.expect_response("**/search"):
            shown.found(name).check()
        expect(shown.found(name)).to_be_checked()
        body = [body for _, path, body in shown.asked if path.endswith("/search")][-1]
        assert b'name="%s"\r\n\r\n%s\r\n' % (name.encode(), value) in body
    with shown.page.expect_response("**/search"):
        shown.found("group_by").uncheck()
    expect(shown.found("group_by")).not_to_be_checked()
    body = [body for _, path, body in shown.asked if path.endswith("/search")][-1]
    assert b"group_by" not in body
    assert b"duplicate_similarity" in body


def test_dialog_that_loads_slowly_is_announced(shown: Shown) -> None:
    shown.open()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    shown.page.route("**/browse/browsing.js", hold)
    shown.found("open-browse").click()
    opening = shown.page.locator(".vouch.opening")
    expect(opening).to_have_count(1)
    expect(shown.page.locator("#announcer")).to_have_text("Loading…")
    held[0].abort()
    expect(shown.found("problem")).to_be_visible()
    expect(opening).to_have_count(0)


def test_option_keeps_the_focus(shown: Shown) -> None:
    shown.ask()
    box = shown.found("group_by")
    box.focus()
    with shown.page.expect_response("**/search"):
        shown.page.keyboard.press("Space")
    expect(box).to_be_checked()
    expect(box).to_be_focused()


def test_results_of_the_service_itself(browser: Browser, service: Service) -> None:
    expect.set_options(timeout=20_000)
    page = browser.new_page()
    page.goto(str(service.http.base_url))
    page.get_by_test_id("sample").first.click()
    neighbours = page.get_by_test_id("neighbour")
    pictures = neighbours.locator("[data-place]")
    expect(pictures).to_have_count(10)
    page.get_by_test_id("more").click()
    expect(pictures.nth(10)).to_be_attached()
    page.get_by_test_id("group_by").check()
    expect(neighbours.nth(3)).to_be_attached()
    labels = neighbours.locator("b").all_inner_texts()
    assert len(set(labels)) == len(labels)
    page.get_by_test_id("look").click()
    page.get_by_test_id("similar").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_contain_text("1 of 50")
    expect(dialog.get_by_text("True match")).to_have_count(0)  # nothing is calibrated for items
    page.close()
