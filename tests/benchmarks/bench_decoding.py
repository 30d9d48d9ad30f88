"""What reduced decoding saves of a phone's photograph: 12 megapixels to an input of 224 pixels.

CPU time of decoding and resizing, as the service and the builder do it, over that of decoding in
full; in turns, in this process.

    python -m tests.benchmarks.bench_decoding
"""

from __future__ import annotations

import io
import json
import statistics
import time
from typing import Literal

import numpy as np
from PIL import Image

from model_store.images import Preprocessing, decode_image

N_ROUNDS = 9
SIZE = (4000, 3000)


def measure() -> dict[str, float]:
    """Medians in milliseconds of CPU time, and their ratio."""
    data = photograph()
    seconds: dict[Literal["full", "reduced"], list[float]] = {"full": [], "reduced": []}
    for _ in range(N_ROUNDS):
        for decoding, spent in seconds.items():
            preprocessing = Preprocessing(224, 224, decoding=decoding)
            started = time.process_time()
            preprocessing(decode_image(data, smallest_side=preprocessing.smallest_side).pixels)
            spent.append(time.process_time() - started)
    median = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    return {
        "decode_reduced_over_full": median["reduced"] / median["full"],
        "decode_reduced_cpu_ms": median["reduced"],
        "decode_full_cpu_ms": median["full"],
    }


def photograph() -> bytes:
    """A JPEG of 12 megapixels and some 3 MB."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
