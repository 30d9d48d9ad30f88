"""The page says what the API answers: real Chromium, answers written here, no service."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import FilePayload, expect

from tests.end_to_end.shown_page import (
    ANSWER,
    CALIBRATION,
    GALLERY,
    NBSP,
    PICTURE,
    Shown,
    result,
)
from tests.support.image_files import encoded

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("verdict", "word", "says", "probabilities"),
    [
        ("match", "Match", "Confident match: “label-1” (90 %).", 2),
        ("ambiguous", "Not sure", "Possible matches – please check.", 2),
        ("no_match", "No match", "A typical photo, but nothing in this gallery", 2),
        (
            "out_of_distribution",
            "Not recognised",
            "Unlike the photos this gallery was set up for.",
            0,
        ),
    ],
)
def test_a_verdict_is_put_into_words(
    shown: Shown, verdict: str, word: str, says: str, probabilities: int
) -> None:
    shown.ask(verdict=verdict)
    panel = shown.found("verdict")
    expect(panel.locator("h2")).to_have_text(word)
    expect(panel).to_contain_text(says.replace(" %", f"{NBSP}%"))
    expect(shown.page).to_have_title(f"{word} · Vouch")
    expect(shown.page.locator("#announcer")).to_contain_text(f"{word}. ")
    # Only the first item of a match is vouched for, and beside strangers no probability is shown.
    vouched = ["li vouched", "li"] if verdict == "match" else ["li", "li"]
    items = shown.found("neighbour").all()
    assert [f"li {item.get_attribute('class') or ''}".strip() for item in items] == vouched
    expect(panel.locator("figure")).to_have_count(2 if verdict in {"match", "ambiguous"} else 1)
    expect(shown.page.locator("p.probability")).to_have_count(probabilities)
    expect(shown.found("why")).not_to_have_attribute("open", "")  # the answer comes first
    expect(shown.found("nothing")).to_have_count(1 if probabilities else 0)
    expect(shown.found("set")).to_have_count(1 if probabilities else 0)
    subordinate = verdict in {"no_match", "out_of_distribution"}
    expect(shown.page.locator("section.subordinate")).to_have_count(int(subordinate))


def test_without_calibration_no_number_is_invented(shown: Shown) -> None:
    unknown = {"match_probability": None}
    query = {
        **ANSWER["query"],
        "uncertainty": {
            "value": 0.1,
            "percentile": None,
            "level": None,
            "epistemic": 0.1,
            "aleatoric": None,
            "method": "laplace",
        },
        "ood": {"flag": None, "reason": None, "p_value": None, "alpha": 0.01, "method": "fusion"},
    }
    missing = {"status": "missing", "n_queries": 0, "fitted_at": None, "reason": None}
    shown.gallery = {**GALLERY, "bundle": {"calibration": missing}, "outcome": None}
    shown.ask(
        verdict="not_calibrated",
        no_match_probability=None,
        absent=None,
        result_set=None,
        query=query,
        results=[result(1, **unknown)],
        bundle={"id": "0", "calibration": missing},
    )
    expect(shown.found("uncertainty").locator("h3")).to_have_text("Uncertainty unknown")
    expect(shown.found("ood").locator("h3")).to_have_text("Typical photo? unknown")
    expect(shown.page.locator("svg.scale .query")).to_have_count(0)
    expect(shown.page.locator("p.probability")).to_have_count(0)
    expect(shown.page.locator(".neighbours .note")).to_contain_text("“Set up guarantees”")
    expect(shown.page.locator("#gallery-about")).to_contain_text("1,500 items, not calibrated.")
    expect(shown.page.get_by_text("Each small dot stands for")).to_have_count(0)


def test_an_item_is_shown_with_its_numbers(shown: Shown) -> None:
    shown.ask(results=[result(1), result(2, label=None)])
    first, second = shown.found("neighbour").all()
    expect(first.locator("b")).to_have_text("label-1")
    expect(first.locator(".id")).to_have_text("item-1")
    expect(first.locator(".meta")).to_have_text(["price: 12", "maker: Ada"])
    expect(first.locator(".probability")).to_have_text(f"90{NBSP}% match")
    expect(first.locator(".bar span")).to_have_attribute("style", "inline-size: 90%;")
    expect(second.locator("b")).to_have_text("item-2")
    expect(second.locator(".id")).to_have_count(0)


def test_the_items_of_a_label_are_one_card(shown: Shown) -> None:
    several = [result(1), result(2), *(result(rank, label="label-1") for rank in (3, 4))]
    shown.ask(results=several)
    cards = shown.found("neighbour")
    expect(cards.locator("b")).to_have_text(["label-1", "label-2"])
    expect(cards.first.locator(".id")).to_have_text("3 photos")
    expect(cards.locator(".probability")).to_have_text([f"90{NBSP}% match", f"45{NBSP}% match"])
    shown.page.get_by_role("button", name="Compare with label-1 (3 of 3)").click()
    heading = shown.page.get_by_role("dialog").get_by_role("heading")
    expect(heading).to_have_text("label-1: 4 of 4")  # its place in the whole list


def test_the_photo_is_a_dot_among_the_calibration_queries(shown: Shown) -> None:
    ood = {**ANSWER["query"]["ood"], "p_value": 0.2, "alpha": 0.05}
    shown.ask(query={**ANSWER["query"], "ood": ood})
    shown.found("why").locator("summary").click()
    for name, place in (("uncertainty", "20.0%"), ("ood", "80.0%")):
        drawing = shown.found(name)
        expect(drawing.locator("circle.query")).to_have_attribute("cx", place)
        expect(drawing.locator("circle:not(.query)")).to_have_count(50)
    expect(shown.found("ood").locator("line.limit")).to_have_attribute("x1", "95.0%")
    expect(shown.found("ood").locator(".beyond")).to_have_count(2)
    expect(shown.found("uncertainty").locator(".limit, .beyond")).to_have_count(0)
    expect(shown.found("nothing").locator(".bar span")).to_have_attribute(
        "style", "inline-size: 4%;"
    )
    shown.ask()  # whoever wants to know why is told of the next answer too
    expect(shown.found("ood").locator("h3")).to_be_visible()


@pytest.mark.parametrize(
    ("n_items", "changes", "said"),
    [
        (1, {}, "with probability 95 % it is label-1."),
        (2, {}, "with probability 95 % one of these is: label-1, label-2."),
        (6, {}, "label-5, label-6."),
        (8, {}, "label-6 and 2 more."),
        (1, {"promised": False, "reason": "Few."}, "label-1. Not for every label: Few."),
        (1, {"promised": False, "promised_for": [], "reason": "Too few."}, "Too few."),
    ],
)  # fmt: skip
def test_a_result_set_is_a_sentence(
    shown: Shown, n_items: int, changes: dict[str, Any], said: str
) -> None:
    items = [{"id": f"item-{i}", "label": f"label-{i}"} for i in range(1, n_items + 1)]
    shown.ask(result_set={**ANSWER["result_set"], "items": items, **changes})
    sentence = (shown.found("set").text_content() or "").replace(NBSP, " ")
    assert sentence.replace("“", "").replace("”", "").endswith(said)


def test_what_is_out_of_date_or_withheld_is_a_warning(shown: Shown) -> None:
    stale = {**CALIBRATION, "status": "stale", "reason": "The gallery has changed."}
    shown.gallery = {**GALLERY, "bundle": {"calibration": stale}}
    image = {**ANSWER["query"]["image"], "warnings": ["The picture is tiny."]}
    bundle = {"id": "0", "calibration": stale}
    query = {**ANSWER["query"], "image": image}
    shown.ask(verdict="ambiguous", reason="The gallery has changed.", bundle=bundle, query=query)
    warnings = ["Out of date. The gallery has changed.", "Note. The picture is tiny."]
    expect(shown.page.locator("p.warning")).to_have_text(warnings)  # the reason is said once
    expect(shown.page.locator("#gallery-about")).to_contain_text(", which is out of date")
    shown.ask(verdict="ambiguous", reason="Too few queries.")
    expect(shown.found("withheld")).to_have_text("No confident match is possible. Too few queries.")
    shown.ask(verdict="match", reason="Probabilities may be far off.")
    expect(shown.found("withheld")).to_have_text("Probabilities may be far off.")
    expect(shown.page.locator("p.warning")).to_have_count(1)


def test_a_gallery_is_described(shown: Shown) -> None:
    sample = {"id": "1", "image_url": "/v1/sample", "caption": "A boot"}
    samples = [{**sample, "belongs": True}, {**sample, "belongs": False}]
    estimate = {"estimated": 0.3, "interval": [0.2, 0.4], "is_hint": False, "used": 0.3}
    shown.gallery = {**GALLERY, "samples": samples}
    shown.report = {"queries": "held_out_images", "absent": estimate}
    shown.open()
    about = (shown.page.locator("#gallery-about").text_content() or "").replace(NBSP, " ")
    assert "1,500 items, calibrated on 1,234 held-out images. First result right: 87 %." in about
    assert "Labels: boot, clog and 1 more." in about
    assert "About 30 % of recent photos (20 % to 40 %) are probably not in the gallery" in about
    expect(shown.found("sample")).to_have_text(["A boot", "A bootshould be rejected"])
    expect(shown.page.locator("#samples")).to_be_visible()
    expect(shown.page.locator(".picker")).to_be_hidden()  # there is one gallery alone
    shown.gallery = {**GALLERY, "n_labels": 2}
    shown.open()
    expect(shown.page.locator("#gallery-about")).to_contain_text("Labels: boot, clog.")
    expect(shown.page.locator("#samples")).to_be_hidden()
    names = [{"name": name, "n_items": n} for name, n in (("shoes", 1500), ("bags", None))]
    shown.replies["/v1/galleries"] = {"galleries": names}
    shown.open()
    expect(shown.page.locator(".picker")).to_be_visible()
    options = shown.found("gallery-picker").locator("option")
    expect(options).to_have_text(["shoes (1,500 items)", "bags"])


def test_details_say_where_the_time_went_and_how_to_ask_again(shown: Shown) -> None:
    began = time.monotonic()
    shown.ask()
    details = (shown.found("details").text_content() or "").replace(NBSP, " ")
    assert details.startswith("Details 13 ms, cache miss")
    [waited] = re.findall(r"13 ms in the service, ([\d.]+) ms round trip", details)
    assert 0 <= float(waited) <= 1000 * (time.monotonic() - began)
    assert "Stagesdecode 3.3 ms, search 9.0 msCachemiss" in details
    assert "Calibrationvalid, 1,234 queries" in details
    assert "Bundle0123456789abcdefRequestrequest-1" in details
    expect(shown.found("curl")).to_have_text(
        'curl -s -F \'image=@"my \\"shoe\\".png"\' '
        "'http://vouch.test/v1/galleries/shoes/search'"
    )  # fmt: skip
    expect(shown.found("json")).to_contain_text('"request_id": "request-1"')


@pytest.mark.parametrize(
    ("status", "headers", "remedy", "again"),
    [
        (415, {}, "Save it as JPEG, PNG or WebP", False),
        (429, {"retry-after": "7"}, "Wait 7 seconds, then try again.", True),
        (500, {}, "Server error.", True),
        (503, {}, "The service is busy or starting.", True),
    ],
)
def test_a_problem_comes_with_a_remedy(
    shown: Shown, status: int, headers: dict[str, str], remedy: str, *, again: bool
) -> None:
    shown.status, shown.headers = status, headers
    problem = {"title": "No answer", "detail": "Why.", "code": "busy", "request_id": "r-1"}
    shown.ask(**problem)
    said = shown.found("problem")
    expect(said.locator("h2")).to_have_text("No answer")
    expect(said).to_contain_text("Why.")
    expect(said.locator(".remedy")).to_contain_text(remedy)
    expect(said.locator(".ids")).to_have_text(f"HTTP {status} · busy · request r-1")
    expect(said.get_by_role("button")).to_have_count(int(again))
    expect(shown.page.locator("#legend")).to_be_hidden()


PERCENTAGES = {
    0: "0 %", 0.0004: "under 0.1 %", 0.001: "0.1 %", 0.004: "0.4 %", 0.01: "1 %", 0.5: "50 %",
    0.99: "99 %", 0.994: "99.4 %", 0.999: "99.9 %", 0.9995: "over 99.9 %", 1: "100 %",
}  # fmt: skip
UNCERTAINTIES = {
    None: "Nothing to compare it with: the gallery is not calibrated.",
    0: "None of the 1,000 ordinary queries was more certain.",
    30: "More certain than 70 % of ordinary queries.",
    50: "More certain than 50 % of ordinary queries.",
    51: "Less certain than 51 % of ordinary queries.",
    100: "All of the 1,000 ordinary queries were more certain.",
}
PICTURES = {
    40.0: "State of the picture: better than 60 % of ordinary pictures.",
    97.0: "State of the picture: worse than 97 % of ordinary pictures. Try a sharp, bright one.",
    100.0: "State of the picture: worse than all ordinary pictures. Try a sharp, bright one.",
}
OUTLIERS = [
    ({"p_value": None}, "Not tested: the gallery is not calibrated."),
    ({"p_value": 0.2, "alpha": 0.0001, "reason": "Too few."}, "Too few."),
    (
        {"p_value": 0.82, "alpha": 0.01, "flag": False},
        "More typical than 82 % of the calibration photos.",
    ),
    (
        {"p_value": 0.004, "alpha": 0.05, "flag": True},
        "More unusual than 99.6 % of the calibration photos. The limit is 95 %.",
    ),
]
SHARES = [
    ({"share": 0.05, "origin": "gallery", "basis": "?"}, "."),
    ({"share": 0.05, "origin": "key", "basis": "?"}, " (set by your key)."),
    (
        {"share": 0.05, "origin": "request", "basis": "absent_labels"},
        " (set by the request). Estimated with photos that have no match in it.",
    ),
]
ROUGH = "(a rough estimate). Probabilities assume 5 %."
ESTIMATES = [
    ({"estimated": None}, ""),
    (
        {"estimated": 0.3, "interval": None, "is_hint": True, "used": 0.05},
        f"About 30 % of recent photos are probably not in the gallery {ROUGH}",
    ),
]


def test_numbers_are_put_into_words(shown: Shown) -> None:
    shown.open()
    for share, said in PERCENTAGES.items():
        assert shown.words("percent", share) == said
    for percentile, said in UNCERTAINTIES.items():
        query = {"value": 0.1, "percentile": percentile}
        assert shown.words("uncertaintySentence", query, 1000) == said
    assert "no variance" in shown.words("uncertaintySentence", {"value": None}, 1000)
    assert shown.words("pictureSentence", None) == ""
    for of_picture, said in PICTURES.items():
        assert shown.words("pictureSentence", {"percentile": of_picture}) == said
    for ood, said in OUTLIERS:
        assert shown.words("outlierSentence", ood) == said
    for absent, said in SHARES:
        whole = f"Assumes that 5 % of photos are not in the gallery{said}"
        assert shown.words("absentSentence", absent) == whole
    for estimate, said in ESTIMATES:
        assert shown.words("estimateSentence", estimate) == said


@pytest.mark.parametrize(
    ("width", "height", "tiny"), [(8, 8, True), (95, 95, True), (96, 8, False), (8, 96, False)]
)
def test_tiny_pictures_keep_their_pixels(
    shown: Shown, width: int, height: int, *, tiny: bool
) -> None:
    shown.picture = encoded(np.zeros((height, width, 3), np.uint8), "PNG")
    shown.ask()
    picture = shown.found("neighbour").first.locator("img")
    expect(picture).to_have_js_property("naturalWidth", width)
    expect(picture).to_have_class(re.compile("pixelated" if tiny else "^$"))
    expect(picture).to_have_attribute("loading", "lazy")


def test_a_picture_that_cannot_be_shown_says_so(shown: Shown) -> None:
    shown.picture = b"no picture"
    shown.ask()
    expect(shown.found("neighbour").first.locator(".unseen")).to_have_text("no preview")


WAYS = {
    "dropped": "new DragEvent('drop', { dataTransfer: held })",
    "pasted": "new ClipboardEvent('paste', { clipboardData: held })",
}


def bring(shown: Shown, way: str, held: dict[str, str]) -> None:
    """Drop or paste something that is no file: texts by their kind."""
    shown.page.evaluate(
        "texts => { const held = new DataTransfer();"
        "for (const [kind, text] of Object.entries(texts)) held.setData(kind, text);"
        f"dispatchEvent({WAYS[way]}); }}",
        held,
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_picture_at_a_link_is_searched_with(shown: Shown, way: str) -> None:
    shown.page.route(
        "https://shop.example/**",
        lambda route: route.fulfill(
            body=PICTURE, content_type="image/png", headers={"Access-Control-Allow-Origin": "*"}
        ),
    )
    shown.open()
    link = {"text/uri-list": "# of a shop\r\nhttps://shop.example/boot.png?large"}
    linking = {  # a picture that is dragged out of a page, and links to something else there
        "text/uri-list": "https://shop.example/boots",
        "text/html": '<a href="/boots"><img src="https://shop.example/boot.png"></a>',
    }
    for held in (link, linking):
        with shown.page.expect_response("**/search"):
            bring(shown, way, held)
        expect(shown.found("verdict")).to_be_visible()
    sent = [body for _, path, body in shown.asked if path.endswith("/search")]
    assert [b'filename="boot.png"' in body for body in sent] == [True, True]


def test_a_link_that_may_not_be_fetched_says_what_to_do(shown: Shown) -> None:
    shown.page.route("https://shop.example/**", lambda route: route.fulfill(body=PICTURE))
    shown.open()
    bring(shown, "dropped", {"text/uri-list": "https://shop.example/boot.png"})  # no CORS header
    problem = shown.found("problem")
    expect(problem.locator("h2")).to_have_text("The link could not be fetched")
    expect(problem.locator(".remedy")).to_contain_text("Save the image first")
    expect(problem.locator(".ids")).to_have_count(0)
    bring(shown, "pasted", {"text/plain": "javascript:alert(1)"})
    expect(problem.locator("h2")).to_have_text("There is no image in what was pasted")


def test_a_link_of_a_site_that_the_policy_forbids_says_so(shown: Shown) -> None:
    shown.open(policy=True)
    bring(shown, "dropped", {"text/uri-list": "https://shop.example/boot.png"})
    expect(shown.found("problem")).to_contain_text("not allowed pictures of https://shop.example.")


def test_while_a_file_hovers_the_page_says_that_it_may_be_let_go(shown: Shown) -> None:
    shown.open()
    veil = shown.page.get_by_text("Drop to search")
    expect(veil).to_be_hidden()
    stays = shown.page.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([], "shoe.png", { type: "image/png" }));
            dispatchEvent(new DragEvent("dragover", { dataTransfer }));
            const hovers = () => document.querySelector("main").classList.contains("dragging");
            return new Promise((tell) => setTimeout(() => tell(hovers()), 100));
        }"""
    )
    assert stays is True  # until the next dragover
    expect(veil).to_be_hidden()


def test_a_search_that_takes_long_can_be_cancelled(shown: Shown) -> None:
    shown.ask()
    shown.holds = True
    shown.page.wait_for_function("performance.now() > 2000")  # which is not the search's time
    picture = FilePayload(name="shoe.png", mimeType="image/png", buffer=PICTURE)
    shown.found("file-input").set_input_files([picture])
    busy, result_ = shown.found("busy"), shown.found("result")
    expect(busy).to_contain_text("Searching 1,500 items…")
    expect(busy).to_contain_text("Searching 1,500 items, 2 s so far")
    expect(result_).to_be_hidden()
    expect(result_).to_have_attribute("aria-busy", "true")
    shown.page.get_by_role("button", name="Cancel").click()
    expect(busy).to_be_hidden()
    expect(shown.found("problem")).to_have_count(0)
    expect(shown.page.locator("#announcer")).to_have_text("Cancelled.")
    expect(shown.page.locator("#legend")).to_be_visible()
    expect(result_).not_to_have_attribute("aria-busy", "true")
