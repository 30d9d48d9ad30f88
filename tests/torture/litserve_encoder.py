"""What `poison.py` compares with: LitServe around the same encoder, in batches of up to eight.

python tests/torture/litserve_encoder.py ENCODER PORT
"""

import sys

import fastapi
import litserve
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image


class EncoderAPI(litserve.LitAPI):  # type: ignore[misc] # LitServe is not installed here
    """Image files to embeddings, as LitServe's documentation has it done."""

    def setup(self, device: str) -> None:
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(sys.argv[1], providers=providers)
        _, self.height, self.width, _ = self.session.get_inputs()[0].shape

    def decode_request(self, request: fastapi.Request) -> NDArray[np.uint8]:
        # What comes here is the form of the request; the annotation is how one asks for it.
        with Image.open(request["image"].file) as image:
            return np.asarray(image.convert("RGB").resize((self.width, self.height)))

    def batch(self, inputs: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        return np.stack(inputs)

    def predict(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        mean: NDArray[np.float32] = self.session.run(["embedding_mean"], {"images": images})[0]
        return mean

    def unbatch(self, means: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        return list(means)

    def encode_response(self, mean: NDArray[np.float32]) -> dict[str, list[float]]:
        return {"embedding_mean": mean.tolist()}


if __name__ == "__main__":
    api = EncoderAPI(max_batch_size=8, batch_timeout=0.05)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
