"""What the calibration measured, and the line that a visitor draws: real Chromium."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from service.schemas.galleries import CalibrationReport
from tests.end_to_end.shown_page import (
    ANSWER,
    CALIBRATION,
    GALLERY,
    NBSP,
    OUTCOME,
    Shown,
    result,
)

pytestmark = pytest.mark.browser


def point(threshold: float, coverage: float, error: float, absent: float | None) -> dict[str, Any]:
    return {
        "threshold": threshold,
        "coverage": coverage,
        "error": error,
        "error_bound": error + 0.02,
        "false_match_rate": absent,
        "false_match_bound": None if absent is None else absent + 0.1,
    }


POINTS = [
    point(0.99, 0.2, 0.0, 0.01),
    point(0.95, 0.5, 0.01, 0.1),
    point(0.8, 0.7, 0.04, 0.3),
    point(0.3, 0.9, 0.2, None),
]
FIRST = {"size_class": "many", "n_labels": 3, "threshold": 0.95, "point": POINTS[1], "reason": None}
REPORT: dict[str, Any] = {
    "status": "valid",
    "n_queries": 1234,
    "queries": "held_out_images",
    "alpha": 0.05,
    "coverage": 0.95,
    "max_error": 0.05,
    "max_false_match_rate": None,
    "delta": 0.1,
    "absent": None,
    "drift": {
        "reason": None,
        "n_served": 50,
        "log_capital": 0.5,
        "drifted": False,
        "n_streams": 2,
        "n_alarmed": 0,
    },
    "order": "similarity",
    "sources": [],
    "matches": [FIRST],
    "levels": [],
    "point": POINTS[1],
    "top1_ece": 0.024,
    "reliability": [
        {"n": 0, "probability": 0.1, "share": 0.0, "weight": 0.0},
        {"n": 50, "probability": 0.25, "share": 0.5, "weight": 0.25},
        {"n": 99, "probability": 0.75, "share": 1.0, "weight": 1.0},
    ],
    "risk_coverage": POINTS,
    "result_sets": [
        {
            "coverage": 0.9,
            "promised": True,
            "promised_for": ["many"],
            "covered": 0.93,
            "mean_size": 1.25,
        },
        {
            "coverage": 0.99,
            "promised": False,
            "promised_for": [],
            "covered": 0.9,
            "mean_size": 30.0,
        },
    ],
    "outlier_auroc": {"near": 0.8, "far": 0.99},
    "feedback": None,
    "errors_over_time": None,
    "correction": None,
}


def opened(shown: Shown, **changes: Any) -> None:
    """Open the report over an answer of 90 % that the service calls not sure."""
    shown.report = {**REPORT, **changes}
    CalibrationReport.model_validate(shown.report)  # the API may say so
    shown.ask(verdict="ambiguous", results=[result(1), result(2)])
    shown.found("open-report").click()
    expect(shown.found("accuracy")).to_be_visible()


def said(shown: Shown, name: str) -> str:
    return (shown.found(name).text_content() or "").replace(NBSP, " ")


def test_it_says_what_was_measured_and_what_was_not(shown: Shown) -> None:
    opened(shown)
    words = said(shown, "accuracy")
    assert "Measured with 1,234 held-out images (cross-fitted)." in words
    assert "Average calibration error (ECE): 2 %." in words
    assert "Result sets with coverage 90 %: measured 93 %, with 1.3 items on average." in words
    assert "with 99 %" not in words  # which was not promised
    assert "(images of labels it does not hold): AUROC 80 %" in words
    assert "Augmented views" not in words


def test_it_says_when_and_with_what_and_whether_that_still_holds(shown: Shown) -> None:
    opened(shown, written_at="2026-01-02T12:00:00Z", sources=["shop", "web"])
    text = said(shown, "accuracy")
    assert "(or imported) on January 2, 2026" in text
    assert "They come from shop, web." in text
    assert "No drift since then." in text
    shown.page.keyboard.press("Escape")
    stale = {**CALIBRATION, "status": "stale", "reason": "It drifted."}
    shown.gallery = {**GALLERY, "bundle": {"calibration": stale}}  # since the page was opened
    shown.report = {**REPORT, "status": "stale"}
    shown.found("open-report").click()
    expect(shown.found("accuracy")).to_contain_text(
        "the numbers below are not guaranteed. It drifted."
    )
    expect(shown.found("drift")).to_have_count(0)


@pytest.mark.parametrize(
    ("status", "changes", "words"),
    [
        ("drifting", {}, "Your queries differ."),
        ("valid", {"drifted": True}, "later queries of all users together differ"),
        ("valid", {"reason": "No scores."}, "is not tested"),
    ],
)
def test_drift_is_described(shown: Shown, status: str, changes: dict[str, Any], words: str) -> None:
    state = {**CALIBRATION, "status": status, "reason": "Your queries differ."}
    shown.gallery = {**GALLERY, "bundle": {"calibration": state}}
    opened(shown, status=status, drift={**REPORT["drift"], **changes})
    expect(shown.found("drift")).to_contain_text(words)


def test_users_with_an_alarm_are_counted(shown: Shown) -> None:
    opened(shown, drift={**REPORT["drift"], "n_alarmed": 3})
    assert "Users whose queries drifted: 3." in said(shown, "accuracy")


def test_drift_is_acknowledged_by_who_may(shown: Shown) -> None:
    shown.replies["/v1/usage"] = {"scope": "admin", "key": None}
    opened(shown, drift={**REPORT["drift"], "drifted": True})
    shown.found("acknowledge").click()
    expect(shown.found("accuracy")).to_contain_text("Acknowledged: the drift test begins anew.")
    assert ("POST", "/v1/galleries/shoes/calibration/acknowledge", b"") in shown.asked
    shown.replies["/v1/usage"] = {"scope": "write", "key": "k"}
    shown.page.keyboard.press("Escape")
    shown.open()
    opened(shown, drift={**REPORT["drift"], "drifted": True})
    expect(shown.found("acknowledge")).to_have_count(0)


def test_the_numbers_of_a_drawing_are_a_table(shown: Shown) -> None:
    opened(shown)
    shown.found("accuracy").get_by_text("As a table").last.click()
    rows = shown.found("accuracy").locator("table").last.locator("tbody tr")
    expect(rows).to_have_text([f"25{NBSP}%50{NBSP}%50", f"75{NBSP}%100{NBSP}%99"])


def test_views_are_called_easier_than_photos(shown: Shown) -> None:
    opened(shown, queries="views_of_items")
    assert "1,234 augmented views of its own items" in said(shown, "accuracy")
    assert "Augmented views are easier than real photos." in said(shown, "accuracy")


def test_diagrams_show_the_numbers(shown: Shown) -> None:
    opened(shown)
    diagrams = shown.found("accuracy").get_by_role("img")
    expect(diagrams).to_have_count(2)
    dots = diagrams.last.locator("circle")
    expect(dots).to_have_count(2)  # a bin without queries says nothing
    places = dots.evaluate_all(
        """nodes => nodes.map(node => {
            const [, x0, y1, y0, x1] = node.parentNode.querySelector(".axes").getAttribute("d")
                .match(/M(.*) (.*)V(.*)H(.*)/).map(Number);
            const [x, y] = ["cx", "cy"].map(name => Number(node.getAttribute(name)));
            return [(x - x0) / (x1 - x0), (y0 - y) / (y0 - y1), Number(node.getAttribute("r"))];
        })"""
    )
    assert places == [pytest.approx([0.25, 0.5, 5]), pytest.approx([0.75, 1, 8])]


def test_moving_the_line_tells_its_cost_and_changes_the_verdict(shown: Shown) -> None:
    opened(shown)
    slider = shown.found("line")
    expect(slider).to_have_value("1")  # the gallery's own
    assert said(shown, "cost").startswith("A match from 95 % on. Of 100 queries 50 get a match.")
    expect(shown.found("own-line")).to_be_hidden()
    slider.press("ArrowRight")
    cost = said(shown, "cost")
    assert cost.startswith("A match from 80 % on. Of 100 queries 70 get a match.")
    assert "Of 100 such matches 4 are wrong, at most 6 with 90 % confidence." in cost
    assert "Of 100 queries that have no match here, 30 still get one." in cost
    expect(shown.found("verdict")).to_have_attribute("data-verdict", "match")
    assert "Above your line of 80 %: “label-1” (90 %)" in said(shown, "verdict")
    assert "Confident match" not in said(shown, "verdict")
    assert "The service itself says: Not sure." in said(shown, "own-verdict")
    expect(shown.found("json")).to_contain_text('"verdict": "ambiguous"')  # as it was answered
    slider.press("ArrowRight")
    assert "False-match rate unknown" in said(shown, "cost")
    slider.press("Home")
    assert "Below your line of 99 %" in said(shown, "verdict").replace(".0", "")
    shown.found("own-line").click()
    expect(shown.found("own-verdict")).to_have_count(0)
    expect(slider).to_have_value("1")
    shown.page.keyboard.press("Escape")
    expect(shown.found("verdict").locator("h2")).to_have_text("Not sure")


@pytest.mark.parametrize("verdict", ["out_of_distribution", "no_match", "match"])
def test_a_line_decides_between_match_and_not_sure_alone(shown: Shown, verdict: str) -> None:
    stale = {"id": "0", "calibration": {**CALIBRATION, "status": "stale", "reason": "Old."}}
    line = {"out_of_distribution": 0.3, "no_match": 0.99, "match": 0.99}[verdict]
    move = "([answer, line]) => import('/page/answer.js').then(m => m.byLine(answer, line).verdict)"
    shown.open()
    answer = {**ANSWER, "verdict": verdict}
    decided = shown.page.evaluate(move, [answer, line])
    assert decided == ("ambiguous" if verdict == "match" else verdict)
    assert shown.page.evaluate(move, [{**answer, "bundle": stale}, line]) == verdict
    assert shown.page.evaluate(move, [answer, None]) == verdict


def test_nothing_is_drawn_of_a_gallery_without_calibration(shown: Shown) -> None:
    shown.report = {**REPORT, "status": "missing", "risk_coverage": [], "reliability": []}
    shown.open()
    shown.found("open-report").click()
    assert "has no calibration" in said(shown, "accuracy")
    expect(shown.found("line")).to_have_count(0)
    expect(shown.found("accuracy").locator("svg")).to_have_count(0)


def test_it_fits_a_phone(browser: Browser) -> None:
    shown = Shown(browser, viewport={"width": 360, "height": 740})
    opened(shown)
    assert shown.found("accuracy").evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    shown.page.close()


FAILURE: dict[str, Any] = {
    "code": "match_never_queries",
    "severity": "failure",
    "parameters": {"max_error": 0.05, "n_queries": 30, "n_more": 60},
    "sentence": "The verdict is never `match` at 5 % error: 30 queries with a match are too few. "
    "About 60 more labelled queries would allow `match`.",
}


def test_outcome_of_the_build_is_shown_and_failures_stand_beside_the_gallery(
    shown: Shown,
) -> None:
    facts = OUTCOME["lines"]
    shown.gallery = {**GALLERY, "outcome": {**OUTCOME, "lines": [*facts, FAILURE]}}
    opened(shown)
    lines, failure = shown.found("outcome").locator("li"), FAILURE["sentence"].replace("`", "")
    expect(lines).to_have_text([facts[0]["sentence"], failure])
    expect(lines.locator("code")).to_have_text(["match", "match"])
    expect(lines.nth(0)).not_to_have_class("warning")
    expect(lines.nth(1)).to_have_class("warning")
    expect(shown.found("failure")).to_have_text(failure)


def test_outcome_is_said_in_german(browser: Browser) -> None:
    shown = Shown(browser, locale="de-DE")
    shown.gallery = {**GALLERY, "outcome": {**OUTCOME, "lines": [*OUTCOME["lines"], FAILURE]}}
    opened(shown)
    expect(shown.found("outcome").locator("li")).to_have_text(
        [
            "Das erste Ergebnis ist richtig bei 87 % von 1,234 Anfragen zur Kalibrierung.",
            (
                "Das Urteil ist bei 5 % Fehler nie „Treffer“: 30 Anfragen mit Treffer sind zu "
                "wenige. Etwa 60 weitere Anfragen mit Label würden es erlauben."
            ),
        ]
    )
    shown.page.close()
