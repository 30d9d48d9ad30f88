"""A shop's catalogue from its export to what customers ask, through a night's changes and back.

The identification of products: one picture a product, as URLs; customers photograph it their way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.client import VouchClient
from tests.benchmarks.strong_views import strong_view
from tests.end_to_end.processes import Service
from tests.end_to_end.workflows.commands import (
    Commands,
    as_jpeg,
    matches,
    verdicts,
    wait_for_another_bundle,
)
from tests.support.web_server import web_server

pytestmark = pytest.mark.real_data

N_PRODUCTS, N_ASKED, N_LATER, N_OTHERS = 200, 120, 60, 70
"""Products; customers' photographs to calibrate with and to be tested on, and of other products."""

N_NEW = 24
"""Products that come in a night, in the place of as many."""

MAX_ERROR = 0.05
BRANDS = ("Ono", "Ylva")


def test_a_catalogue(shuffled: list[Path], encoder: Path, commands: Commands) -> None:
    of_customers = write_tables(shuffled, commands)
    with web_server(commands.place) as shop:
        export(shuffled[:N_PRODUCTS], shop.url, commands)
        commands.index("products.csv", encoder, "shop", "--no-labels")
        known = ("--gallery", "products.csv", "--max-error", MAX_ERROR)
        commands.run("calibrate", "bundles/shop", "--queries", "asked.csv", *known)
    commands.run(
        *("evaluate", "bundles/shop", "--queries", "later.csv"), *("--out", "evaluation.json")
    )
    stream = json.loads((commands.place / "evaluation.json").read_text())["stream"]
    assert stream["coverage"] > 0.3
    assert stream["error"] <= 2 * MAX_ERROR  # of 130 queries
    galleries = str(commands.place / "galleries")
    with commands.serve("shop", canary_period_s="0.5", galleries=galleries) as service:
        address = f"http://127.0.0.1:{service.port}"
        with VouchClient(address) as vouch:
            ask_as_customers(service, vouch, of_customers)
            change_in_the_night(service, vouch, shuffled)
            open_another_shop(vouch, shuffled[0])


def write_tables(products: list[Path], commands: Commands) -> list[tuple[Path, str]]:
    """Photograph products as customers do, and write what they show; return the later ones."""
    folder = commands.place / "customers"
    folder.mkdir()
    shown = [*range(N_ASKED + N_LATER), *range(N_PRODUCTS, N_PRODUCTS + 2 * N_OTHERS)]
    lines = []
    for number in shown:
        path = folder / f"{number:04d}.jpg"
        path.write_bytes(photographed(products[number], number))
        sku = f"sku-{number:04d}" if number < N_PRODUCTS else ""
        lines.append({"path": path.relative_to(commands.place), "item": sku})
    ends = N_ASKED, N_ASKED + N_LATER, N_ASKED + N_LATER + N_OTHERS
    commands.write_table("asked.csv", lines[: ends[0]] + lines[ends[1] : ends[2]])
    later = lines[ends[0] : ends[1]] + lines[ends[2] :]
    commands.write_table("later.csv", later)
    return [(commands.place / str(line["path"]), str(line["item"])) for line in later]


def photographed(path: Path, number: int) -> bytes:
    """Return a product as a customer photographs it."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return as_jpeg(Image.fromarray(strong_view(pixels, np.random.default_rng([number, 3]))))


def export(products: Sequence[Path], url: str, commands: Commands) -> None:
    """Write the catalogue as a shop's database exports it: URLs, and columns of its own."""
    commands.write_table(
        "products.csv",
        [
            {
                "id": f"sku-{number:04d}",
                "path": f"{url}/{path.relative_to(commands.place)}",
                "brand": BRANDS[number % 2],
                "price": 5 + number,
            }
            for number, path in enumerate(products)
        ],
    )


def ask_as_customers(
    service: Service, vouch: VouchClient, of_customers: list[tuple[Path, str]]
) -> None:
    """Ask, take what may be accepted at another error, and look within one brand."""
    answers = [service.answer(path.read_bytes(), gallery="shop") for path, _ in of_customers]
    # The error is bounded where 1 in 20 queries is absent; of those in hand more than half are.
    right = matches(answers[:N_LATER], [sku for _, sku in of_customers[:N_LATER]], "id")
    assert len(right) > N_LATER / 3
    assert right.count(False) <= 2 * MAX_ERROR * len(right)
    point = vouch.operating_point("shop", max_error=0.1)
    assert point is not None, "so many queries are enough for 0.1, and not for MAX_ERROR"
    assert point.error_bound <= 0.1
    assert point.false_match_bound is not None
    assert verdicts(answers[N_LATER:])["match"] <= min(point.false_match_bound, 0.3) * N_OTHERS
    path, sku = next(
        one for one, answer in zip(of_customers, answers, strict=True) if is_match(answer)
    )
    brand = BRANDS[int(sku[-4:]) % 2]
    within = service.answer(
        path.read_bytes(), gallery="shop", filter=json.dumps({"brand": brand}), limit=5
    )
    assert {one["metadata"]["brand"] for one in within["results"]} == {brand}
    whole = service.answer(path.read_bytes(), gallery="shop")["results"][0]
    assert within["results"][0]["match_probability"] == whole["match_probability"]


def is_match(answer: dict[str, Any]) -> bool:
    return bool(answer["verdict"] == "match")


def change_in_the_night(service: Service, vouch: VouchClient, products: list[Path]) -> None:
    """Exchange a part of the products; the calibration is fitted again, and they are found."""
    before = service.http.get("/v1/galleries/shop").json()["bundle"]["id"]
    come = range(N_PRODUCTS + 2 * N_OTHERS, N_PRODUCTS + 2 * N_OTHERS + N_NEW)
    vouch.put_items("shop", [(f"sku-{number:04d}", products[number]) for number in come])
    for number in range(N_PRODUCTS - N_NEW, N_PRODUCTS):
        vouch.delete_item("shop", f"sku-{number:04d}")
    wait_for_another_bundle(service, "shop", before)
    answers = [
        service.answer(photographed(products[number], number), gallery="shop") for number in come
    ]
    right = matches(answers, [f"sku-{number:04d}" for number in come], "id")
    assert len(right) > N_NEW / 3
    assert right.count(False) <= 2


def open_another_shop(vouch: VouchClient, picture: Path) -> None:
    """Create a gallery of another shop, which finds its own and promises nothing yet."""
    vouch.manage.create("boots")
    vouch.put_item("boots", "one", picture)
    answer = vouch.search("boots", picture)
    assert (answer.verdict, answer.results[0].id) == ("not_calibrated", "one")
    vouch.manage.drop("boots")
