"""A real browser: the system's Chromium, else the one that Playwright has downloaded."""

from __future__ import annotations

import shutil

from playwright.sync_api import Browser, Playwright

QUIETLY = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def launched(playwright: Playwright, *options: str) -> Browser:
    """Start a browser.

    Raises
    ------
    playwright.sync_api.Error : none starts here.
    """
    installed = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return playwright.chromium.launch(
        executable_path=next(filter(None, installed), None), args=[*QUIETLY, *options]
    )
