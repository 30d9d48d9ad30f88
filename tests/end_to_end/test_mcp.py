"""The server of the Model Context Protocol, started by its command, asked by mcp's own client."""

from __future__ import annotations

import base64
import io
import itertools
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import anyio
import httpx2
import numpy as np
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from PIL import Image

from model_store.bundles.bundle import Bundle
from service.client import VouchClient, VouchProblem
from service.client.mcp_tools import Tools, mcp_server
from service.schemas import Neighbour, Problem, VectorFields
from tests.end_to_end.processes import Service

COMMAND = "from service.client.mcp_server import main; main()"


def ask(service: Service, folder: Path, tool: str, **arguments: Any) -> CallToolResult:
    """The answer of a tool of a server that may read images in ``folder``."""
    answer: CallToolResult = with_server(
        service, folder, lambda client: client.call_tool(tool, arguments)
    )
    return answer


def with_server(service: Service, folder: Path, use: Callable[[Client], Awaitable[Any]]) -> Any:
    url = str(service.http.base_url)
    program = ["-c", COMMAND, "--url", url, "--images", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=program)

    async def used() -> Any:
        async with Client(stdio_client(server)) as client:
            return await use(client)

    return anyio.run(used)


def text(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


def sample(library: Bundle, *, verdict: str) -> Path:
    """A sample query that gets that verdict."""
    files = [library.directory / one.file for one in library.manifest.samples]
    return next(path for path in files if verdict_on(library, path) == verdict)


def ambiguous(library: Bundle, place: Path) -> Path:
    """A blend of two items' thumbnails that looks like both of them."""
    gallery = library.retriever.gallery
    path = place / "blend.png"
    for pair in itertools.combinations(gallery.items(np.arange(40)), 2):
        first, second = (Image.open(io.BytesIO(gallery.thumbnail(item.id).data)) for item in pair)
        Image.blend(first.convert("RGB"), second.convert("RGB"), 0.5).save(path)
        if verdict_on(library, path) == "ambiguous":
            return path
    raise AssertionError("no blend of two items is ambiguous")


def verdict_on(library: Bundle, path: Path) -> str:
    return library.retriever.search(path.read_bytes()).decision.verdict


def test_its_tools_are_named_and_read_only(service: Service, tmp_path: Path) -> None:
    async def listed(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = with_server(service, tmp_path, listed)
    assert {tool.name for tool in tools} == {"search_image", "assess", "decide", "calibration"}
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools)


@pytest.mark.parametrize("verdict", ["match", "ambiguous", "out_of_distribution"])
def test_a_search_begins_with_the_verdict(
    service: Service, library: Bundle, verdict: str, tmp_path: Path
) -> None:
    image = (
        ambiguous(library, tmp_path) if verdict == "ambiguous" else sample(library, verdict=verdict)
    )
    found = ask(service, image.parent, "search_image", image=str(image), limit=2)
    assert text(found).startswith(f"{verdict}: ")
    expected = library.retriever.search(image.read_bytes(), limit=2)
    assert found.structured_content["verdict"] == verdict
    assert [one["id"] for one in found.structured_content["results"]] == [
        one.id for one in expected.matches
    ]
    assert f"1. {expected.matches[0].id}" in text(found)


def test_an_image_in_base64_is_assessed(service: Service, library: Bundle, tmp_path: Path) -> None:
    for verdict, begins in (("match", "ordinary: "), ("out_of_distribution",) * 2):
        image = sample(library, verdict=verdict)
        uri = "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
        assessed = ask(service, tmp_path, "assess", image=uri, gallery="digits")
        assert text(assessed).startswith(begins)
        assert assessed.structured_content["query"]["ood"]["flag"] == (verdict != "match")


def test_neighbours_are_decided_on_as_by_the_service(
    service: Service, library: Bundle, tmp_path: Path
) -> None:
    image = sample(library, verdict="match")
    with VouchClient(str(service.http.base_url)) as client:
        embedded = client.embed("digits", image)
        first = client.search("digits", image, limit=100)
        second = client.search_next(first)
        assert second is not None
        query = VectorFields(mean=embedded.direction, outlier_score=embedded.outlier_score)
        neighbours = [
            Neighbour(id=one.id, label=one.label, similarity=one.similarity)
            for one in [*first.results, *second.results]
        ]
        expected = client.decide("digits", query, neighbours)
    decided = ask(
        service,
        tmp_path,
        "decide",
        query=query.model_dump(exclude_none=True),
        neighbours=[one.model_dump(exclude_none=True) for one in neighbours],
    )
    assert text(decided).startswith(f"{expected.verdict}: ")
    assert decided.structured_content["neighbours"] == [
        one.model_dump(mode="json") for one in expected.neighbours
    ]


def test_the_calibration_begins_with_whether_it_holds(service: Service, tmp_path: Path) -> None:
    said = ask(service, tmp_path, "calibration")
    assert text(said).startswith("valid: ")
    assert f"{said.structured_content['n_queries']} queries" in text(said)
    [promise] = said.structured_content["matches"]
    assert f"No guarantee for labels with more than 5 items: {promise['reason']}" in text(said)


def test_what_is_wrong_is_said_to_the_model(
    service: Service, library: Bundle, tmp_path: Path
) -> None:
    elsewhere = sample(library, verdict="match")
    (tmp_path / "link.png").symlink_to(elsewhere)
    (tmp_path / "notes.txt").write_text("not an image")
    wrong = [
        ({"image": str(elsewhere)}, "is outside of the allowed folders"),
        ({"image": str(tmp_path / "link.png")}, "is outside of the allowed folders"),
        ({"image": str(tmp_path / "missing.png")}, "no file"),
        ({"image": str(tmp_path / "notes.txt")}, "unsupported_image"),
        ({"image": "data:image/png,x"}, "base64"),
        (
            {"image": str(tmp_path / "notes.txt"), "gallery": "nobody"},
            "404 gallery_not_found: Name a gallery, one of: digits.",
        ),
    ]

    async def all_asked(client: Client) -> list[Any]:
        return [await client.call_tool("search_image", asked) for asked, _ in wrong]

    for refused, (_, said) in zip(with_server(service, tmp_path, all_asked), wrong, strict=True):
        assert refused.is_error
        assert said in text(refused)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("search_image", {"limt": 3}),
        ("assess", {"galery": "digits"}),
        ("calibration", {"galery": "digits"}),
        ("decide", {"neighbour": []}),
    ],
)
def test_misspelt_argument_is_named_to_the_model(
    service: Service, library: Bundle, tool: str, arguments: dict[str, Any]
) -> None:
    image = sample(library, verdict="match")
    given = {"image": str(image)} if tool in {"search_image", "assess"} else {}
    refused = ask(service, image.parent, tool, **given, **arguments)
    [name] = arguments
    assert refused.is_error
    assert re.search(rf"{name}\n  is not a field here; did you mean `\w+`\?", text(refused))


def test_a_service_that_is_not_there_is_said_to_the_model() -> None:
    async def asked() -> Any:
        with VouchClient("http://127.0.0.1:1") as nobody:
            async with Client(mcp_server(nobody)) as client:
                return await client.call_tool("calibration", {"gallery": "digits"})

    refused = anyio.run(asked)
    assert refused.is_error
    assert "does not answer" in text(refused)


@pytest.mark.parametrize(
    ("galleries", "said"),
    [
        ([[]], "404 gallery_not_found: The service has no gallery."),
        (httpx2.ConnectError("refused"), "The Vouch service does not answer (refused)."),
    ],
)
def test_a_gallery_that_is_not_there_is_said_although_none_can_be_named(
    galleries: Any, said: str
) -> None:
    client = create_autospec(VouchClient, instance=True)
    client.calibration.side_effect = VouchProblem(
        Problem(
            type="about:blank",
            title="Not found",
            status=404,
            detail="There is none.",
            instance="/",
            code="gallery_not_found",
            request_id="1",
        )
    )
    client.galleries.side_effect = galleries
    with pytest.raises(ToolError, match=re.escape(said)):
        Tools(client).calibration("digits")
