"""What a first visit to the page transfers, in a real browser."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser


def transferred(browser: Browser, address: str, locale: str = "en-US") -> dict[str, float]:
    """Return the bytes of each response of a first visit with headers, by path."""
    context = browser.new_context(locale=locale)
    page = context.new_page()
    paths: dict[str, str] = {}
    sizes: dict[str, float] = {}

    def responded(event: dict[str, Any]) -> None:
        paths[event["requestId"]] = event["response"]["url"].removeprefix(address)

    def finished(event: dict[str, Any]) -> None:
        path = paths.get(event["requestId"], "")
        sizes[path] = sizes.get(path, 0) + event["encodedDataLength"]

    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.responseReceived", responded)
    session.on("Network.loadingFinished", finished)
    page.goto(address)
    page.get_by_test_id("sample").first.wait_for()
    page.wait_for_load_state("networkidle")
    context.close()
    return sizes
