"""What Schemathesis has to know of the service: images, galleries that exist, texts with a meaning.

A schema cannot say which cursor is one, or which bytes are an image. The check that comes with
Schemathesis takes each refusal of such a value for a fault; the one below asks that a request that
keeps the schema is refused for the meaning of a value alone, never for its shape.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import schemathesis
from hypothesis import strategies as st

from tests.end_to_end.questions import picture, truncated

IMAGES = st.one_of(
    st.sampled_from([*map(picture, ("PNG", "JPEG", "GIF")), truncated(), b""]),
    st.binary(max_size=200),
)
TEXTS = ("filter", "items", "label", "metadata", "source")
"""Fields of forms that may hold any text."""

FILTERS = ('{"label": "7"}', '{"year": {"gte": 2000}}', '{"not": {"id": {"in": ["a", "b"]}}}')

_BEYOND_SCHEMAS = re.compile("/item_ids?(/|$)|/id$|^/body/(items|metadata)(/|$)")
"""Which characters of an id are printable is a matter of Unicode; documents in the fields of a form
are texts to generators."""

schemathesis.openapi.format("binary", IMAGES)
for media_type in ("image/*", "application/octet-stream"):
    schemathesis.openapi.media_type(media_type, IMAGES)


def _is_chosen(text: str) -> bool:
    """Return true for half of all texts, the same ones each time."""
    return sum(text.encode()) % 2 == 0


@schemathesis.hook
def map_path_parameters(
    context: schemathesis.HookContext, parameters: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Mostly a gallery that exists: behind the others there is nothing to find."""
    if parameters and "gallery" in parameters and len(str(parameters["gallery"])) % 4:
        return {**parameters, "gallery": "digits"}
    return parameters


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Leave out forms that violate nothing: an empty field was not sent, and all else is text."""
    body: Any = case.body
    if case.media_type != "multipart/form-data" or not isinstance(body, dict):
        return True
    texts = [body[name] for name in TEXTS if name in body]
    return "" not in body.values() and all(isinstance(text, str) for text in texts)


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]
) -> None:
    """Give values a meaning where the request keeps the schema: half of the filters and images."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    asked = case.query.get("filter") if case.query else None
    if isinstance(asked, str) and _is_chosen(asked):
        case.query["filter"] = FILTERS[len(asked) % len(FILTERS)]
    body: Any = case.body
    if not isinstance(body, dict):
        return
    encoded = body.get("image_base64")
    if isinstance(encoded, str) and _is_chosen(encoded):
        body["image_base64"] = base64.b64encode(picture("PNG")).decode()


@schemathesis.check
def is_refused_for_its_meaning_alone(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """A request that keeps the schema has the right shape."""
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or response.status_code // 100 != 4:
        return
    problem = json.loads(response.content)
    if problem["code"] in {"invalid_head", "invalid_form"}:
        assert response.status_code == 431, problem["detail"]
    wrong = {one["pointer"] for one in problem.get("errors", ())}
    wrong.discard("/body")  # of several fields together
    if meta.phase.name == "stateful":  # where links read ids from null
        wrong = {pointer for pointer in wrong if not pointer.startswith("/path/")}
    wrong = {pointer for pointer in wrong if not _BEYOND_SCHEMAS.search(pointer)}
    assert not wrong, problem["detail"]
