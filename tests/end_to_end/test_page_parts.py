"""The parts of the page, made by its modules in real Chromium, at the bounds of what they get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.end_to_end.shown_page import ANSWER, CALIBRATION, GALLERY, NBSP, Shown, result

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Shown]:
    """A page that many questions are put to, none of which changes it."""
    shown = Shown(browser)
    expect.set_options(timeout=20_000)
    shown.open()
    yield shown
    assert shown.complaints == []
    shown.page.close()


@pytest.mark.parametrize(
    ("verdict", "probability", "changes", "wanted"),
    [
        ("match", 0.7, {}, "match"),
        ("match", 0.69, {}, "ambiguous"),
        ("ambiguous", 0.71, {}, "match"),
        ("ambiguous", 0.69, {}, "ambiguous"),
        ("no_match", 0.7, {}, "match"),
        ("no_match", 0.69, {}, "no_match"),
        ("out_of_distribution", 0.9, {}, None),
        ("match", None, {}, None),
        ("match", 0.1, {"results": []}, None),
        ("match", 0.1, {"bundle": {"calibration": {"status": "stale"}}}, None),
    ],
)  # fmt: skip
def test_a_line_decides_where_it_can(
    shared: Shown, verdict: str, probability: float | None, changes: dict[str, Any],
    wanted: str | None,
) -> None:  # fmt: skip
    answer = {
        "verdict": verdict,
        "results": [{"match_probability": probability}],
        "bundle": {"calibration": {"status": "valid"}},
        **changes,
    }
    found = shared.run("answer", "m.byLine(...all)", answer, 0.7)
    assert found == (answer if wanted is None else {**answer, "line": 0.7, "verdict": wanted})
    assert shared.run("answer", "m.byLine(...all)", answer, None) == answer


@pytest.mark.parametrize(
    ("problem", "retry_after", "remedy", "ids", "again"),
    [
        ({"status": 0}, None, "Check that the service is running", None, True),
        ({"status": 200}, None, None, "HTTP 200", True),
        ({"status": 408, "code": "slow"}, None, None, "HTTP 408 · slow", True),
        ({"status": 429}, "0", None, "HTTP 429", True),
        ({"status": 429}, "1", "Wait 1 second, then try again.", "HTTP 429", True),
        ({"status": 503}, "1", "Wait 1 second, then try again.", "HTTP 503", True),
        ({"status": 404}, None, "Reload the page", "HTTP 404", False),
        ({"status": 499}, None, None, "HTTP 499", False),
        ({"status": 500}, None, "Server error.", "HTTP 500", True),
        ({"status": 400, "code": "images_not_taken"}, None, "Search in another gallery",
         "HTTP 400 · images_not_taken", False),
        ({"status": 500, "remedy": "Do this.", "request_id": "r-1"}, "1", "Do this.",
         "HTTP 500 · request r-1", True),
    ],
)  # fmt: skip
def test_a_problem_says_what_can_be_done(
    shared: Shown, problem: dict[str, Any], retry_after: str | None, remedy: str | None,
    ids: str | None, *, again: bool,
) -> None:  # fmt: skip
    code = """(() => {
        const made = m.problemPanel({ title: "No", ...all[0] }, all[1], all[2] && (() => {}));
        const of = (name) => made.querySelector(name)?.textContent ?? null;
        return [of("h2"), of(".remedy"), of(".ids"), of("button")];
    })()"""
    title, said, numbers, button = shared.run("problem", code, problem, retry_after, True)
    assert title == "No"
    assert (said or "").startswith(remedy or "")
    assert (said is None, numbers) == (remedy is None, ids)
    assert button == ("Try again" if again else None)
    assert shared.run("problem", code, problem, retry_after, False)[3] is None


def test_numbers_and_names_are_put_into_words_at_their_bounds(shared: Shown) -> None:
    words = shared.words
    assert words("brief", "x" * 80) == "x" * 80
    assert words("brief", "x" * 81) == "x" * 80 + "…"
    assert words("uncertaintySentence", {"value": 0, "percentile": 0}, 0) == (
        "None of the ordinary queries was more certain."
    )
    estimate = {"estimated": 0.3, "interval": [0.2, 0.4], "is_hint": False, "used": 0.3}
    assert words("estimateSentence", estimate).endswith(
        "(20 % to 40 %) are probably not in the gallery. Probabilities assume 30 %."
    )
    absent = {"share": 0.05, "origin": "adopted", "basis": "hidden_labels"}
    said = words("absentSentence", absent)
    assert "(set by the operator). Estimated with photos whose label was hidden" in said
    decisions = {"is": "It is “a”.", "wrong": "It is not “a”.", "none": "It is none of these."}
    for kind, said in decisions.items():
        assert words("decisionSentence", {"kind": kind, "item": {"label": None, "id": "a"}}) == said
    assert words("fixed", 1234.5, 2) == "1234.50"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "“label-1” (90 %)."),
        ({"match_probability": None}, "“label-1”."),
        ({"label": None}, "“item-1” (90 %)."),
    ],
)  # fmt: skip
def test_a_match_is_said(shared: Shown, changes: dict[str, Any], said: str) -> None:
    answer = {"results": [result(1, **changes)]}
    says = "m.VERDICTS.match.says(all[0])"
    assert shared.run("words", says, answer) == f"Confident match: {said}"
    by_line = shared.run("words", says, {**answer, "line": 0.5})
    if changes.get("match_probability", 1) is not None:
        name = "item-1" if "label" in changes else "label-1"
        assert by_line == f"Above your line of 50 %: “{name}” (90 %)."


def test_a_verdict_that_the_page_does_not_know_speaks_for_itself(shared: Shown) -> None:
    code = "(() => { const { says, ...rest } = m.verdictOf(all[0]); return [rest, says()]; })()"
    found, said = shared.run("answer", code, {"verdict": "perhaps"})
    assert (found, said) == ({"word": "perhaps", "heading": "Results by similarity"}, "")


def test_elements_have_properties_attributes_and_children(shared: Shown) -> None:
    known = "{ 'data-x': 1, title: 't', hidden: true }"
    made = shared.run(
        "elements", f"text(m.el('p.a.b', {known}, 'x', 0, null, false, ['y', ['z']]))"
    )
    assert made == '<p class="a b" data-x="1" title="t" hidden="">x0yz</p>'
    assert shared.run("elements", "text(m.el('p'))") == "<p></p>"
    made = shared.run("elements", "text(m.svg('g', { x: 1 }, m.svg('line')))")
    assert made == '<g x="1"><line></line></g>'
    assert shared.run("elements", "text(m.glyph('match'))") == (
        '<svg class="glyph" aria-hidden="true"><use href="#glyph-match"></use></svg>'
    )
    assert shared.run("elements", "text(m.picture(null, 'a'))") == (
        '<span class="picture"><span class="unseen">no preview</span></span>'
    )
    for lazy in (True, False):
        loading = shared.run("elements", "m.picture('/v1/a', 'a', all[0]).firstChild.loading", lazy)
        assert loading == ("lazy" if lazy else "auto")
    assert shared.run("elements", "m.picture('/v1/a', 'a').firstChild.draggable") is False


def test_a_dialog_that_is_closed_is_gone(shared: Shown) -> None:
    code = """(() => new Promise((tell) => {
        const dialog = m.el("dialog", {}, m.dialogHeader("Title", m.el("b", {}, "more")));
        let n = 0;
        m.openDialog(dialog, document.body, () => {
            n += 1;
            tell([header, dialog.isConnected, n]);
        });
        const header = [dialog.open, dialog.querySelector("header").textContent];
        dialog.querySelector(".close").click();
    }))()"""
    assert shared.run("elements", code) == [[True, "Titlemore×"], False, 1]


@pytest.mark.parametrize(
    ("changes", "report", "said"),
    [
        ({}, {}, "1,500 items, calibrated on 1,234 queries. First result right: 87 %."),
        ({"outcome": None}, {"queries": "views_of_items"},
         "on 1,234 augmented views of its items."),
        ({"labels": [], "n_labels": 0}, {}, "First result right: 87 %.\nAccuracy"),
        ({"n_labels": 2}, {},
         "\nLabels: boot, clog.\nAccuracy report"),
        ({"n_labels": 4}, {}, "\nLabels: boot, clog and 2 more.\n"),
        ({"bundle": {"calibration": {**CALIBRATION, "status": "stale"}}}, {},
         "on 1,234 queries, which is out of date. First"),
        ({"bundle": {"calibration": {**CALIBRATION, "status": "missing"}}}, {},
         "1,500 items, not calibrated. First"),
        ({}, {"absent": {"estimated": 0.3, "interval": None, "is_hint": False, "used": 0.3}},
         ("87 %.\nAbout 30 % of recent photos are probably not in the gallery. "
          "Probabilities assume 30 %.\nLabels")),
        ({}, {"absent": {"estimated": None}}, "87 %.\nLabels"),
    ],
)  # fmt: skip
def test_a_gallery_is_described_in_lines(
    shared: Shown, changes: dict[str, Any], report: dict[str, Any], said: str
) -> None:
    code = """m.galleryParts(all[0], all[1], { report: all, items: all, decisions: all[2] && all })
        .map((one) => one.textContent).join("\\n")"""
    found = shared.run("gallery", code, {**GALLERY, **changes}, {"absent": None, **report}, True)
    assert said in found
    assert found.endswith("\nAccuracy reportBrowse galleryReview history")
    found = shared.run("gallery", code, {**GALLERY, **changes}, {"absent": None, **report}, False)
    assert found.endswith("\nAccuracy reportBrowse gallery")


PARTS = """(() => {
    const tools = { queries: "held_out_images", roundTrip: all[1] ?? 12.5, line: null, options: {},
                    why: {}, look: () => {}, more: () => {}, choose: () => {}, edit: () => {} };
    const whole = document.createElement("div");
    const question = { preview: null, name: "a.png", ...all[2] };
    whole.append(...m.answerParts(all[0], question, tools));
    const found = [...whole.querySelectorAll(all[3])];
    return found.map((one) => all[4] ? one.outerHTML : one.textContent);
})()"""


def parts(
    page: Shown, selector: str, *, as_html: bool = False, time: float = 12.5,
    question: dict[str, Any] | None = None, **changes: Any,
) -> list[str]:  # fmt: skip
    """The parts of an answer that a selector finds, as text."""
    answer = {**ANSWER, **changes}
    found = page.run("answer", PARTS, answer, time, question or {}, selector, as_html)
    return [one.replace(NBSP, " ") for one in found]


def test_a_scale_is_drawn(shared: Shown) -> None:
    ood = {**ANSWER["query"]["ood"], "p_value": 0.0001, "alpha": 0.01}
    [drawing] = parts(
        shared, "[data-testid=ood] svg", as_html=True, query={**ANSWER["query"], "ood": ood}
    )
    assert drawing.startswith(
        '<svg class="scale"><circle class="other" cx="1.0%" cy="12" r="2.5"></circle>'
    )
    assert drawing.endswith(
        '<circle class="other" cx="99.0%" cy="12" r="2.5"></circle>'
        '<line class="limit" x1="99.0%" x2="99.0%" y1="3" y2="21"></line>'
        '<circle class="query" cx="100.0%" cy="12" r="8"></circle></svg>'
    )
    ood = {**ood, "p_value": None}
    uncertainty = {**ANSWER["query"]["uncertainty"], "value": None, "percentile": None}
    query = {**ANSWER["query"], "ood": ood, "uncertainty": uncertainty}
    assert len(parts(shared, ".scale circle", query=query)) == 2 * 50
    assert parts(shared, ".scale .query, .scale .limit, .scale .beyond", query=query) == []


def test_what_kind_of_image_it_is_is_a_word(shared: Shown) -> None:
    for flag, p, word in ((True, 0.001, "no, unusual"), (False, 0.5, "yes"),
                          (None, 0.5, "unknown"), (True, None, "unknown")):  # fmt: skip
        ood = {**ANSWER["query"]["ood"], "p_value": p, "flag": flag}
        found = parts(shared, "[data-testid=ood] h3", query={**ANSWER["query"], "ood": ood})
        assert found == [f"Typical photo? {word}"]


def test_details_say_times_and_how_to_ask_again(shared: Shown) -> None:
    timing = {"total": 9.94, "decode": 10, "search": 10.4}
    details = parts(shared, "[data-testid=details] > dl", timing_ms=timing, time=9.96)[0]
    assert "9.9 ms in the service, 10.0 ms round trip" in details
    assert "Stagesdecode 10 ms, search 10 msCache" in details
    assert "Calibrationvalid, 1,234 queriesBundle" in details
    never = {**CALIBRATION, "status": "missing", "n_queries": 0}
    bundle = {"id": "0", "calibration": never}
    details = parts(shared, "[data-testid=details] > dl", bundle=bundle)[0]
    assert "CalibrationmissingBundle0Request" in details
    [curl] = parts(shared, "[data-testid=curl]", question={"name": "it's.png"})
    address = "http://vouch.test/v1/galleries/shoes/search"
    assert curl == f"curl -s -F 'image=@\"it'\\''s.png\"' '{address}'"
    [curl] = parts(shared, "[data-testid=curl]", question={"name": 'a\\b"c.png'})
    assert curl.startswith('curl -s -F \'image=@"a\\\\b\\"c.png"\' ')
    [curl] = parts(shared, "[data-testid=curl]", question={"sampleUrl": "/v1/a"})
    assert curl == (
        f"curl -s 'http://vouch.test/v1/a' |\n  curl -s -F 'image=@-;filename=sample' '{address}'"
    )
    shared.run("api", "m.key.set('secret')")
    [curl] = parts(shared, "[data-testid=curl]")
    shared.run("api", "m.key.forget()")
    assert curl.startswith('curl -s -H "Authorization: Bearer $VOUCH_KEY" -F ')
    [whole] = parts(shared, "[data-testid=json]", cache="hit")
    assert json.loads(whole) == {**ANSWER, "cache": "hit"}
    assert whole.startswith('{\n  "')


def test_an_item_shows_what_is_known_of_it(shared: Shown) -> None:
    scalars = {"a": 1, "b": [2], "c": "3", "d": True, "e": 5}
    bare = result(2, label=None, metadata=None, match_probability=None)
    found = parts(shared, "[data-testid=neighbour] .meta, [data-testid=neighbour] .probability",
                  results=[result(1, metadata=scalars), bare])  # fmt: skip
    assert found == ["a: 1", "c: 3", "90 % match"]
    assert parts(shared, "li.vouched b") == ["label-1"]
    assert parts(shared, "li.vouched b", verdict="ambiguous") == []
    assert parts(shared, "[data-testid=look]", results=[]) == []
    assert parts(shared, ".neighbours h3", results=[]) == ["The gallery returned no items"]
    assert parts(shared, ".verdict figcaption", results=[result(1, label=None)]) == [
        "Your photoPNG 8 × 9",
        "item-1first result",
    ]


def test_a_review_is_asked_for_of_a_first_result(shared: Shown) -> None:
    asked = "This answer was drawn at random for review. Is the first result right? YesNo"
    assert parts(shared, "[data-testid=audit]", audit=True) == [asked]
    assert parts(shared, "[data-testid=audit]", audit=True, results=[]) == []
    assert parts(shared, "[data-testid=audit]") == []


def test_how_likely_nothing_matches_is_shown_where_it_is_known(shared: Shown) -> None:
    shown = "[data-testid=nothing] h3"
    assert parts(shared, shown) == ["Chance that it is not in the gallery 4 %"]
    assert parts(shared, shown, no_match_probability=None) == []
    assert parts(shared, shown, absent=None) == []
    assert parts(shared, shown, verdict="out_of_distribution") == []
    assert parts(shared, "[data-testid=uncertainty] .ends") == ["certainuncertain"]
    assert parts(shared, "[data-testid=ood] .ends") == ["typicalunusual"]


def test_a_sample_is_a_picture_and_its_words(shared: Shown) -> None:
    code = """(() => {
        const asked = [];
        const made = m.sampleList(all[0], (sample) => asked.push(sample.id));
        made.forEach((one) => one.querySelector("button").click());
        return [asked, made.map((one) => one.textContent), made[0].querySelector("img").outerHTML];
    })()"""
    samples = [{"id": n, "image_url": "/v1/a", "caption": n, "belongs": n == "a"} for n in "ab"]
    asked, words, picture = shared.run("gallery", code, samples)
    assert (asked, words) == (["a", "b"], ["a", "bshould be rejected"])
    assert picture == '<img alt="" draggable="false" src="http://vouch.test/v1/a">'


@pytest.mark.parametrize("calm", [False, True])
def test_an_answer_out_of_sight_is_brought_there(shared: Shown, *, calm: bool) -> None:
    code = """(() => {
        const height = innerHeight, asked = [];
        const at = (top) => m.Search.prototype.bringIntoView.call({ $: () => ({
            getBoundingClientRect: () => ({ top }),
            scrollIntoView: ({ behavior }) =>
                asked.push([top === height ? "below" : top, behavior]),
        }) });
        [-1, 0, 1, height / 2 - 1, height].forEach(at);
        at(height / 2);
        return [asked, height / 2];
    })()"""
    shared.page.emulate_media(reduced_motion="reduce" if calm else "no-preference")
    asked, half = shared.run("search", code)
    how = "auto" if calm else "smooth"
    assert asked == [[-1, how], ["below", how], [half, how]]


def test_what_it_is_all_the_same_is_said_of_what_is_ambiguous(shared: Shown) -> None:
    rolled = {"label": "cat", "probability": 0.9}
    for verdict, said in (("ambiguous", ["Not sure which, but “cat” with probability 90 %."]),
                          ("match", [])):  # fmt: skip
        found = parts(shared, "[data-testid=roll-up]", verdict=verdict, roll_up=rolled)
        assert found == said


def test_a_list_that_cannot_go_on_says_why(shown: Shown) -> None:
    shown.ask(next_cursor="after-2")
    problem = {"title": "Gone", "detail": "The cursor is too old."}
    shown.page.route("**/search/next?*", lambda route: route.fulfill(status=400, json=problem))
    shown.found("more").click()
    expect(shown.found("more")).to_have_text("The cursor is too old.")
    expect(shown.found("more")).to_be_disabled()
    expect(shown.found("neighbour")).to_have_count(2)


def test_what_is_copied_is_said_for_a_while(fresh: Shown) -> None:
    """The page's origin is not secure: there is no clipboard but that of a selection."""
    shown = fresh
    shown.page.clock.install(time=0)
    shown.ask()
    shown.page.get_by_text("Details").click()
    shown.page.clock.pause_at(3_600_000)  # or a busy machine takes the two seconds by itself
    shown.page.evaluate(
        "addEventListener('copy', () => { window.copied = document.activeElement.value; })"
    )
    button = shown.page.get_by_role("button", name="Copy: The same query from a shell")
    button.click()
    expect(button).to_have_text("Copied")
    expect(button).to_be_focused()
    assert str(shown.page.evaluate("window.copied")).startswith("curl -s -F")
    expect(shown.page.locator("textarea")).to_have_count(0)
    shown.page.clock.run_for(1_900)
    expect(button).to_have_text("Copied")
    shown.page.clock.run_for(200)
    expect(button).to_have_text("Copy")
