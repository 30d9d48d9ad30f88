"""What the calibration measured, and the line that a visitor draws: real Chromium."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from service.schemas.galleries import BundleList, CalibrationReport
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


def bundle(number: int, match_share: float | None, max_error: float = 0.05) -> dict[str, Any]:
    """A bundle of the n-th of March; not calibrated if it has no share."""
    calibration = {
        "written_at": "2026-03-01T08:00:00Z",
        "queries": "held_out_images",
        "delta": 0.1,
        "basis": "calibration",
        "n_queries": 1200 + number,
        "recall_at_1": 0.9,
        "match_share": match_share,
        "match_error": 0.02,
        "match_error_bound": 0.04,
        "max_error": max_error,
        "false_match_rate": None,
        "false_match_bound": None,
        "flagged_share": None,
        "absent_flagged_share": None,
    }
    return {
        "id": f"{number:016x}",
        "published_at": f"2026-03-{number:02}T12:00:00Z",
        "release": "0.3.0",
        "n_items": 1000 + number,
        "n_labels": 30,
        "calibration": None if match_share is None else calibration,
        "reason": None,
    }


UNREADABLE = {
    **bundle(1, None),
    **dict.fromkeys(("release", "n_items", "n_labels")),
    "reason": "The bundle cannot be read. It was changed.",
}
HISTORY: dict[str, Any] = {
    "serving": bundle(3, 0)["id"],
    "bundles": [UNREADABLE, bundle(2, 0.63), bundle(3, 0.75)],
    "refused": None,
}


def with_history(shown: Shown, scope: str = "admin", **changes: Any) -> None:
    """Let the service have a history for a visitor with a key of this scope."""
    history = {**HISTORY, **changes}
    BundleList.model_validate(history)  # the API may say so
    shown.replies["/v1/galleries/shoes/bundles"] = history
    shown.replies["/v1/usage"] = {"scope": scope, "key": "k"}


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
    assert "Measured with 1,234 held-out images. No query was judged by" in words
    assert "On average, probabilities differ by 2 % from what happened." in words
    sets = shown.found("accuracy").locator(".rest tbody tr")
    expect(sets).to_have_text([f"90{NBSP}%93{NBSP}%1.3"])  # the others were not promised
    assert "(images of labels it does not hold): in 80 % of pairs" in words
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
        ("valid", {"drifted": True}, "Look at recent queries in the review queue."),
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


def test_the_numbers_of_a_drawing_are_a_table_to_copy(shown: Shown) -> None:
    opened(shown)
    shown.page.evaluate(
        "addEventListener('copy', () => { window.copied = document.activeElement.value; })"
    )
    shown.found("accuracy").get_by_text("As a table").last.click()
    rows = shown.found("accuracy").locator(".figures table").last.locator("tbody tr")
    expect(rows).to_have_text([f"25{NBSP}%50{NBSP}%50", f"75{NBSP}%100{NBSP}%99"])
    shown.found("copy-table").last.click()
    shown.until(lambda: shown.page.evaluate("window.copied"))
    copied = shown.page.evaluate("window.copied").replace(NBSP, " ")
    assert copied.splitlines()[1:] == ["25 %\t50 %\t50", "75 %\t100 %\t99"]


def test_views_are_called_easier_than_photos(shown: Shown) -> None:
    opened(shown, queries="views_of_items")
    assert "1,234 augmented views of its items" in said(shown, "accuracy")
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
    expect(shown.found("history")).to_be_visible()


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
    expect(lines).to_have_text([failure])
    expect(lines.locator("code")).to_have_text(["match", "match"])
    expect(lines).to_have_class("warning")
    expect(shown.found("failure")).to_have_text(failure)
    shown.found("accuracy").get_by_text("The summary of the calibration in full").click()
    expect(shown.found("facts").get_by_text(facts[0]["sentence"])).to_be_visible()


def test_outcome_begins_with_large_figures(shown: Shown) -> None:
    numbers = {"match_share": 0.75, "match_error": 0.031, "max_error": 0.05}
    shown.gallery = {**GALLERY, "outcome": {**OUTCOME, **numbers, "false_match_rate": None}}
    opened(shown)
    words = [
        text.replace(NBSP, " ") for text in shown.found("headline").locator("li").all_inner_texts()
    ]
    assert [text.split("\n")[0] for text in words] == ["87 %", "75 %", "3 %"]
    assert words[2].endswith("of matches are wrong. The limit is 5 %, with 90 % confidence.")


def test_ticks_of_a_diagram_are_exact(shown: Shown) -> None:
    opened(shown, risk_coverage=[point(0.9, 0.5, 0.01, None), point(0.5, 0.9, 0.09, None)])
    texts = shown.found("accuracy").locator("svg").first.locator("text").all_text_contents()
    up = [text.replace(NBSP, " ") for text in texts[1:10:2]]
    assert up == ["0 %", "2.5 %", "5 %", "7.5 %", "10 %"]


def test_outcome_is_said_in_german(browser: Browser) -> None:
    shown = Shown(browser, locale="de-DE")
    shown.gallery = {**GALLERY, "outcome": {**OUTCOME, "lines": [*OUTCOME["lines"], FAILURE]}}
    shown.open()
    expect(shown.found("failure")).to_contain_text("Das Urteil ist bei 5 % Fehler nie „Treffer“")
    opened(shown)
    expect(shown.found("accuracy")).to_contain_text("Gemessen mit 1.234 zurückgehaltenen Bildern.")
    expect(shown.found("facts").locator("li")).to_have_text(
        "Das erste Ergebnis ist richtig bei 87 % von 1.234 Anfragen zur Kalibrierung."
    )
    expect(shown.found("outcome").locator("li")).to_have_text(
        [
            (
                "Das Urteil ist bei 5 % Fehler nie „Treffer“: 30 Anfragen mit Treffer sind zu "
                "wenige. Etwa 60 weitere Anfragen mit Label würden es erlauben."
            ),
        ]
    )
    shown.page.close()


def test_history_lists_bundles_from_the_newest(shown: Shown) -> None:
    with_history(shown, scope="write")
    opened(shown)
    rows = shown.found("history").locator("tbody tr")
    expect(rows).to_have_count(3)
    newest, before, unread = [text.replace(NBSP, " ") for text in rows.all_text_contents()]
    assert newest.startswith("Mar 3, 2026, ")
    assert "in use1,003 items, 30 labels, calibrated with 1,203 held-out images" in newest
    assert newest.endswith("built by Vouch 0.3.075 %2 %5 %")
    assert "in use" not in before
    assert unread.endswith("The bundle cannot be read. It was changed.–")
    expect(shown.found("serve")).to_have_count(0)  # which needs an administrator


@pytest.mark.parametrize(
    ("bundles", "words"),
    [
        (
            [bundle(2, 0.63), bundle(3, 0.75)],
            "12 points more matches; the error limit is unchanged",
        ),
        ([bundle(2, 0.76), bundle(3, 0.75)], "1 point fewer matches; the error"),
        ([bundle(2, 0.75, 0.1), bundle(3, 0.75)], "as many matches; error limit 5 %, before 10 %"),
        ([bundle(2, 0.75), bundle(3, 0.75)], "unchanged; 1,003 items, before 1,002."),
        ([bundle(2, None), bundle(3, 0.75)], None),
        ([bundle(3, 0.75)], None),
        ([bundle(3, 0.75), bundle(4, 0.9)], None),  # one after it, as after a way back
    ],
)
def test_history_says_what_the_served_bundle_changed(
    shown: Shown, bundles: list[dict[str, Any]], words: str | None
) -> None:
    with_history(shown, bundles=bundles)
    opened(shown)
    expect(shown.found("history").locator("table")).to_be_visible()
    if words is None:
        expect(shown.found("changes")).to_have_count(0)
    else:
        assert words in said(shown, "changes")


def test_administrator_serves_an_earlier_bundle_after_reading_what_follows(shown: Shown) -> None:
    with_history(shown)
    path = f"/v1/galleries/shoes/bundles/{HISTORY['bundles'][1]['id']}/activate"
    shown.replies[path] = {"bundle_id": "2", "persisted": True}
    opened(shown)
    button = shown.found("serve")  # neither of the served one nor of one that cannot be read
    button.click()
    asked = said(shown, "serve-asked")
    assert "all users get answers of Mar 2, 2026" in asked
    assert "1,002 items; 63 % of queries get a match, at most 5 % of these are wrong." in asked
    shown.page.get_by_role("button", name="Cancel").click()
    expect(button).to_be_focused()
    button.click()
    assert not [1 for method, at, _ in shown.asked if (method, at) == ("POST", path)]
    n_before = sum(at == "/v1/galleries/shoes" for _, at, _ in shown.asked)
    expect(shown.found("serve-confirmed")).to_be_focused()
    shown.page.keyboard.press("Enter")
    shown.until(lambda: ("POST", path, b"") in shown.asked)
    shown.until(
        lambda: sum(at == "/v1/galleries/shoes" for _, at, _ in shown.asked) >= n_before + 2
    )
    expect(shown.found("serve-asked")).to_have_count(0)  # the report of the other bundle is shown
    expect(shown.found("accuracy")).to_be_visible()
    shown.until(lambda: shown.page.url.endswith("#/shoes/report"))


def test_refused_activation_says_why_and_can_be_repeated(shown: Shown) -> None:
    with_history(shown)
    opened(shown)
    shown.page.route(
        "**/activate",
        lambda route: route.fulfill(
            status=409, json={"title": "Refused", "detail": "It cannot be served.", "status": 409}
        ),
    )
    shown.found("serve").click()
    shown.found("serve-confirmed").click()
    expect(shown.found("history").get_by_role("status")).to_have_text("It cannot be served.")
    expect(shown.found("serve")).to_be_focused()


def test_history_that_does_not_come_leaves_the_report(shown: Shown) -> None:
    shown.page.route("**/bundles", lambda route: route.fulfill(status=500, body="{}"))
    opened(shown)
    expect(shown.found("history").get_by_role("status")).to_contain_text("Unexpected response")
    expect(shown.found("line")).to_be_visible()


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("de-DE", "12 Punkte mehr Treffer; die Fehlergrenze ist unverändert"),
        ("fr-FR", "12 points de correspondances en plus; la limite d’erreur est inchangée"),
    ],
)
def test_history_is_said_in_other_languages(browser: Browser, locale: str, words: str) -> None:
    shown = Shown(browser, locale=locale, viewport={"width": 360, "height": 740})
    with_history(shown)
    opened(shown)
    expect(shown.found("changes")).to_contain_text(words)
    assert shown.found("accuracy").evaluate("node => node.scrollWidth - node.clientWidth") <= 0
    shown.close()
