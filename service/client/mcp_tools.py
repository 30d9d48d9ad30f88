"""The tools of ``vouch-mcp``, a server of the Model Context Protocol.

Each tool's answer begins with the verdict in plain words, so that a language model reads the
verdict before the numbers. The numbers follow as structured content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
from pydantic import BaseModel, Field, create_model

from model_store.errors import InvalidRequest
from model_store.installation import how_to_install, installed_version
from model_store.messages import Verdict
from service import schemas
from service.client.client import VouchClient
from service.client.contract import VouchProblem
from service.client.vouched import image_named
from service.schemas.base import RequestModel
from service.schemas.keywords import SearchOptions

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
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
        with self._readable_errors():
            answer = self._client.search(self._gallery(gallery), self._image(image), **options)
        return _result(answer, search_in_words(answer))

    def assess(self, image: Image, gallery: GalleryName = None) -> CallToolResult:
        """Assess an image without searching: its kind, its quality, and how uncertain it is."""
        with self._readable_errors():
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
        with self._readable_errors():
            answer = self._client.decide(self._gallery(gallery), query, neighbours)
        return _result(answer, decision_in_words(answer))

    def calibration(self, gallery: GalleryName = None) -> CallToolResult:
        """Report the calibration of a gallery, and whether its guarantees hold now."""
        with self._readable_errors():
            report = self._client.calibration(self._gallery(gallery))
        return _result(report, calibration_in_words(report))

    def _image(self, text: str) -> Path | bytes:
        return image_named(text, self._folders)

    def _gallery(self, name: str | None) -> str:
        if name is not None:
            return name
        names = self._names()
        if len(names) != 1:
            raise InvalidRequest(_choose_from(names))
        return names[0]

    def _names(self) -> list[str]:
        return [one.name for one in self._client.galleries()]

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Raise errors as tool errors, which the model sees and can correct."""
        try:
            try:
                yield
            except VouchProblem as error:
                if error.code != "gallery_not_found":
                    raise
                said = f"{error.status} {error.code}: {_choose_from(self._names())}"
                raise InvalidRequest(said) from error
        except (InvalidRequest, VouchProblem) as error:
            raise ToolError(str(error)) from error
        except httpx2.TransportError as error:
            raise ToolError(
                f"The Vouch service does not answer ({error}). Is it running?"
            ) from error


def _choose_from(galleries: Sequence[str]) -> str:
    if not galleries:
        return "The service has no gallery. Its operator must create one."
    return f"Name a gallery, one of: {', '.join(galleries)}."


def _result(answer: BaseModel, message: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=message)],
        structured_content=answer.model_dump(mode="json"),
    )


def mcp_server(client: VouchClient, folders: Sequence[Path] = ()) -> MCPServer[Any]:
    """Return the MCP server with all tools."""
    tools = Tools(client, folders)
    methods = (tools.search_image, tools.assess, tools.decide, tools.calibration)
    return MCPServer(
        "vouch",
        instructions=INSTRUCTIONS,
        version=installed_version(),
        tools=[_tool(method) for method in methods],
        log_level="WARNING",
    )


def _tool(method: Callable[..., CallToolResult]) -> Tool:
    """Return a tool that refuses unknown arguments; by default, mcp ignores them."""
    tool = Tool.from_function(method, annotations=ToolAnnotations(read_only_hint=True))
    known: type[Any] = tool.fn_metadata.arg_model
    strict = {"arg_model": create_model(known.__name__, __base__=(known, RequestModel))}
    tool.fn_metadata = tool.fn_metadata.model_copy(update=strict)
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema()
    return tool


VERDICT_WORDS: dict[Verdict, str] = {
    "match": "The first result is a confident match.",
    "ambiguous": "A result may match, but the error bound does not cover it. Compare by eye.",
    "no_match": "The gallery probably has no match. Results, if any, are look-alikes.",
    "out_of_distribution": "The image is unlike the calibration images. Results are unreliable.",
    "not_calibrated": "The gallery is not calibrated: results are ranked, without probabilities.",
}

_CALIBRATION_WORDS: dict[schemas.CalibrationStatus, str] = {
    "valid": "The calibration is valid: you can rely on probabilities and verdicts.",
    "drifting": "Recent queries differ from the calibration queries: no guarantee holds now.",
    "stale": "The calibration is stale: no query gets `match`, and no guarantee holds.",
    "missing": VERDICT_WORDS["not_calibrated"],
}

_SIZES = {"one": "one item", "few": "2 to 5 items", "many": "more than 5 items"}


def search_in_words(answer: schemas.SearchAnswer) -> str:
    """Return the answer to a search as text."""
    found = [(one.id, one.label, one.similarity, one.match_probability) for one in answer.results]
    return _lines([*_verdict(answer), *_query(answer.query), *_ranked(found)])


def decision_in_words(answer: schemas.DecisionAnswer) -> str:
    """Return the text that describes a decision on neighbours from another store."""
    found = [
        (one.id, one.label, one.similarity, one.match_probability) for one in answer.neighbours
    ]
    return _lines([*_verdict(answer), *_query(answer.query), *_ranked(found[:10])])


def assessment_in_words(answer: schemas.AssessmentAnswer) -> str:
    """Return an assessment as text. It has no verdict, so the text begins with the outlier test."""
    ood = answer.query.ood
    if ood.flag:
        parts = f"out_of_distribution: {VERDICT_WORDS['out_of_distribution']}"
    elif ood.flag is None and answer.bundle.calibration.status == "missing":
        parts = f"not_calibrated: {VERDICT_WORDS['not_calibrated']}"
    elif ood.flag is None:
        parts = f"not tested: {ood.reason}"
    else:
        parts = "ordinary: This is the kind of image that the model knows; search with it."
    hints = [f"{one.code}: {one.advice}" for one in answer.quality.hints]
    return _lines([parts, *_query(answer.query), *hints])


def calibration_in_words(report: schemas.CalibrationReport) -> str:
    """Return the calibration of a gallery as text."""
    parts = [f"{report.status}: {_CALIBRATION_WORDS[report.status]}"]
    if report.status != "missing":
        parts.append(f"Calibrated with {report.n_queries} queries.")
    if report.point is not None:
        point = report.point
        parts.append(
            f"{_percent(point.coverage)} of queries get a match; {_percent(point.error)} of these "
            f"matches are wrong, at most {_percent(point.error_bound)} with confidence "
            f"{_percent(1 - (report.delta or 0))}."
        )
    parts += [
        f"No {'`match`' if one.threshold is None else 'guarantee'} for labels with "
        f"{_SIZES[one.size_class]}: {one.reason}"
        for one in report.matches
        if one.reason is not None and one.n_labels > 0
    ]
    if report.top1_ece is not None:
        parts.append(f"Expected calibration error of first results: {report.top1_ece:.3f}.")
    parts += [
        f"AUROC of the outlier test against {kind} images: {value:.3f}."
        for kind, value in report.outlier_auroc.items()
    ]
    return _lines(parts)


def _verdict(answer: schemas.SearchAnswer | schemas.DecisionAnswer) -> list[str]:
    words = VERDICT_WORDS[answer.verdict]
    if answer.verdict == "match" and not answer.guaranteed:
        words = "The first result probably matches, without a guarantee."
    parts = [f"{answer.verdict}: {words}"]
    if answer.reason is not None:
        parts.append(answer.reason)
    if answer.roll_up is not None:
        rolled = answer.roll_up
        parts.append(
            f"The label is uncertain; its parent {rolled.label!r} ({rolled.level}) has the "
            f"probability {_percent(rolled.probability)}."
        )
    if answer.no_match_probability is not None:
        searched = "the gallery has no match"
        if isinstance(answer, schemas.SearchAnswer) and answer.explain is not None:
            searched = "no item that passes the filter is a match"
        parts.append(f"Probability that {searched}: {_percent(answer.no_match_probability)}.")
    return parts


def _query(query: schemas.Query) -> list[str]:
    parts = []
    if query.uncertainty.percentile is not None:
        spread = _percent(query.uncertainty.percentile / 100)
        parts.append(f"Less certain than {spread} of ordinary queries.")
    if query.ood.p_value is not None:
        parts.append(f"Outlier test: p = {query.ood.p_value:.3g}, alpha = {query.ood.alpha:g}.")
    return parts


def _ranked(found: Iterable[tuple[str, str | None, float, float | None]]) -> list[str]:
    """Return one line per item: label, similarity and probability."""
    return [
        f"{rank}. {item_id}"
        + (f" ({label})" if label is not None else "")
        + f": similarity {similarity:.3f}"
        + (f", match probability {_percent(probability)}" if probability is not None else "")
        for rank, (item_id, label, similarity, probability) in enumerate(found, 1)
    ]


def _percent(share: float) -> str:
    """Return a share in percent; a share close to 0 or 1 is never rounded to 0 % or 100 %."""
    if 0.999 < share < 1:
        return "over 99.9 %"
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.1f} %"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
