"""A real browser: the system's Chromium, else the one that Playwright has downloaded.

`chromium-headless-shell` is Chromium without what only a person in front of it would see; a page
costs half the processor time in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

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


WHOLE = ("chromium", "chromium-browser", "google-chrome")
"""Commands of browsers that people use."""

HEADLESS = ("chromium-headless-shell", *WHOLE)


def installed(names: Sequence[str] = HEADLESS) -> str | None:
    """The path of the first of these commands that there is."""
    return next(filter(None, map(shutil.which, names)), None)


def launched(playwright: Playwright, *options: str, names: Sequence[str] = HEADLESS) -> Browser:
    """Start a browser.

    Raises
    ------
    playwright.sync_api.Error : none starts here.
    """
    return playwright.chromium.launch(executable_path=installed(names), args=[*QUIETLY, *options])
