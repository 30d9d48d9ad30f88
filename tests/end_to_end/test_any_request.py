"""Requests that nobody would write, made from the OpenAPI document, at a running service.

Every answer has a status and a content type that the document names for the operation, keeps the
schema given there, and none is a 5xx. A head that is too large gets 431, whatever it asks for. What
is sent is random.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from requests import PreparedRequest
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from model_store.bundles.bundle import Bundle
from service.http.limits import MAX_HEAD_BYTES
from tests.end_to_end.processes import TIMEOUT_S, Service
from tests.end_to_end.questions import picture, truncated

pytest_plugins = ["schemathesis.pytest.plugin"]
"""For this file alone: whatever else is tested begins a second sooner without it."""

N_EXAMPLES = 25
"""Of each operation, beside those that Schemathesis makes of every bound."""

IMAGES = st.one_of(
    st.sampled_from([*map(picture, ("PNG", "JPEG", "GIF")), truncated(), b""]),
    st.binary(max_size=200),
)

schemathesis.openapi.format("binary", IMAGES)
for media_type in ("image/*", "application/octet-stream"):
    schemathesis.openapi.media_type(media_type, IMAGES)

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


# The document that the service serves: `tests/service/test_openapi.py` compares them.
DOCUMENT = json.loads((Path(__file__).parents[1] / "service" / "openapi.json").read_text("utf-8"))
DOCUMENT["info"]["version"] = "any"
operations = schemathesis.openapi.from_dict(
    DOCUMENT, config=SchemathesisConfig.from_dict({"generation": {"mode": "all"}})
)


@operations.hook
def map_path_parameters(
    context: schemathesis.HookContext, parameters: dict[str, str] | None
) -> dict[str, str] | None:
    """Mostly a gallery that exists: behind the others there is nothing to find."""
    if parameters is not None and "gallery" in parameters and len(str(parameters["gallery"])) % 4:
        return {**parameters, "gallery": "digits"}
    return parameters


@operations.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Now and then an image: few strings are one in base64."""
    said = body.get("image_base64") if isinstance(body, dict) else None
    if isinstance(said, str) and len(said) % 2:
        return {**body, "image_base64": base64.b64encode(picture("PNG")).decode()}
    return body


@operations.parametrize()
@settings(
    max_examples=N_EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_any_request_is_answered_as_documented(
    service: Service, library: Bundle, case: schemathesis.Case[Any]
) -> None:
    sound = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if sound and len(str(case.path_parameters.get("item_id", ""))) % 2:
        case.path_parameters["item_id"] = library.retriever.gallery.items(np.array([0]))[0].id
    response = case.call(base_url=f"http://127.0.0.1:{service.port}", timeout=TIMEOUT_S)
    if response.status_code == 431:  # by the connection, before an operation is looked for
        assert n_head_bytes(response.request) > MAX_HEAD_BYTES
        return
    # A form knows neither types nor null: an empty list in it is a field that is not there.
    form = case.media_type == "multipart/form-data"
    case.validate_response(response, checks=CHECKS if form else [*CHECKS, negative_data_rejection])
    if response.status_code >= 400:
        problem = json.loads(response.content)
        assert problem["status"] == response.status_code
        assert problem["request_id"] == response.headers["x-request-id"][0]


def n_head_bytes(request: PreparedRequest) -> int:
    """The bytes of a request's line and headers, without what separates them."""
    return len(request.url or "") + sum(
        len(name) + len(value) for name, value in request.headers.items()
    )
