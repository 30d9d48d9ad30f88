"""The visitor's key on the page: what it allows, another one, none. Real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.end_to_end.keys import KeysFile, id_of, secret_of
from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import Shown, look_closely

pytestmark = pytest.mark.browser

USAGE: dict[str, Any] = {
    "key": "3f9a",
    "name": "survey",
    "scope": "write",
    "galleries": ["shoes", "survey-*"],
    "rate_limit": "60 per 1 minute",
    "searches": {"limit": 5000, "used": 1200, "period_s": 2_592_000, "resets_in_s": 90_001.0},
    "created_galleries": {"limit": 10, "used": 3},
    "max_items": 20_000,
}


def test_key_is_shown_with_what_it_allows_and_what_is_left(shown: Shown) -> None:
    shown.replies["/v1/usage"] = USAGE
    shown.open()
    shown.found("open-key").click()
    expect(shown.found("usage").get_by_role("listitem")).to_have_text(
        [
            "Key: survey.",
            "You may search, browse, review, and change items.",
            "Galleries: shoes, survey-*.",
            "1,200 of 5,000 searches used. The count resets in 2 days.",
            "3 of 10 galleries created.",
            "At most 20,000 items in a gallery.",
        ]
    )
    expect(shown.found("forget-key")).to_have_count(0)  # the browser sent none
    expect(shown.page).to_have_url("http://vouch.test/#/shoes/key")
    assert shown.complaints == []


@pytest.mark.parametrize(
    ("scope", "key", "offered"), [("admin", None, 0), ("admin", "k", 1), ("read", None, 1)]
)
def test_key_is_offered_where_there_is_one_or_it_would_allow_more(
    shown: Shown, scope: str, key: str | None, offered: int
) -> None:
    shown.replies["/v1/usage"] = {**USAGE, "scope": scope, "key": key}
    shown.open()
    expect(shown.found("open-key")).to_have_count(offered)


@pytest.mark.parametrize("scope", ["read", "review"])
def test_what_needs_the_scope_review_is_offered_to_it_alone(shown: Shown, scope: str) -> None:
    shown.replies["/v1/usage"] = {**USAGE, "scope": scope}
    shown.report = {**shown.report, "errors_over_time": {"n_asked": 0}}
    shown.ask(audit=True)
    offered = int(scope == "review")
    expect(shown.found("open-decided")).to_have_count(offered)
    expect(shown.found("audit")).to_have_count(offered)
    dialog = look_closely(shown.page)
    expect(dialog).to_contain_text(
        "Decisions are sent to the service" if offered else "Your key may not send decisions"
    )
    shown.page.keyboard.press("y")
    expect(shown.page.locator("dialog")).to_have_count(0)
    shown.page.wait_for_timeout(200)
    assert len(shown.sent("/feedback")) == offered


def test_revoked_key_is_replaced_where_it_is_refused(shown: Shown) -> None:
    refused = {
        "title": "The API key is missing or not valid",
        "detail": "The key 3f9a is revoked. Send a valid key as `Authorization: Bearer vouch_…`.",
    }
    shown.replies["/v1/usage"] = USAGE
    shown.ask()
    shown.page.evaluate("sessionStorage['vouch-key'] = 'revoked'")
    for address in ("**/v1/usage", "**/items?*"):
        shown.page.route(address, lambda route: route.fulfill(status=401, json=refused))
    shown.found("open-browse").click()
    status = shown.found("browse-status")
    expect(status).to_have_text("The key 3f9a is revoked. Enter a key under “Your key”.")
    shown.page.keyboard.press("Escape")
    shown.found("open-key").click()
    form = shown.found("key-form")
    expect(form).to_contain_text("The key 3f9a is revoked.")
    expect(form).not_to_contain_text("Bearer")
    expect(shown.found("key-input")).to_be_focused()
    expect(shown.found("verdict")).to_be_visible()  # the answer stays
    shown.page.unroute_all(behavior="ignoreErrors")
    shown.found("key-input").fill("another")
    shown.page.keyboard.press("Enter")
    expect(shown.found("usage")).to_contain_text("Key: survey.")
    assert shown.page.evaluate("sessionStorage['vouch-key']") == "another"


def test_what_the_key_before_allowed_is_offered_no_longer(shown: Shown) -> None:
    """Buttons that are replaced later lose a click between its press and its release."""
    shown.replies["/v1/usage"] = USAGE
    shown.open()
    shown.found("open-key").click()
    shown.page.route("**/v1/galleries", lambda route: None)  # it is never answered
    shown.found("key-input").fill("another")
    shown.page.keyboard.press("Enter")
    expect(shown.found("usage")).to_have_count(0)
    expect(shown.found("open-key")).to_have_count(0)
    expect(shown.found("open-add")).to_have_count(0)


def test_anonymous_visitor_signs_in_and_out(
    browser: Browser, digits_bundle: Path, keys_file: KeysFile, tmp_path: Path
) -> None:
    """A service that anyone may search asks nobody for a key: the visitor offers it."""
    text = keys_file.make("admin")
    variables = {"VOUCH_KEYS": str(keys_file.path), "VOUCH_ANONYMOUS": "true"}
    with Service(digits_bundle, tmp_path / "log", variables) as service:
        page = browser.new_page()
        page.goto(str(service.http.base_url))
        usage, form = page.get_by_test_id("usage"), page.get_by_test_id("key-form")
        page.get_by_test_id("open-key").click()
        expect(usage).to_contain_text("No key is used.")
        expect(usage).not_to_contain_text("everything")
        form.get_by_label("API key").fill(text)
        form.get_by_role("button").click()
        expect(page.get_by_test_id("key")).to_have_count(0)
        page.get_by_test_id("open-key").click()
        expect(usage).to_contain_text("You may do everything")
        expect(usage).not_to_contain_text(secret_of(text))
        page.get_by_test_id("forget-key").click()
        page.get_by_test_id("open-key").click()
        expect(usage).to_contain_text("No key is used.")
        assert id_of(text) not in page.content()
        page.close()
