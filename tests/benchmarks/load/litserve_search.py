"""The same search behind LitServe, as its documentation has it done: batches of up to eight.

    python -m tests.benchmarks.load.litserve_search BUNDLE --port PORT

It runs in an environment of its own, which has LitServe and the core's dependencies.
"""

import argparse
from pathlib import Path
from typing import Any

import fastapi
import litserve
import numpy as np

from model_store import open_bundle
from model_store.images import decode_image
from model_store.predictive import Predictive

LIMIT = 10


class SearchAPI(litserve.LitAPI):  # type: ignore[misc] # LitServe is not installed here
    """Image files to what `vouch-serve` answers first."""

    bundle = Path()

    def setup(self, device: str) -> None:
        self.retriever = open_bundle(self.bundle, provider="cpu", threads=1).retriever

    def decode_request(self, request: fastapi.Request) -> Any:
        # What comes here is the form of the request; the annotation is how one asks for it.
        side = self.retriever.encoder.metadata.preprocessing.smallest_side
        data = request["image"].file.read()
        return self.retriever.prepare(decode_image(data, smallest_side=side))

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, images: Any) -> list[Predictive]:
        return self.retriever.embed(images)

    def unbatch(self, predictives: list[Predictive]) -> list[Predictive]:
        return predictives

    def encode_response(self, predictive: Predictive) -> dict[str, Any]:
        answer = self.retriever.find(predictive, LIMIT)
        return {
            "verdict": answer.decision.verdict,
            "results": [
                {"id": match.id, "probability": match.match_probability} for match in answer.matches
            ],
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    api = SearchAPI(max_batch_size=8, batch_timeout=0.05)
    api.bundle = options.bundle  # of the object: it is sent to a process of its own
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False, log_level="warning")
