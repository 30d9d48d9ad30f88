"""The search in words on the page: form, answer, address, decision; in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, expect

from index_builder.indexing.bundle_evidence import calibrate_bundle_texts
from model_store.bundles.bundle import Bundle
from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import ANSWER, GALLERY, NBSP, TEXT_STATE, Shown, look_closely
from tests.end_to_end.stage import ORIGIN
from tests.support.word_towers import captions_of_digits, with_word_tower, write_captions

pytestmark = pytest.mark.browser

TEXT = "/search/text"


def test_words_are_asked_and_their_answer_is_about_words(shown: Shown) -> None:
    shown.ask_text("a red shoe", verdict="no_match")
    assert shown.sent(TEXT) == [{"text": "a red shoe"}]
    verdict = shown.found("verdict")
    expect(verdict).to_contain_text("Nothing in this gallery matches your words.")
    expect(verdict.locator("blockquote")).to_have_text("a red shoe")
    expect(shown.found("edit")).to_have_count(0)
    shown.found("why").locator("summary").click()
    expect(shown.found("ood").locator("h3")).to_have_text("Typical text? yes")
    expect(shown.found("ood")).to_contain_text(f"10{NBSP}% of the calibration texts.")
    expect(shown.found("why")).to_contain_text("calibrated for texts with 1,234 captions.")
    expect(shown.found("result")).not_to_contain_text("photo")
    shown.found("details").locator("summary").click()
    expect(shown.found("curl")).to_have_text(
        f"""curl -s --json '{{"text":"a red shoe"}}' '{ORIGIN}/v1/galleries/shoes/search/text'"""
    )
    assert shown.complaints == []


def test_options_apply_to_words_and_the_own_line_does_not(shown: Shown) -> None:
    shown.ask_text("a shoe", next_cursor="after-2")
    shown.replies["/v1/galleries/shoes/search/next"] = {**shown.answer, "next_cursor": None}
    shown.found("more").click()
    expect(shown.found("more")).to_be_hidden()
    with shown.page.expect_response(f"**{TEXT}"):
        shown.found("group_by").check()
    assert shown.sent(TEXT)[-1] == {"text": "a shoe", "group_by": "label"}


def test_address_of_words_asks_again(shown: Shown) -> None:
    text = "shoe / boot, 50 % off?"
    shown.ask_text(text)
    address = shown.page.url
    assert unquote(address) == f"{ORIGIN}/#/shoes/text/{text}"
    n_asked = len(shown.sent(TEXT))
    shown.page.goto("about:blank")
    shown.page.goto(address)
    expect(shown.found("verdict").locator("blockquote")).to_have_text(text)
    expect(shown.found("text-input")).to_have_value(text)
    assert shown.sent(TEXT)[n_asked:] == [{"text": text}]


def test_form_is_there_only_for_galleries_that_read_texts(shown: Shown) -> None:
    names = [{"name": name, "n_items": 1} for name in ("shoes", "bags")]
    shown.replies["/v1/galleries"] = {"galleries": names}
    shown.replies["/v1/galleries/bags"] = {**GALLERY, "name": "bags"}
    shown.replies["/v1/galleries/bags/calibration"] = shown.report
    shown.gallery = {**GALLERY, "text": TEXT_STATE}
    shown.page.goto(f"{ORIGIN}/#/shoes")
    shown.ask_text("a red shoe")
    n_asked = len(shown.sent(TEXT))
    shown.found("gallery-picker").select_option("bags")
    expect(shown.found("text-form")).to_have_count(0)
    expect(shown.found("verdict")).to_have_count(0)  # it was an answer of the other gallery
    assert len(shown.sent(TEXT)) == n_asked


def test_words_of_spaces_are_not_sent(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "text": TEXT_STATE}
    shown.open()
    shown.found("text-input").fill("   ")
    shown.found("text-input").press("Enter")
    expect(shown.page.locator("#text-input:invalid")).to_have_count(1)
    assert shown.sent(TEXT) == []


def test_refused_words_are_a_problem(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "text": TEXT_STATE}
    shown.open()
    detail = "The gallery's encoder has no text encoder."
    refusal = {"title": "No", "detail": detail, "code": "text_unavailable"}
    shown.page.route(f"**{TEXT}", lambda route: route.fulfill(status=409, json=refusal))
    shown.found("text-input").fill("a shoe")
    shown.found("text-input").press("Enter")
    expect(shown.found("problem")).to_contain_text("Search with a photo")


def test_results_of_words_are_looked_at_and_decided(shown: Shown) -> None:
    shown.report = {**shown.report, "errors_over_time": {"n_asked": 0}}
    shown.replies["/v1/galleries/shoes/feedback"] = {"number": 7}
    shown.ask_text("a red shoe")
    dialog = look_closely(shown.page)
    expect(shown.found("pane-question").locator("blockquote")).to_have_text("a red shoe")
    expect(dialog.get_by_text("Side by side")).to_be_hidden()
    expect(dialog.get_by_role("button", name="New…")).to_be_hidden()
    shown.page.keyboard.press("a")  # there is no photograph to add
    shown.page.keyboard.press("o")  # nor one to lay over the item
    expect(shown.found("add-form")).to_have_count(0)
    expect(shown.found("panes")).to_have_attribute("data-mode", "beside")
    shown.replies["/v1/galleries/shoes/labels"] = {"labels": [], "next_cursor": None}
    shown.page.keyboard.press("/")
    shown.page.get_by_label("Part of a label").fill("item")
    with shown.page.expect_response(f"**{TEXT}"):
        shown.page.get_by_role("button", name="Find", exact=True).click()
    assert shown.sent(TEXT)[-1].keys() == {"text", "filter", "limit"}
    shown.found("decide-is").click()
    expect(shown.found("decision")).to_have_text("It is “label-1”.")
    sent = shown.sent_once("/feedback")
    assert (sent["query_id"], sent["decision"]) == (ANSWER["query"]["id"], "this_item")
    assert shown.complaints == []


@pytest.fixture(scope="module")
def worded(library: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of digits that are found by their names, calibrated with captions."""
    place = tmp_path_factory.mktemp("worded")
    with_word_tower(library, place / "bundles")
    table = write_captions(place / "captions.jsonl", captions_of_digits(library, 300, seed=0))
    calibrate_bundle_texts(place / "bundles", table, {"max_error": 0.2})
    with Service(place / "bundles", place / "service.log") as running:
        yield running


def test_digit_is_found_by_its_name(browser: Browser, worded: Service) -> None:
    expect.set_options(timeout=20_000)
    page = browser.new_page()
    page.goto(str(worded.http.base_url))
    page.get_by_test_id("tour-skip").click()
    page.get_by_test_id("text-input").fill("the digit seven")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_test_id("verdict")).to_be_visible()
    expect(page.get_by_test_id("neighbour").first.locator(".name")).to_have_text("7")
    page.get_by_test_id("details").locator("summary").click()
    shown: dict[str, Any] = json.loads(page.get_by_test_id("json").inner_text())
    asked = {"text": "the digit seven"}
    answer = worded.http.post("/v1/galleries/digits/search/text", json=asked).json()
    assert shown["query"]["id"] == answer["query"]["id"]
    assert [one["id"] for one in shown["results"]] == [one["id"] for one in answer["results"]]
    assert answer["verdict"] in {"match", "ambiguous"}
    page.close()
