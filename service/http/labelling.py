"""Exports review cases to labelling tools, and imports the annotations of Label Studio.

Label Studio reads JSON tasks with `data` and `predictions`, and writes tasks with `annotations`.
The labelling interface of these tasks is `LABELLING`. FiftyOne reads a folder in its format
`LegacyFiftyOneDataset`: `samples.json`, `metadata.json` and `data`.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from model_store.feedback import Case, Picture
from service.schemas.review import FeedbackRequest, ImportProblem
from service.serving.queries import ReviewerDecision

LABELLING = """<View>
  <Image name="image" value="$image"/>
  <Choices name="decision" toName="image" choice="single" required="true">
    <Choice value="this_item"/><Choice value="not_this_item"/><Choice value="none_of_these"/>
    <Choice value="that_item"/><Choice value="new"/>
  </Choices>
  <Choices name="item" toName="image" choice="single" value="$items"/>
  <TextArea name="other_item" toName="image" maxSubmissions="1" placeholder="id, for that_item"/>
  <TextArea name="comment" toName="image" maxSubmissions="1" placeholder="comment"/>
</View>
"""

_UNFIT = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""Errors that a malformed annotation causes; a `ValidationError` is a `ValueError`."""

_SKEW = timedelta(days=1)
"""How far the clock of a labelling tool may be ahead."""

_NAMES_AN_ITEM = {"this_item", "not_this_item", "that_item"}

Illustrated = tuple[Case, Picture]


def label_studio(cases: Iterable[Illustrated]) -> list[dict[str, Any]]:
    """Return Label Studio tasks with embedded images and a prediction from the served answer."""
    return [
        {
            "data": {
                "image": f"data:{picture.media_type};base64,{_in_base64(picture.data)}",
                "items": [{"value": item.item_id} for item in case.found],
                "labels": {item.item_id: item.label for item in case.found},
                "query_id": case.query_id,
                "gallery": case.gallery,
                "reason": case.reason,
                "verdict": case.verdict,
            },
            "predictions": _predictions(case),
        }
        for case, picture in cases
    ]


def fiftyone(cases: Iterable[Illustrated]) -> bytes:
    """Return a zip file of a FiftyOne dataset: images, and samples with the served answers."""
    packed = io.BytesIO()
    samples = []
    with zipfile.ZipFile(packed, "w") as archive:
        for case, picture in cases:
            suffix = picture.media_type.removeprefix("image/").replace("jpeg", "jpg")
            path = f"data/{case.query_id}.{suffix}"
            archive.writestr(path, picture.data)
            samples.append(_sample(case, path))
        archive.writestr("samples.json", json.dumps({"samples": samples}))
        archive.writestr("metadata.json", json.dumps({"media_type": "image"}))
    return packed.getvalue()


@dataclass(frozen=True, slots=True)
class Annotation:
    """A decision that was made in a labelling tool, and its time in seconds since 1970."""

    review: ReviewerDecision
    decided_at: float


def annotated(tasks: Iterable[object]) -> Iterator[Annotation | ImportProblem]:
    """Read the annotations of Label Studio tasks, without skipped and cancelled annotations."""
    for task in tasks:
        data = task.get("data") if isinstance(task, dict) else None
        query_id = data.get("query_id") if isinstance(data, dict) else None
        if not isinstance(task, dict) or not isinstance(query_id, str):
            detail = "A task has no `data.query_id`: annotate tasks exported from this service."
            yield ImportProblem(query_id=None, detail=detail)
            continue
        annotations = task.get("annotations") or []
        for annotation in annotations if isinstance(annotations, list) else [annotations]:
            try:
                if not annotation.get("was_cancelled"):
                    yield _annotation(query_id, annotation)
            except _UNFIT as error:
                detail = f"The annotation does not fit the labelling interface: {_why(error)}."
                yield ImportProblem(query_id=_named(query_id), detail=detail)


def _predictions(case: Case) -> list[dict[str, Any]]:
    """Return the likelier decision: the first item, or no item; nothing without probabilities."""
    if case.no_match_probability is None:
        return []
    decision, score = "none_of_these", case.no_match_probability
    result = []
    for first in case.found[:1]:
        if first.match_probability is not None and first.match_probability > score:
            decision, score = "this_item", first.match_probability
            result = [_choice("item", first.item_id)]
    result.insert(0, _choice("decision", decision))
    return [{"model_version": case.bundle, "result": result, "score": score}]


def _choice(name: str, value: str) -> dict[str, Any]:
    return {"from_name": name, "to_name": "image", "type": "choices", "value": {"choices": [value]}}


def _sample(case: Case, path: str) -> dict[str, Any]:
    first = case.found[0] if case.found else None
    shown: dict[str, Any] = {
        "filepath": path,
        "tags": [case.reason, *(["drawn"] if case.drawn else [])],
        "metadata": None,
        "query_id": case.query_id,
        "gallery": case.gallery,
        "vouch_verdict": case.verdict,
        "no_match_probability": case.no_match_probability,
        "found": [item.item_id for item in case.found],
        "state": "open" if case.settled_at is None else "settled",
    }
    if first is not None:
        shown["prediction"] = {
            "_cls": "Classification",
            "label": first.label or first.item_id,
            "confidence": first.match_probability,
        }
    return shown


def _annotation(query_id: str, annotation: dict[str, Any]) -> Annotation:
    said: dict[str, object] = {}
    for result in annotation["result"]:
        value = result["value"]
        given = value.get("choices") or value["text"]
        said[result["from_name"]] = given if isinstance(given, str) else given[0]
    decision, item_id = said.get("decision"), said.get("item")
    if decision == "that_item":
        item_id = said.get("other_item") or item_id
    if decision in _NAMES_AN_ITEM and not item_id:
        raise ValueError(f"{decision} names no item")
    # The model of `POST …/feedback` checks an imported decision as one that is sent.
    checked = FeedbackRequest.model_validate(
        {
            "query_id": query_id,
            "decision": decision,
            "item_id": item_id if decision in _NAMES_AN_ITEM else None,
            "reviewer": _annotator(annotation.get("completed_by")),
            "comment": said.get("comment") or None,
        }
    )
    review = ReviewerDecision(
        query_id, checked.decided, checked.item_id, checked.reviewer, checked.comment
    )
    return Annotation(review, _instant(str(annotation["created_at"])))


def _instant(text: str) -> float:
    """Return a time in seconds since 1970; a time without a zone is in UTC."""
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    if at > datetime.now(UTC) + _SKEW:
        raise ValueError("created_at is in the future")
    return at.timestamp()


def _why(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return repr(error)[:200]
    return "; ".join(
        ": ".join([*map(str, one["loc"]), one["msg"]]) for one in error.errors(include_url=False)
    )[:200]


def _named(query_id: str) -> str:
    """Return a query id that can be sent: without unpaired surrogates."""
    return query_id.encode(errors="replace").decode()


def _annotator(who: object) -> str | None:
    """Return the annotator's name. Label Studio exports annotators as numbers or as records."""
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    return None if who is None else f"label-studio:{who}"[:200]


def _in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
