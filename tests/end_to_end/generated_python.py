"""What a program does with the client that openapi-python-client has made; prints it as JSON.

It is run beside the generated package `client`, with the address of a service and an image file.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from io import BytesIO
from pathlib import Path
from typing import Any


def main(url: str, photograph: bytes) -> dict[str, Any]:
    client: Any = importlib.import_module("client")
    modules = [module.name for module in pkgutil.walk_packages(client.__path__, "client.")]
    there: Any = {name: importlib.import_module(name) for name in modules}
    models, types = there["client.models"], there["client.types"]
    connection = client.Client(base_url=url)
    searching = "client.api.searching"

    form = models.SearchForm(
        image=types.File(BytesIO(photograph), "photograph.png"), limit=2, filter_='{"label": "7"}'
    )
    found = there[f"{searching}.search"].sync("digits", client=connection, body=form)
    pictures = [types.File(BytesIO(photograph), name) for name in ("a.png", "b.png")]
    batch = there[f"{searching}.search_batch"].sync(
        "digits", client=connection, body=models.SearchBatchForm(images=pictures, limit=1)
    )
    vector = there[f"{searching}.embed"].sync(
        "digits",
        client=connection,
        body=models.AssessmentForm(image=types.File(BytesIO(photograph), "photograph.png")),
    )
    again = there[f"{searching}.search_vector"].sync(
        "digits",
        client=connection,
        body=models.VectorSearchRequest(
            mean=vector.direction, outlier_score=vector.outlier_score, limit=2
        ),
    )
    listed = there["client.api.items.list_items"].sync("digits", client=connection, limit=2)
    empty = models.SearchForm(image=types.File(BytesIO(b""), "empty.png"))
    problem = there[f"{searching}.search"].sync("digits", client=connection, body=empty)
    return {
        "n_modules": len(modules),
        "found": [result.id for result in found.results],
        "labels": [result.label for result in found.results],
        "verdict": str(found.verdict),
        "batch": [one.answer.results[0].id for one in batch.items],
        "by_vector": [result.id for result in again.results],
        "listed": [item.id for item in listed.items],
        "problem": problem.code,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]).read_bytes())))
