"""The tools of ``vouch-mcp``, a server of the Model Context Protocol.

Each tool's answer begins with the verdict in plain words, so that a language model reads the
verdict before the numbers. The numbers follow as structured content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
from pydantic import BaseModel, Field

from model_store.errors import InvalidRequest
from model_store.installation import how_to_install, installed_version
from service import schemas
from service.client.client import VouchClient
from service.client.contract import VouchProblem
from service.client.images import image_named
from service.client.words import (
    assessment_in_words,
    calibration_in_words,
    decision_in_words,
    search_in_words,
)
from service.schemas.keywords import SearchOptions

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The MCP server needs the package mcp, 2.0 or later. {how_to_install('mcp')}"
    ) from error

INSTRUCTIONS = (
    "Vouch searches galleries of images and reports its uncertainty. Every answer begins with a "
    "verdict. Rely on results only if the verdict is `match`. For any other verdict, report the "
    "verdict, and do not present a result as the answer."
)

Image = Annotated[
    str,
    Field(description="Path of an image file, or the file as data:image/png;base64,…"),
]
GalleryName = Annotated[
    str | None, Field(description="Name of the gallery; optional if the service has only one.")
]


class Tools:
    """The tools; each sends one request to the service.

    Parameters
    ----------
    client : client of the service.
    folders : folders whose images may be read; if empty, only images in base64 are accepted.
    """

    def __init__(self, client: VouchClient, folders: Sequence[Path] = ()) -> None:
        self._client, self._folders = client, folders

    def search_image(
        self,
        image: Image,
        gallery: GalleryName = None,
        limit: Annotated[int, Field(ge=1, le=100, description="Results at most.")] = 5,
        filter: Annotated[  # noqa: A002 - the service's own name
            dict[str, Any] | None,
            Field(description='Of items: {"label": "shoe", "year": {"gte": 2000}}.'),
        ] = None,
    ) -> CallToolResult:
        """Search a gallery with an image: the verdict, and the nearest items with probabilities."""
        options: SearchOptions = {"limit": limit}
        if filter is not None:
            options["filter"] = filter
        with _readable_errors():
            answer = self._client.search(self._gallery(gallery), self._image(image), **options)
        return _result(answer, search_in_words(answer))

    def assess(self, image: Image, gallery: GalleryName = None) -> CallToolResult:
        """Assess an image without searching: its kind, its quality, and how uncertain it is."""
        with _readable_errors():
            answer = self._client.assess(self._gallery(gallery), self._image(image))
        return _result(answer, assessment_in_words(answer))

    def decide(
        self,
        query: schemas.VectorFields,
        neighbours: Annotated[
            list[schemas.Neighbour], Field(description="Nearest first, by cosine.")
        ],
        gallery: GalleryName = None,
    ) -> CallToolResult:
        """Decide whether neighbours from another vector store match a query."""
        with _readable_errors():
            answer = self._client.decide(self._gallery(gallery), query, neighbours)
        return _result(answer, decision_in_words(answer))

    def calibration(self, gallery: GalleryName = None) -> CallToolResult:
        """Report the calibration of a gallery, and whether its guarantees hold now."""
        with _readable_errors():
            report = self._client.calibration(self._gallery(gallery))
        return _result(report, calibration_in_words(report))

    def _image(self, text: str) -> Path | bytes:
        return image_named(text, self._folders)

    def _gallery(self, name: str | None) -> str:
        if name is not None:
            return name
        names = [one.name for one in self._client.galleries()]
        if len(names) != 1:
            raise InvalidRequest(f"Name a gallery, one of: {', '.join(names)}.")
        return names[0]


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Raise errors as tool errors, which the model sees and can correct."""
    try:
        yield
    except (InvalidRequest, VouchProblem) as error:
        raise ToolError(str(error)) from error
    except httpx2.TransportError as error:
        raise ToolError(f"The Vouch service does not answer ({error}). Is it running?") from error


def _result(answer: BaseModel, message: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=message)],
        structured_content=answer.model_dump(mode="json"),
    )


def mcp_server(client: VouchClient, folders: Sequence[Path] = ()) -> MCPServer[Any]:
    """Return the MCP server with all tools."""
    server = MCPServer(
        "vouch", instructions=INSTRUCTIONS, version=installed_version(), log_level="WARNING"
    )
    tools = Tools(client, folders)
    for tool in (tools.search_image, tools.assess, tools.decide, tools.calibration):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True))
    return server
