"""A result opens beside the question, and a person decides: real Chromium."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from model_store.bundles.directory import activate
from tests.end_to_end.processes import Service, wait_until
from tests.end_to_end.shown_page import (
    ANSWER,
    GALLERY,
    PICTURE,
    REPORT,
    Shown,
    look_closely,
    result,
)

pytestmark = pytest.mark.browser

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
HEARD: dict[str, Any] = {**REPORT, "errors_over_time": {"n_asked": 0}}
"""Of a service that keeps feedback."""


def looked_at(shown: Shown, **changes: Any) -> Locator:
    """The dialog over an answer, at its first result."""
    shown.ask(**changes)
    return look_closely(shown.page)


def transforms(page: Page) -> list[str]:
    script = "nodes => nodes.map(node => getComputedStyle(node).transform)"
    return [str(one) for one in page.locator(".frame img").evaluate_all(script)]


def test_label_from_right_to_left_leaves_the_title_in_order(shown: Shown) -> None:
    label = "\u05e9\u05dc\u05d5\u05dd"
    shown.ask(results=[result(1, label=label), result(2)])
    look_closely(shown.page)
    title = shown.page.locator("#look-title")
    expect(title).to_have_text(f"{label}: 1 of 2")
    assert title.evaluate("node => getComputedStyle(node).direction") == "ltr"
    expect(title.locator("bdi")).to_have_text(label)


def test_a_result_opens_with_all_that_is_known_of_it(shown: Shown) -> None:
    shown.gallery = {**GALLERY, "record_url": "https://shop.example/{maker}/{id}?y={year}"}
    shown.ask(results=[result(1), result(2, id="a b/c", metadata={"maker": "Ada & Co", "year": 7})])
    shown.page.get_by_role("button", name="Compare with label-2").click()
    dialog = shown.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("label-2: 2 of 2")
    expect(shown.found("facts").locator("dd")).to_have_text(
        ["a b/c", "label-2", re.compile("^45.%"), "0.788", re.compile("^75.%"), "Ada & Co", "7"]
    )
    address = "https://shop.example/Ada%20%26%20Co/a%20b%2Fc?y=7"
    expect(shown.found("record")).to_have_attribute("href", address)
    shown.page.keyboard.press("ArrowLeft")
    expect(dialog.get_by_role("heading")).to_have_text("label-1: 1 of 2")
    expect(shown.found("facts")).to_contain_text('["red"]')
    expect(shown.found("record")).to_have_attribute("href", re.compile("Ada/item-1.y=2001$"))
    for pane in ("pane-question", "pane-candidate"):
        expect(shown.found(pane).locator("img")).to_be_visible()
    shown.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("verdict", ["match", "out_of_distribution"])
def test_a_withheld_probability_is_withheld_here_too(shown: Shown, verdict: str) -> None:
    looked_at(shown, verdict=verdict)
    expect(shown.found("facts").get_by_text("True match")).to_have_count(int(verdict == "match"))


WHOLE = "matrix(1, 0, 0, 1, 0, 0)"


def test_both_pictures_are_zoomed_and_moved_together(shown: Shown) -> None:
    looked_at(shown)
    shown.page.keyboard.press("+")
    larger = transforms(shown.page)
    assert larger[0] == larger[1] != WHOLE
    shown.page.keyboard.press("ArrowRight")  # which now moves, and goes to no other item
    moved = transforms(shown.page)
    assert moved[0] == moved[1] != larger[0]
    expect(shown.page.get_by_role("dialog").get_by_role("heading")).to_contain_text("1 of 2")
    box = shown.found("pane-candidate").locator(".frame").bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + 50, box["y"] + 50)
    shown.page.mouse.wheel(0, -100)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 90, box["y"] + 70)
    shown.page.mouse.up()
    dragged = transforms(shown.page)
    assert dragged[0] == dragged[1] not in (moved[0], larger[0])
    shown.page.keyboard.press("=")
    assert transforms(shown.page) == [WHOLE, WHOLE]


def test_two_fingers_zoom(browser: Browser) -> None:
    shown = Shown(browser, **PHONE)
    dialog = looked_at(shown)
    pinch = """frame => {
        const at = (type, pointerId, x) => frame.dispatchEvent(new PointerEvent(type,
            { pointerId, clientX: x, clientY: frame.getBoundingClientRect().y + 40 }));
        frame.setPointerCapture = () => {};
        at("pointerdown", 1, 40); at("pointerdown", 2, 60);
        at("pointermove", 2, 80);
        at("pointerup", 1, 40); at("pointerup", 2, 80);
    }"""
    dialog.locator(".question .frame").evaluate(pinch)
    expect(shown.found("panes")).to_have_attribute("data-scale", "2.00")
    assert shown.overflow() <= 0
    assert dialog.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    shown.page.close()


def test_pictures_are_shown_in_turns_or_overlaid(shown: Shown) -> None:
    looked_at(shown)
    panes = shown.found("panes")
    shown.page.keyboard.press("f")
    for which in ("question", "candidate", "question"):
        expect(panes).to_have_attribute("data-shown", which)  # by itself
    shown.page.keyboard.press("o")
    expect(panes).to_have_attribute("data-mode", "overlay")
    candidate = shown.found("pane-candidate")
    expect(candidate).to_have_css("opacity", "0.5")
    shown.page.get_by_label("How much of the item").fill("0.2")
    expect(candidate).to_have_css("opacity", "0.2")


def test_nothing_moves_by_itself_where_motion_is_unwanted(browser: Browser) -> None:
    shown = Shown(browser, reduced_motion="reduce")
    looked_at(shown)
    shown.page.keyboard.press("f")
    shown.page.wait_for_timeout(900)  # longer than a turn
    expect(shown.found("panes")).to_have_attribute("data-shown", "candidate")
    shown.page.keyboard.press("x")
    expect(shown.found("panes")).to_have_attribute("data-shown", "question")
    expect(shown.found("seen")).to_have_text("You see your photo")
    shown.page.close()


def test_a_larger_picture_comes_only_from_where_it_may(shown: Shown) -> None:
    elsewhere = {"image_url": "https://elsewhere.test/large.png"}
    own = {"image_url": "/large.png"}
    missing = {"image_url": "https://images.test/gone.png"}
    shown.gallery = {**GALLERY, "image_origins": ["https://images.test"]}
    shown.page.route("https://images.test/*", lambda route: route.abort())
    shown.page.route("**/large.png", lambda route: route.fulfill(body=PICTURE))
    results = [result(n + 1, metadata=m) for n, m in enumerate((elsewhere, own, missing))]
    preview = "/v1/galleries/shoes/items/item-4/thumbnail?size=preview"
    results.append(result(4, metadata=own, preview_url=preview))
    dialog = looked_at(shown, results=results)
    picture = shown.found("pane-candidate").locator("img")
    expect(picture).to_have_attribute("src", re.compile("item-1/thumbnail$"))
    shown.page.keyboard.press("ArrowRight")
    expect(picture).to_have_attribute("src", "http://vouch.test/large.png")
    shown.page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text("Its larger picture could not be loaded")
    expect(picture).to_have_attribute("src", re.compile("item-3/thumbnail$"))
    shown.page.keyboard.press("ArrowRight")
    expect(picture).to_have_attribute("src", f"http://vouch.test{preview}")


def test_an_item_without_a_picture_is_said_to_have_none(shown: Shown) -> None:
    looked_at(shown, results=[result(1, thumbnail_url=None)])
    expect(shown.found("pane-candidate")).to_contain_text("no preview")
    expect(shown.found("neighbour")).to_contain_text("no preview")
    assert not [path for _, path, _ in shown.asked if path.endswith("null")]


def heard(shown: Shown, n: int) -> list[tuple[str, str | None]]:
    """What the service was told in ``n`` requests: decisions with items, and numbers undone."""

    def requests() -> list[tuple[str, str, bytes]]:
        return [one for one in shown.asked if "/feedback" in one[1] and one[0] != "GET"]

    shown.until(lambda: len(requests()) >= n)
    said = requests()
    bodies = [json.loads(body) if body else {} for *_, body in said]
    undone = [path.rpartition("/")[2] if how == "DELETE" else None for how, path, _ in said]
    return [
        ("undo", number) if number else (body["decision"], body.get("item_id"))
        for body, number in zip(bodies, undone, strict=True)
    ]


def listening(shown: Shown) -> None:
    """A service that keeps decisions, and numbers them from 1."""
    numbers = itertools.count(1)
    shown.report = HEARD
    shown.replies["/v1/galleries/shoes/feedback"] = lambda _: {"number": next(numbers)}
    for number in range(1, 9):
        shown.replies[f"/v1/galleries/shoes/feedback/{number}"] = {
            "undone_at": "2026-01-01T00:00:00Z"
        }


@pytest.mark.parametrize(
    ("key", "sentence", "said"),
    [
        ("y", "It is “label-1”.", ("this_item", "item-1")),
        ("n", "It is not “label-1”.", ("not_this_item", "item-1")),
        ("0", "It is none of these.", ("none_of_these", None)),
    ],
)
def test_a_key_decides(shown: Shown, key: str, sentence: str, said: tuple[str, str | None]) -> None:
    listening(shown)
    looked_at(shown)
    shown.page.get_by_label("Decided by").fill("Ada")
    shown.found("decide-is").focus()
    shown.page.keyboard.press(key)
    if key == "n":  # the next result may be it
        expect(shown.page.get_by_role("dialog").get_by_role("heading")).to_contain_text("2 of 2")
        shown.page.keyboard.press("Escape")
    expect(shown.found("decision")).to_have_text(sentence)
    expect(shown.page.get_by_role("dialog")).to_have_count(0)
    assert heard(shown, 1) == [said]
    body = shown.sent_once("/feedback")
    assert (body["query_id"], body["reviewer"]) == ("query-1", "Ada")


def test_a_decision_is_taken_back_and_replaced_in_the_service_too(shown: Shown) -> None:
    listening(shown)
    looked_at(shown)
    shown.page.keyboard.press("n")
    shown.page.keyboard.press("u")
    expect(shown.found("look-status")).to_have_text("Taken back.")
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_have_text("It is “label-2”.")
    said = [("not_this_item", "item-1"), ("undo", "1"), ("that_item", "item-2")]
    assert heard(shown, 3) == said
    look_closely(shown.page)
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_have_text("It is “label-1”.")
    said += [("undo", "2"), ("this_item", "item-1")]
    assert heard(shown, 5) == said
    look_closely(shown.page)
    shown.page.keyboard.press("u")  # what was decided before holds again
    expect(shown.found("decided")).to_contain_text("It is “label-2”.")
    assert heard(shown, 7) == [*said, ("undo", "3"), ("that_item", "item-2")]


def test_decisions_of_before_are_seen_and_taken_back(fresh: Shown) -> None:
    shown = fresh

    def decision(number: int, **changes: object) -> dict[str, object]:
        return {
            "number": number, "query_id": "q", "decision": "this_item", "item_id": "a/b",
            "label": "boot", "reviewer": "Ada", "comment": None, "bundle": "0",
            "decided_at": "2026-01-02T03:04:05Z", "undone_at": None, **changes,
        }  # fmt: skip

    pages = {
        "0": {"decisions": [decision(1, decision="none_of_these", item_id=None)], "next_after": 1},
        "1": {"decisions": [decision(2, reviewer="Bo"), decision(3)], "next_after": None},
    }
    shown.report = HEARD
    shown.replies["/v1/galleries/shoes/feedback"] = lambda request: pages[
        parse_qs(urlsplit(request.url).query)["after"][0]
    ]
    shown.replies["/v1/galleries/shoes/feedback/3"] = decision(3, undone_at="2026-01-03T00:00:00Z")
    shown.page.add_init_script("localStorage.setItem('vouch-reviewer', 'Ada')")
    shown.open()
    shown.found("open-decided").click()
    rows = shown.found("decided-row")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("It is “boot”.")
    expect(rows.last).to_contain_text("It is none of these.")
    rows.first.get_by_test_id("take-back").click()
    expect(rows.first).to_contain_text("Taken back.")
    assert ("DELETE", "/v1/galleries/shoes/feedback/3", b"") in shown.asked
    shown.page.get_by_label("Only those of Ada").check()
    expect(rows).to_have_count(2)


def test_a_decision_that_the_service_refuses_says_so(shown: Shown) -> None:
    shown.report = HEARD
    problem = {"title": "Unknown", "detail": "The query is no longer known."}
    shown.page.route("**/feedback", lambda route: route.fulfill(status=404, json=problem))
    looked_at(shown)
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_have_text("It is “label-1”. The query is no longer known.")


def test_what_is_decided_stays_on_the_page_where_nobody_listens(shown: Shown) -> None:
    dialog = looked_at(shown)
    expect(dialog).to_contain_text("The service does not store decisions on this gallery")
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_have_text("It is “label-1”.")
    assert shown.sent("/feedback") == []


def test_another_item_is_found_by_a_part_of_its_label(shown: Shown) -> None:
    listening(shown)
    labels = {"labels": ["boot", "clog", "rain Boot"], "next_after": None}
    shown.replies["/v1/galleries/shoes/labels"] = labels
    dialog = looked_at(shown)
    shown.answer = {**ANSWER, "results": [result(1, id="boot-7", label="boot")]}
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("BOOT")
    shown.page.keyboard.press("Enter")
    expect(dialog.get_by_role("heading")).to_have_text("boot")
    _, _, body = [one for one in shown.asked if one[1].endswith("/search")][-1]
    ids = '{"id":{"gte":"BOOT","lt":"BOOT\U0010ffff"}}'
    assert f'{{"or":[{ids},{{"label":{{"in":["boot","rain Boot"]}}}}]}}'.encode() in body
    shown.page.get_by_test_id("decide-is").click()
    expect(shown.found("decision")).to_have_text("It is “boot”.")
    assert heard(shown, 1) == [("that_item", "boot-7")]


HOSTILE = '<img src=x onerror="alert(1)">\'"&\u202e\u200fשלום'


def test_labels_ids_and_metadata_do_no_harm(shown: Shown) -> None:
    long = HOSTILE + "w" * 10_000
    hostile = result(1, id=long, label=long, metadata={HOSTILE: long, "list": [long]})
    dialog = looked_at(shown, results=[hostile, result(2)])
    expect(shown.found("facts").locator("dd").first).to_have_text(long)
    expect(dialog.get_by_role("heading")).to_have_text(f"{long}: 1 of 2")
    assert dialog.evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    shown.page.keyboard.press("y")
    expect(shown.found("decision")).to_have_text(f"It is “{long[:80]}…”.")
    assert shown.overflow() <= 0
    assert shown.complaints == []


def test_decisions_reach_the_service_and_new_items_its_gallery(
    browser: Browser, digits_bundle: Path, tmp_path: Path
) -> None:
    variables = {"VOUCH_FEEDBACK": str(tmp_path / "feedback.sqlite3")}
    bundles = tmp_path / "bundles"
    shutil.copytree(digits_bundle, bundles / digits_bundle.name)
    activate(bundles, digits_bundle.name)
    with Service(bundles, tmp_path / "log", variables) as service:
        page = browser.new_page()
        page.set_default_timeout(15_000)
        expect.set_options(timeout=15_000)
        page.goto(str(service.http.base_url))
        page.get_by_test_id("sample").first.click()
        look_closely(page)
        with page.expect_response("**/feedback") as told:
            page.keyboard.press("y")
            page.keyboard.type("Ada")  # who decides is asked once
            page.keyboard.press("Enter")
        assert told.value.status == 200
        report = service.http.get("/v1/galleries/digits/calibration").json()
        assert (report["feedback"]["n"], report["feedback"]["share"]) == (1, 1)
        look_closely(page)
        page.keyboard.press("a")
        page.get_by_label("Id", exact=True).fill("found here")
        page.get_by_label("Label, if it has one").fill("mine")
        page.get_by_role("button", name="Add to the gallery").click()
        expect(page.get_by_test_id("decision")).to_have_text(
            "It is new: “mine” is in the gallery now."
        )
        item = "/v1/galleries/digits/items/found here"
        assert service.http.get(item).json()["label"] == "mine"
        look_closely(page)
        with (
            page.expect_response(
                lambda one: one.request.method == "DELETE" and "/items/" in one.url
            ),
            page.expect_response(lambda one: one.request.method == "POST"),  # the one before
        ):
            page.keyboard.press("u")
        expect(page.get_by_test_id("look-status")).to_contain_text("Taken back")
        assert service.http.get(item).status_code == 404
        expected = [("this_item", False), ("new", False), ("this_item", True)]

        def holds() -> list[tuple[str, bool]]:
            kept = service.http.get("/v1/galleries/digits/feedback").json()["decisions"]
            return [(one["decision"], one["undone_at"] is None) for one in kept]

        wait_until(lambda: holds() == expected)  # the page does not wait for each answer
        page.close()
