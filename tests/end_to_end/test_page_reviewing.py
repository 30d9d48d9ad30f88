"""The review queue as a room of the page: leased cases, one key a decision. Real Chromium."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import REPORT, Shown, look_closely
from tests.end_to_end.stage import Asked

pytestmark = pytest.mark.browser

REVIEW = "/v1/galleries/shoes/review"
ERRORS = {
    "max_error": 0.05,
    "audit_share": 0.1,
    "n_asked": 4,
    "n_reviewed": 2,
    "n_wrong": 0,
    "error_interval": [0, 1],
    "log_evidence": 0,
    "alarm": False,
}


def case(number: int) -> dict[str, Any]:
    found = [
        {
            "id": f"item-{number}-{rank}",
            "label": f"label-{number}-{rank}",
            "match_probability": 0.5 / rank,
            "thumbnail_url": "/v1/a",
        }
        for rank in (1, 2)
    ]
    return {
        "number": number,
        "query_id": f"{number:064x}",
        "reason": "ambiguous",
        "drawn": False,
        "state": "open",
        "verdict": "ambiguous",
        "found": found,
        "no_match_probability": 0.1,
        "image_url": f"{REVIEW}/{number:064x}/image",
        "reviewers": 1,
    }


class Queue:
    """A review queue that leases each case once, until it is given back."""

    def __init__(self, shown: Shown, n: int) -> None:
        self.open = [case(number) for number in range(1, n + 1)]
        self.numbers = itertools.count(1)
        self.shown = shown
        counts = [{"reason": "ambiguous", "state": "open", "n": n}]
        shown.report = {**REPORT, "errors_over_time": ERRORS, "feedback": None}
        shown.replies[f"{REVIEW}/summary"] = {"counts": counts, "reviewers": 1}
        shown.replies[f"{REVIEW}/leases"] = self.lease
        shown.replies["/v1/galleries/shoes/feedback"] = self.decide
        for number in range(1, n + 1):
            shown.replies[f"/v1/galleries/shoes/feedback/{number}"] = {"undone_at": "2026-01-01"}

    def lease(self, asked: Asked) -> dict[str, Any]:
        n = json.loads(asked.body)["limit"]
        given, self.open = self.open[:n], self.open[n:]
        return {"leases": [{"case": one, "until": "2026-01-01T00:00:00Z"} for one in given]}

    def decide(self, asked: Asked) -> dict[str, Any]:
        if self.shown.report["errors_over_time"] is ERRORS:
            reviewed = {**ERRORS, "n_reviewed": 3, "n_wrong": 1}
            self.shown.report = {**self.shown.report, "errors_over_time": reviewed}
        return {"number": next(self.numbers)}


def test_a_hundred_cases_take_a_hundred_and_four_keys(shown: Shown) -> None:
    Queue(shown, 100)
    shown.open()
    shown.page.evaluate("localStorage.removeItem('vouch-reviewer')")
    shown.found("open-review").focus()
    pressed = itertools.count(1)

    def press(key: str) -> None:
        next(pressed)
        shown.page.keyboard.press(key)

    press("Enter")
    expect(shown.found("ask-name")).to_be_visible()
    for key in ("B", "o", "Enter"):  # asked once
        press(key)
    dialog = shown.found("look")
    expect(dialog).to_be_visible()
    shown.until(lambda: shown.page.url.endswith("#/shoes/review"))  # to reload
    for number in range(1, 101):
        expect(dialog.get_by_role("heading")).to_contain_text(f"label-{number}-1")
        press("0" if number % 10 == 0 else "y")
    expect(shown.found("reviewed")).to_contain_text("Cases that you decided: 100.")
    expect(shown.found("reviewed")).to_contain_text("No case is open.")
    expect(shown.found("reviewed")).to_contain_text(
        "Before: 2 matches drawn at random are reviewed"
    )
    expect(shown.found("reviewed")).to_contain_text("Now: 3 matches drawn at random are reviewed")
    assert next(pressed) - 1 == 104  # 1.04 for each
    said = shown.sent("/feedback")
    assert len({one["query_id"] for one in said}) == len(said) == 100
    assert {one["reviewer"] for one in said} == {"Bo"}
    assert [one["decision"] for one in said].count("none_of_these") == 10
    assert shown.complaints == []


def test_an_undo_in_the_queue_loses_no_case(shown: Shown) -> None:
    Queue(shown, 3)
    shown.open()
    shown.found("open-review").click()
    heading = shown.found("look").get_by_role("heading")
    expect(heading).to_contain_text("label-1-1")
    expect(shown.found("look-progress")).to_have_text("0 decided · 3 open")
    shown.page.keyboard.press("y")
    expect(heading).to_contain_text("label-2-1")
    expect(shown.found("look-progress")).to_have_text("1 decided · 2 open")
    shown.page.keyboard.press("u")
    expect(heading).to_contain_text("label-1-1")
    expect(shown.found("look-progress")).to_have_text("0 decided · 3 open")
    for number in (1, 2, 3):
        expect(heading).to_contain_text(f"label-{number}-1")
        shown.page.keyboard.press("0")
    expect(shown.found("reviewed")).to_contain_text("Cases that you decided: 3.")
    shown.until(lambda: len(shown.sent("/feedback")) >= 4)
    # Photographs do not wait for each other: the requests of each are in order.
    first, *others = (case(number)["query_id"] for number in (1, 2, 3))
    said = [
        (method, json.loads(body)["query_id"] if method == "POST" else first)
        for method, path, body in shown.asked
        if "/feedback" in path
    ]
    assert [method for method, query in said if query == first] == ["POST", "DELETE", "POST"]
    assert sorted(query for _, query in said if query != first) == others


def test_cases_that_are_left_go_back_to_the_queue(shown: Shown) -> None:
    Queue(shown, 2)
    shown.open()
    shown.found("open-review").click()
    expect(shown.found("look").get_by_role("heading")).to_contain_text("label-1-1")
    shown.page.keyboard.press("y")
    expect(shown.found("look").get_by_role("heading")).to_contain_text("label-2-1")
    shown.page.keyboard.press("Escape")
    expect(shown.found("reviewed")).to_contain_text("Cases that you decided: 1.")
    given_back = ("DELETE", f"{REVIEW}/{2:064x}/lease", b"")
    shown.until(lambda: given_back in shown.asked)
    assert ("DELETE", f"{REVIEW}/{1:064x}/lease", b"") not in shown.asked


def test_an_empty_queue_says_so(shown: Shown) -> None:
    Queue(shown, 0)
    shown.open()
    shown.found("open-review").click()
    expect(shown.found("reviewed")).to_contain_text("No case is open.")
    shown.page.keyboard.press("Escape")
    expect(shown.page).to_have_url(re.compile("#/shoes$"))


def test_a_decision_needs_a_name_and_waits_for_it(shown: Shown) -> None:
    Queue(shown, 1)
    shown.ask()
    shown.page.evaluate("localStorage.removeItem('vouch-reviewer')")
    look_closely(shown.page)
    shown.page.keyboard.press("y")
    expect(shown.found("look-status")).to_contain_text("Enter your name first")
    assert shown.sent("/feedback") == []
    shown.page.keyboard.type("Bo")
    shown.page.keyboard.press("Enter")
    expect(shown.found("decision")).to_contain_text("label-1")
    assert shown.sent_once("/feedback")["reviewer"] == "Bo"


def test_case_that_cannot_be_deleted_stays_with_the_reason(shown: Shown) -> None:
    Queue(shown, 2)
    gone = {"title": "No", "detail": "It is not stored."}
    shown.page.route(
        f"**{REVIEW}/*",
        lambda route: (
            route.fulfill(status=404, json=gone)
            if route.request.method == "DELETE"
            else route.fallback()
        ),
    )
    shown.open()
    shown.found("open-review").click()
    removes = shown.found("remove-case")
    removes.click()
    removes.click()
    expect(shown.found("look-status")).to_have_text("It is not stored.")
    expect(removes).to_be_enabled()
    expect(shown.found("look").get_by_role("heading")).to_contain_text("label-1-1")


def test_reviewer_who_may_not_write_cannot_delete_a_case(shown: Shown) -> None:
    Queue(shown, 2)
    shown.replies["/v1/usage"] = {"scope": "review", "key": "k"}
    shown.open()
    shown.found("open-review").click()
    expect(shown.found("look").get_by_role("heading")).to_contain_text("label-1-1")
    expect(shown.found("remove-case")).to_have_count(0)


@pytest.fixture
def reviewed(digits_bundle: Any, tmp_path: Any) -> Any:
    variables = {
        "VOUCH_FEEDBACK": str(tmp_path / "feedback.sqlite3"),
        "VOUCH_REVIEW_REASONS": "random,alien,absent,ambiguous",
        "VOUCH_AUDIT_SHARE": "1",
    }
    with Service(digits_bundle, tmp_path / "log", variables) as service:
        yield service


def test_the_queue_of_a_real_service_is_worked_through(
    browser: Browser, reviewed: Service, samples: list[bytes]
) -> None:
    for data in samples:
        reviewed.answer(data)
    page: Page = browser.new_page(viewport={"width": 360, "height": 740})
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(str(reviewed.http.base_url))
    page.get_by_test_id("open-review").click()
    page.get_by_label("Your name").fill("Ada")
    page.keyboard.press("Enter")
    looking = page.get_by_test_id("look").locator("visible=true")
    removes = page.get_by_test_id("remove-case")
    removes.click()
    expect(removes).to_have_text("Press again to delete its photo and answer")
    removes.click()
    expect(page.get_by_test_id("look-status")).to_contain_text("is deleted.")
    for n in range(len(samples) - 1):
        expect(page.get_by_test_id("look-progress")).to_contain_text(f"{n} decided")
        page.keyboard.press("0")
    expect(page.get_by_test_id("reviewed")).to_contain_text(
        f"Cases that you decided: {len(samples) - 1}."
    )
    cases = reviewed.http.get("/v1/galleries/digits/review").json()["cases"]
    assert len(cases) == len(samples) - 1
    expect(looking).to_have_count(0)
    decisions = reviewed.http.get("/v1/galleries/digits/feedback").json()["decisions"]
    assert len(decisions) == len(samples) - 1
    assert {one["reviewer"] for one in decisions} == {"Ada"}
    assert wrong == []
    page.close()
