"""What a client sends: image files, sound and unsound, as multipart requests."""

from __future__ import annotations

import base64
import io
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2
import numpy as np
from PIL import Image

from tests.support.image_files import encoded


def search(
    client: httpx2.Client, image: bytes, gallery: str = "digits", **options: Any
) -> httpx2.Response:
    """Search with the bytes of an image file."""
    return _upload(client, f"/v1/galleries/{gallery}/search", image, options)


def assess(
    client: httpx2.Client, image: bytes, gallery: str = "digits", **options: Any
) -> httpx2.Response:
    """Ask what is to be thought of an image file before it is searched with."""
    return _upload(client, f"/v1/galleries/{gallery}/assess", image, options)


def embed(
    client: httpx2.Client, image: bytes, gallery: str = "digits", **options: Any
) -> httpx2.Response:
    """Ask for the embedding of an image file."""
    return _upload(client, f"/v1/galleries/{gallery}/embed", image, options)


def search_raw(
    client: httpx2.Client,
    image: bytes,
    gallery: str = "digits",
    media_type: str = "application/octet-stream",
    **options: Any,
) -> httpx2.Response:
    """Search with an image file as the body."""
    return client.post(
        f"/v1/galleries/{gallery}/search/raw",
        content=image,
        params=options,
        headers={"Content-Type": media_type},
    )


def search_json(
    client: httpx2.Client, image: bytes, gallery: str = "digits", **options: Any
) -> httpx2.Response:
    """Search with an image file in base64."""
    body = {"image_base64": base64.b64encode(image).decode(), **options}
    return client.post(f"/v1/galleries/{gallery}/search/json", json=body)


def search_batch(
    client: httpx2.Client, images: Sequence[bytes], gallery: str = "digits", **options: Any
) -> httpx2.Response:
    """Search with many image files, named by their places."""
    return client.post(
        f"/v1/galleries/{gallery}/search/batch",
        files=[("images", (f"{place}.png", image)) for place, image in enumerate(images)],
        data={name: str(value) for name, value in options.items()},
    )


def _upload(
    client: httpx2.Client, path: str, image: bytes, options: Mapping[str, Any]
) -> httpx2.Response:
    return client.post(
        path,
        files={"image": ("query", image)},
        data={name: str(value) for name, value in options.items()},
    )


def content(answer: dict[str, Any]) -> dict[str, Any]:
    """What an answer says of a picture, whoever else asks, and wherever its numbers come from.

    JSON carries every bit of a double. Left out are what belongs to the request or to its file, and
    whether the calibration still holds, which depends on all the images that were asked before:
    where it does not, a match is withheld.
    """
    names = ("gallery", "query", "results", "no_match_probability", "absent")
    said = {name: answer[name] for name in names}
    chosen = answer["result_set"]
    return {
        **said,
        "verdict": "ambiguous" if answer["verdict"] == "match" else answer["verdict"],
        "query": {**answer["query"], "id": None},
        "result_set": chosen and {name: chosen[name] for name in ("items", "coverage")},
        "bundle": answer["bundle"]["id"],
    }


def unseen(image: bytes) -> bytes:
    """The same picture in another file: what follows a picture's end is not looked at."""
    return image + uuid.uuid4().bytes


def picture(form: str, width: int = 24, height: int = 17, seed: int = 0) -> bytes:
    """A picture of noise, as a file of a format that Pillow writes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def truncated(form: str = "JPEG") -> bytes:
    """The first half of a picture, well past its header."""
    whole = picture(form, 90, 80)
    return whole[: len(whole) // 2]


def boasting_png(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims any size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    header = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + header + b"\0\0\0\0IDAT"


def bad_images() -> list[tuple[bytes, int]]:
    """Truncated files, a bomb, files of no accepted format; and the status each is refused with."""
    grey = np.zeros((8, 8), dtype=np.uint8)
    return [
        (b"", 400),
        (b"%PDF-1.7 is no picture", 415),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 415),
        (encoded(grey, "PPM"), 415),
        (boasting_png(60_000, 60_000), 413),
        (truncated(), 422),
        (truncated("PNG"), 422),
        (truncated("BMP"), 422),
    ]


def search_by_stream(client: httpx2.Client, n_bytes: int) -> httpx2.Response:
    """Upload ``n_bytes`` in small pieces, without ever declaring how many there are."""

    def body() -> Iterator[bytes]:
        yield b'--edge\r\nContent-Disposition: form-data; name="image"; filename="q"\r\n\r\n'
        for start in range(0, n_bytes, 4096):
            yield b"\xff" * min(4096, n_bytes - start)
        yield b"\r\n--edge--\r\n"

    return client.post(
        "/v1/galleries/digits/search",
        content=body(),
        headers={"Content-Type": "multipart/form-data; boundary=edge"},
    )
