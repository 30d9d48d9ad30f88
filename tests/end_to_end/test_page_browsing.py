"""A gallery is looked through, however large it is: real Chromium."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from model_store.messages import message
from tests.end_to_end.processes import Service
from tests.end_to_end.shown_page import Shown
from tests.end_to_end.stage import Asked
from tests.end_to_end.test_page_looking import HOSTILE

pytestmark = pytest.mark.browser

N_ITEMS = 100_000


def item(place: int) -> dict[str, Any]:
    return {
        "id": f"item-{place:06}",
        "label": f"label {place}",
        "metadata": {"place": place},
        "thumbnail_url": f"/v1/galleries/shoes/items/{place}/thumbnail",
    }


def items(request: Asked) -> dict[str, Any]:
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


def facet(field: str, values: dict[object, int], **changes: Any) -> dict[str, Any]:
    return {
        "field": field,
        "comparison": "eq",
        "n_items": sum(values.values()),
        "n_values": len(values),
        "least": None,
        "greatest": None,
        "values": [{"value": value, "n_items": n} for value, n in values.items()],
        **changes,
    }


FACETS = [
    facet("label", {"boot": 7, "clog": 2}),
    facet("tags", {HOSTILE: 3, "red": 2}, comparison="has"),
    facet("price", {}, n_values=90, least=1.5, greatest=200),
    facet("file", {}, n_values=1500),
]


def filters_sent(shown: Shown) -> list[str]:
    """The filters that searches were sent with; "" for none."""
    forms = [body.decode("latin-1") for _, path, body in shown.asked if path.endswith("/search")]
    found = [re.search(r'name="filter"\r\n\r\n(.*?)\r\n', form) for form in forms]
    return [one[1].encode("latin-1").decode() if one else "" for one in found]


def test_only_some_items_are_searched_by_what_fields_hold(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/facets"] = {"facets": FACETS}
    shown.ask()
    assert [path for _, path, _ in shown.asked if path.endswith("/facets")] == []  # nobody asked
    bar = shown.page.get_by_test_id("filters")
    bar.locator("summary").click()
    expect(bar.locator("legend")).to_have_text(["Label", "tags", "price"])
    expect(bar.locator(".values").first).to_have_text("boot7clog2")
    steps: list[tuple[Callable[[], None], object]] = [
        (lambda: bar.get_by_label("boot").check(), {"label": {"in": ["boot"]}}),
        (lambda: bar.get_by_label("boot").uncheck(), None),
        (lambda: bar.get_by_label(HOSTILE).check(), {"tags": {"has": HOSTILE}}),
        (
            lambda: bar.get_by_label("to", exact=True).fill("20"),
            {"and": [{"tags": {"has": HOSTILE}}, {"price": {"lte": 20}}]},
        ),
        (lambda: bar.get_by_role("button", name="Clear the filter").click(), None),
        (lambda: bar.get_by_label("red").check(), {"tags": {"has": "red"}}),
        (lambda: bar.get_by_label("red").uncheck(), None),
    ]
    for act, wanted in steps:
        with shown.page.expect_response("**/search"):
            act()
            shown.page.keyboard.press("Tab")  # a number is taken when its field is left
        sent = filters_sent(shown)[-1]
        assert (json.loads(sent) if sent else None) == wanted
    expect(bar.locator(":checked")).to_have_count(0)
    assert shown.complaints == []


def test_words_are_about_the_filtered_items(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/facets"] = {"facets": FACETS}
    shown.ask(verdict="no_match", results=[])
    panel, bar = shown.found("verdict"), shown.page.get_by_test_id("filters")
    expect(panel).to_contain_text("nothing in this gallery matches it.")
    bar.locator("summary").click()
    bar.get_by_label("from", exact=True).fill("50")
    bar.get_by_label("to", exact=True).fill("40")
    shown.page.keyboard.press("Tab")
    expect(bar).to_contain_text("“from” is greater than “to”")
    expect(panel).to_contain_text("None of the filtered items matches your photo.")
    expect(shown.page.locator("#announcer")).to_contain_text("None of the filtered items")
    expect(shown.found("result")).to_contain_text("No item passes the filter")
    expect(shown.found("nothing").locator("h3")).to_contain_text("no filtered item matches")
    bar.get_by_role("button", name="Clear the filter").click()
    expect(bar).not_to_contain_text("“from” is greater than “to”")
    expect(panel).to_contain_text("nothing in this gallery matches it.")


def test_a_service_that_counts_no_values_says_so(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/facets"] = {"facets": []}
    shown.open()
    shown.page.get_by_test_id("filters").locator("summary").click()
    expect(shown.found("filter-status")).to_have_text("The items have no fields to filter by.")
    shown.replies["/v1/galleries/shoes/facets"] = {
        "facets": [],
        "reason": message("fields_not_counted"),
    }
    shown.page.reload()
    shown.page.get_by_test_id("filters").locator("summary").click()
    expect(shown.found("filter-status")).to_have_text(message("fields_not_counted"))


def test_an_item_is_deleted_when_that_is_said_twice(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.open()
    shown.found("open-browse").click()
    cell = shown.found("browse").locator("[data-place='1']")
    cell.click()
    shown.found("delete").click()
    expect(shown.found("delete")).to_have_text("Press again: it cannot be taken back")
    assert [method for method, _, _ in shown.asked if method == "DELETE"] == []
    shown.replies["/v1/galleries/shoes/items/item-000001"] = {}
    shown.found("delete").click()
    expect(shown.found("browse-done")).to_have_text("“item-000001” is no longer in the gallery.")
    expect(cell).to_be_disabled()
    refusal = {"title": "No", "detail": "This key may only read."}
    shown.page.route("**/items/item-000002", lambda route: route.fulfill(status=403, json=refusal))
    shown.found("browse").locator("[data-place='2']").click()
    shown.found("delete").click()
    shown.found("delete").click()
    expect(shown.found("browse-done")).to_have_text("This key may only read.")
    expect(shown.found("delete")).to_have_count(0)


@pytest.mark.parametrize(
    ("scope", "offered"), [("read", False), ("review", False), ("write", True)]
)
def test_only_who_may_delete_is_offered_to(shown: Shown, scope: str, *, offered: bool) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies["/v1/usage"] = {"scope": scope}
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator("[data-place='1']").click()
    expect(shown.found("browse-about")).to_contain_text("item-000001")
    expect(shown.found("delete")).to_be_visible(visible=offered)


def test_selected_items_are_exported_and_deleted_at_once(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies["/v1/galleries/shoes/facets"] = {"facets": FACETS}
    shown.open()
    shown.found("open-browse").click()
    dialog = shown.found("browse")
    shown.found("select").click()
    expect(shown.found("n-selected")).to_have_text("0 selected")
    expect(shown.found("delete-selected")).to_be_disabled()
    dialog.locator("[data-place='1']").click()
    dialog.locator("[data-place='4']").click(modifiers=["Shift"])
    dialog.locator("[data-place='3']").click()
    expect(shown.found("n-selected")).to_have_text("3 selected")
    marked = dialog.locator(".cell[aria-pressed=true]")
    assert marked.evaluate_all("all => all.map((one) => one.title)") == [
        "item-000001",
        "item-000002",
        "item-000004",
    ]
    with shown.page.expect_download() as saved:
        shown.found("export-selected").click()
    assert saved.value.suggested_filename == "shoes.csv"
    text = saved.value.path().read_text("utf-8-sig")
    [head, first, *rest] = csv.reader(text.splitlines())
    assert head == ["id", "label", "metadata"]
    assert first == ["item-000001", "label 1", '{"place":1}']
    assert len(rest) == 2

    refusal = {"title": "No", "detail": "The disk is full."}
    shown.page.route("**/items/item-000002", lambda route: route.fulfill(status=507, json=refusal))
    for place in (1, 4):
        shown.replies[f"/v1/galleries/shoes/items/item-{place:06}"] = {}
    expect(shown.found("delete-selected")).to_have_text("Delete 3 items")
    shown.found("delete-selected").click()
    assert [method for method, _, _ in shown.asked if method == "DELETE"] == []
    shown.found("delete-selected").click()
    expect(shown.found("selection-done")).to_have_text(
        "2 of 3 deleted. “item-000002” could not be deleted: The disk is full."
    )
    expect(shown.found("n-selected")).to_have_text("1 selected")
    for place, is_there in ((1, False), (2, True), (4, False)):
        expect(dialog.locator(f"[data-place='{place}']")).to_be_enabled(enabled=is_there)
    # A range leaves out what is deleted, and does not begin in a list that is no longer shown.
    dialog.locator("[data-place='0']").click()
    dialog.locator("[data-place='5']").click(modifiers=["Shift"])
    expect(shown.found("n-selected")).to_have_text("4 selected")
    shown.found("clear-selected").click()
    dialog.locator("[data-place='0']").click()
    shown.replies["/v1/galleries/shoes/items"] = {
        "items": [item(place) for place in range(200, 230)],
        "n_items": N_ITEMS,
        "n_passing": 30,
        "next_cursor": None,
    }
    dialog.locator("summary").click()
    dialog.get_by_label("boot").check()
    expect(shown.found("browse-status")).to_have_text("30 of 30 items, by id")
    dialog.locator("[data-place='3']").click(modifiers=["Shift"])
    expect(shown.found("n-selected")).to_have_text("2 selected")
    shown.found("select").click()
    expect(shown.found("selection")).to_have_count(0)
    expect(dialog.locator("[aria-pressed=true].cell")).to_have_count(0)
    dialog.locator("[data-place='2']").click()
    expect(shown.found("browse-about")).to_contain_text("item-000202")


def test_selection_of_a_reader_is_only_exported(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies["/v1/usage"] = {"scope": "read"}
    shown.open()
    shown.found("open-browse").click()
    shown.found("select").click()
    shown.page.keyboard.press("Tab")
    shown.found("browse").locator("[data-place='0']").press("Enter")
    expect(shown.found("n-selected")).to_have_text("1 selected")
    expect(shown.found("export-selected")).to_be_enabled()
    expect(shown.found("delete-selected")).to_be_hidden()


def test_an_item_is_chosen_and_those_like_it_are_listed(browser: Browser, service: Service) -> None:
    expect.set_options(timeout=20_000)
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(str(service.http.base_url))
    page.get_by_test_id("open-browse").click()
    n_items = service.http.get("/v1/galleries/digits").json()["n_items"]
    status = page.get_by_test_id("browse-status")
    expect(status).to_contain_text(f"of {n_items} items, by id")
    dialog = page.get_by_test_id("browse")
    dialog.locator("summary").click()
    value = dialog.locator(".values label").filter(has=page.get_by_text("7", exact=True))
    value.get_by_role("checkbox").check()
    sevens = service.http.get(
        "/v1/galleries/digits/items", params={"filter": '{"label": "7"}', "limit": 1}
    ).json()["n_passing"]
    expect(status).to_contain_text(f"of {sevens} items, by id")
    cells = dialog.locator(".cell")
    expect(cells.nth(1)).to_contain_text("7")
    chosen = cells.nth(1)
    item_id = chosen.get_attribute("title")
    chosen.click()
    expect(page.get_by_test_id("browse-about")).to_contain_text(str(item_id))
    page.get_by_role("button", name="Items like this one").click()
    expect(status).to_contain_text("items like")
    found = service.http.get(
        f"/v1/galleries/digits/items/{item_id}/similar",
        params={"limit": 3, "filter": '{"label": "7"}'},
    ).json()
    titles = [cells.nth(i).get_attribute("title") for i in range(3)]
    assert titles == [one["id"] for one in found["results"]]
    page.get_by_role("button", name="All items").click()
    expect(status).to_contain_text("by id")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.close()


def labels_sent(shown: Shown) -> list[tuple[str, object]]:
    """The labels that were sent, in order: id of the item, and its label."""
    return [
        (path.rpartition("/")[2], json.loads(body)["label"])
        for method, path, body in shown.asked
        if method == "PATCH"
    ]


def test_label_of_an_item_is_changed_and_taken_back(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies["/v1/galleries/shoes/labels"] = {"labels": ["boot", "clog"], "next_after": None}
    shown.open()
    shown.found("open-browse").click()
    dialog = shown.found("browse")
    dialog.locator("[data-place='1']").click()
    field = shown.found("label-form").get_by_label("Label")
    expect(field).to_have_value("label 1")
    expect(shown.found("give-label")).to_be_disabled()
    field.fill("oo")
    expect(dialog.locator("datalist option")).to_have_count(1)
    field.fill(" boot ")
    field.press("Enter")
    expect(shown.found("labels-done")).to_have_text("“item-000001” now has “boot”.")
    expect(dialog.locator("[data-place='1']")).to_contain_text("boot")
    expect(shown.found("facts")).to_contain_text("boot")
    dialog.locator("[data-place='2']").click()
    expect(field).to_have_value("label 2")
    shown.found("undo-labels").click()
    expect(shown.found("labels-done")).to_have_text("The label is as before.")
    expect(dialog.locator("[data-place='1']")).to_contain_text("label 1")
    expect(shown.found("undo-labels")).to_be_hidden()
    field.fill("")
    expect(shown.found("give-label")).to_have_text("Remove the label")
    shown.found("give-label").click()
    expect(shown.found("labels-done")).to_have_text("“item-000002” now has no label.")
    assert labels_sent(shown) == [
        ("item-000001", "boot"),
        ("item-000001", "label 1"),
        ("item-000002", None),
    ]
    detail = "The gallery 'shoes' is served from one bundle, which never changes."
    refusal = {"title": "No", "detail": detail}
    shown.page.route("**/items/item-000002", lambda route: route.fulfill(status=409, json=refusal))
    field.fill("clog")
    shown.found("give-label").click()
    expect(shown.found("labels-done")).to_have_text(f"“item-000002” could not be changed: {detail}")
    assert shown.complaints == []


def test_labels_of_selected_items_are_changed_and_taken_back(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies["/v1/galleries/shoes/labels"] = {"labels": ["boot"], "next_after": None}
    shown.open()
    shown.found("open-browse").click()
    dialog = shown.found("browse")
    shown.found("select").click()
    dialog.locator("[data-place='1']").click()
    dialog.locator("[data-place='3']").click(modifiers=["Shift"])
    field = shown.found("label-form").get_by_label("Label")
    expect(field).to_have_attribute("placeholder", "3 labels")
    expect(shown.found("give-label")).to_have_text("Remove 3 labels")
    broken = {"title": "No", "detail": "The disk is full."}
    shown.page.route("**/items/item-000002", lambda route: route.fulfill(status=507, json=broken))
    dialog.locator("[data-place='3']").click()
    field.fill("label 3")
    dialog.locator("[data-place='3']").click()  # what was typed stays
    expect(shown.found("n-selected")).to_have_text("3 selected")
    shown.found("give-label").click()
    expect(shown.found("labels-done")).to_have_text(
        "“item-000001” now has “label 3”. “item-000002” could not be changed: The disk is full."
    )
    shown.page.unroute("**/items/item-000002")
    field.fill("boot")
    expect(shown.found("give-label")).to_have_text("Change 3 labels")
    shown.found("give-label").click()
    expect(shown.found("labels-done")).to_have_text("3 items now have “boot”.")
    expect(dialog.locator("[data-place='2']")).to_contain_text("boot")
    shown.found("undo-labels").click()
    expect(shown.found("labels-done")).to_have_text("3 labels are as before.")
    assert labels_sent(shown)[-3:] == [
        ("item-000001", "label 3"),
        ("item-000002", "label 2"),
        ("item-000003", "label 3"),
    ]
    expect(shown.found("n-selected")).to_have_text("3 selected")


def test_label_form_is_not_offered_to_a_reader(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    shown.replies["/v1/usage"] = {"scope": "read"}
    shown.open()
    shown.found("open-browse").click()
    shown.found("browse").locator("[data-place='1']").click()
    expect(shown.found("facts")).to_contain_text("label 1")
    expect(shown.found("label-form")).to_have_count(0)


def test_counts_follow_what_was_deleted(shown: Shown) -> None:
    shown.replies["/v1/galleries/shoes/items"] = items
    found = {"items": [], "n_items": 1499, "n_unranked": 0, "next_cursor": None}
    shown.replies["/v1/galleries/shoes/near-duplicates"] = found
    shown.ask()
    about, picked = shown.page.locator("#gallery-about"), shown.page.locator("option[value=shoes]")
    for room, n in (("open-browse", 1499), ("to-near-duplicates", 1498)):
        shown.gallery = {**shown.gallery, "n_items": n, "labels": [f"{n} boots"]}
        if room != "open-browse":
            shown.found("open-browse").click()
        shown.found(room).click()
        expect(shown.page.locator("dialog")).to_have_count(1)
        shown.page.keyboard.press("Escape")
        expect(about).to_contain_text(f"{n:,} items")
        expect(about).to_contain_text(f"{n} boots")
        expect(picked).to_have_text(f"shoes ({n:,} items)")
        expect(shown.found("verdict")).to_be_visible()
