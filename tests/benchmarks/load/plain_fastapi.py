"""A service as one would write it: FastAPI, an encoder, and the same search behind it.

With `none` it takes the same upload and answers without looking at it: what FastAPI itself costs.

python -m tests.benchmarks.load.plain_fastapi torch|onnx|none --port PORT
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI, UploadFile

from model_store import Retriever, open_bundle
from model_store.encoder.contract import Embeddings
from model_store.images import decode_image
from tests.benchmarks.bench_throughput import BUNDLES, CONFIG, LIMIT, RUN


def with_torch(whole: Retriever) -> Retriever:
    """The same retriever with its encoder in torch, on one thread."""
    import torch

    from index_builder.configuration.build import BuildConfig
    from index_builder.networks import load_encoder
    from index_builder.pipeline.run import Run
    from index_builder.posteriors.stored import ProbabilisticEncoder, load_posterior

    torch.set_num_threads(1)
    config = BuildConfig.model_validate_json(CONFIG.read_text(encoding="utf-8"))
    run = Run(RUN)
    network = ProbabilisticEncoder(
        load_encoder(config.network, run.checkpoint), load_posterior(run.posterior)
    ).eval()

    class TorchEncoder:
        fingerprint, metadata = whole.encoder.fingerprint, whole.encoder.metadata
        provider, dim = "torch", whole.encoder.dim
        n_features = whole.encoder.n_features

        def encode(self, images: Any, at_once: int | None = None) -> Embeddings:
            with torch.inference_mode():
                return Embeddings(*(part.numpy() for part in network(torch.from_numpy(images))))

        placement = None

        def close(self) -> None: ...

    return Retriever(TorchEncoder(), whole.gallery, whole.calibration)


def answered(retriever: Retriever, image: bytes) -> dict[str, Any]:
    """Answer a query."""
    side = retriever.encoder.metadata.preprocessing.smallest_side
    prepared = retriever.prepare(decode_image(image, smallest_side=side))
    answer = retriever.find(retriever.embed(prepared[None].copy())[0], LIMIT)
    return {
        "verdict": answer.decision.verdict,
        "results": [
            {"id": match.id, "probability": match.match_probability} for match in answer.matches
        ],
    }


def unseen(_: bytes) -> dict[str, Any]:
    """Return an answer of that size."""
    return {
        "verdict": "match",
        "results": [{"id": str(number), "probability": 0.5} for number in range(LIMIT)],
    }


def answers(encoder: str) -> Callable[[bytes], dict[str, Any]]:
    """Return what answers with that encoder."""
    if encoder == "none":
        return unseen
    retriever = open_bundle(BUNDLES, provider="cpu", threads=1).retriever
    return partial(answered, with_torch(retriever) if encoder == "torch" else retriever)


def main() -> None:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("encoder", choices=["torch", "onnx", "none"])
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    answer = answers(options.encoder)
    app = FastAPI()

    @app.post("/search")
    def search(image: UploadFile) -> dict[str, Any]:
        return answer(image.file.read())

    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
