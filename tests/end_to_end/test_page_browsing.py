"""A gallery is looked through, however large it is: real Chromium."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Request, expect

from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import Shown

pytestmark = pytest.mark.browser

N_ITEMS = 100_000


def item(place: int) -> dict[str, Any]:
    return {
        "id": f"item-{place:06}",
        "label": f"label {place}",
        "metadata": {"place": place},
        "thumbnail_url": f"/v1/galleries/shoes/items/{place}/thumbnail",
    }


def items(request: Request) -> dict[str, Any]:
    """A page of a large gallery."""
    start = int(parse_qs(urlsplit(request.url).query).get("cursor", ["0"])[0])
    page = [item(place) for place in range(start, start + 100)]
    return {"items": page, "n_items": N_ITEMS, "next_cursor": str(start + 100)}


def test_only_what_is_in_sight_is_drawn(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    shown.found("open-browse").click()
    cells = shown.found("browse").locator(".cell")
    expect(cells.first).to_contain_text("label 0")
    expect(shown.found("browse-status")).to_have_text("300 of 100,000 items, by id")
    window = shown.found("browse").locator(".window")
    shown.page.wait_for_function(
        """() => {
            const node = document.querySelector(".window");
            node.scrollTop = node.scrollHeight;
            const status = document.querySelector("[data-testid=browse-status]");
            return Number(status.textContent.split(" ")[0].replace(",", "")) >= 1200;
        }"""
    )
    row = "Math.floor(900 / Math.floor(node.clientWidth / 124))"
    window.evaluate(f"node => {{ node.scrollTop = 164 * {row}; }}")
    expect(shown.found("browse").locator("[data-place='900']")).to_be_attached()
    assert cells.count() < 200
    places = cells.evaluate_all("all => all.map(cell => Number(cell.dataset.place))")
    assert sorted(places) == list(range(min(places), max(places) + 1))
    window.evaluate("node => { node.scrollTop = 0; }")
    expect(shown.found("browse").locator("[data-place='0']")).to_be_visible()


def test_an_item_is_chosen_and_those_like_it_are_listed(browser: Browser, service: Service) -> None:
    expect.set_options(timeout=20_000)
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(str(service.http.base_url))
    page.get_by_test_id("open-browse").click()
    n_items = service.http.get("/v1/galleries/digits").json()["n_items"]
    status = page.get_by_test_id("browse-status")
    expect(status).to_contain_text(f"of {n_items} items, by id")
    cells = page.get_by_test_id("browse").locator(".cell")
    chosen = cells.nth(1)
    item_id = chosen.get_attribute("title")
    chosen.click()
    expect(page.get_by_test_id("browse-about")).to_contain_text(str(item_id))
    page.get_by_role("button", name="Items like this one").click()
    expect(status).to_contain_text("100 items like")
    found = service.http.get(f"/v1/galleries/digits/items/{item_id}/similar?limit=3").json()
    titles = [cells.nth(i).get_attribute("title") for i in range(3)]
    assert titles == [one["id"] for one in found["results"]]
    page.get_by_role("button", name="All items").click()
    expect(status).to_contain_text("by id")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.close()
