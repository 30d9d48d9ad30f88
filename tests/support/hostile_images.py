"""Files that were made, or damaged, to hurt whoever decodes them."""

from __future__ import annotations

import functools
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
from PIL import Image

from tests.support.image_files import encoded, picture, png, png_chunk, seeds

SIZES = (0, 1, 2, 255, 16_383, 32_768, 60_000, 65_535, 2**31 - 1, 2**32 - 1)

Tag = tuple[int, int, int, int]
"""Of a TIFF: what, of which type, how many, and the value or where it is."""

ONE_PIXEL: list[Tag] = [
    (256, 4, 1, 1),
    (257, 4, 1, 1),
    (258, 3, 1, 8),
    (259, 3, 1, 1),
    (262, 3, 1, 1),
    (273, 4, 1, 8),
    (278, 4, 1, 1),
    (279, 4, 1, 1),
]


def cases(n_cases: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """So many different hostile files, the same for the same ``seed``, each with a name.

    First every file of `contrived`, and every seed cut at each twentieth; then mutations, of which
    there is no end.
    """
    return islice(_endless(random.Random(seed)), n_cases)


def _endless(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    yield from contrived().items()
    for name, data in seeds().items():
        for part in range(1, 20):
            yield f"{name}, {5 * part} %", data[: len(data) * part // 20]
    names = list(seeds())
    for number in count():
        name = rng.choice(names)
        how = rng.choice(MUTATIONS)
        yield f"{name}, {how.__name__} {number}", how(seeds()[name], rng)


def flipped(data: bytes, rng: random.Random) -> bytes:
    """A few bytes have another value."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 12)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def flipped_header(data: bytes, rng: random.Random) -> bytes:
    """A few of the first bytes have a telling value."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(min(100, len(changed)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
    return bytes(changed)


def resized(data: bytes, rng: random.Random) -> bytes:
    """The header speaks of another width, or height."""
    size = rng.choice(SIZES)
    changed = bytearray(data)
    if data.startswith(b"\x89PNG"):
        struct.pack_into(">I", changed, rng.choice((16, 20)), size)
    elif data.startswith(b"GIF"):
        struct.pack_into("<H", changed, rng.choice((6, 8)), size & 0xFFFF)
    elif data.startswith(b"BM"):
        struct.pack_into("<I", changed, rng.choice((18, 22)), size)
    elif data.startswith(b"\xff\xd8"):
        frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        struct.pack_into(">H", changed, frame + rng.choice((5, 7)), size & 0xFFFF)
    elif data.startswith(b"RIFF"):
        place = rng.choice((24, 27) if data[12:16] == b"VP8X" else (26, 28))
        struct.pack_into("<H", changed, place, size & 0xFFFF)
    else:  # TIFF: the entry of some tag
        struct.pack_into("<I", changed, min(len(data) - 4, 18 + 12 * rng.randrange(12)), size)
    return _checked(bytes(changed))


def cut_and_joined(data: bytes, rng: random.Random) -> bytes:
    """A piece is missing, or there twice, or zeros."""
    first, last = sorted(rng.randrange(len(data)) for _ in range(2))
    piece = rng.choice(
        (b"", data[first:last] * 2, bytes(last - first), rng.randbytes(last - first))
    )
    return data[:first] + piece + data[last:]


def crossed(data: bytes, rng: random.Random) -> bytes:
    """The beginning of one file, the rest of another."""
    other = rng.choice(list(seeds().values()))
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def truncated(data: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(1, len(data))]


def repaired(data: bytes, rng: random.Random) -> bytes:
    """Damaged, but with all checksums right again."""
    return _checked(flipped(data, rng))


MUTATIONS = (flipped, flipped_header, resized, cut_and_joined, crossed, truncated, repaired)


def _checked(data: bytes) -> bytes:
    """A PNG file with the checksums of its chunks made right; anything else as it is."""
    if not data.startswith(b"\x89PNG"):
        return data
    repaired, place = data[:8], 8
    while place + 12 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        if place + 12 + length > len(data):
            break
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        repaired += png_chunk(kind, content)
        place += 12 + length
    return repaired + data[place:]


@functools.cache
def contrived() -> dict[str, bytes]:
    """Files that somebody sat down to make."""
    return {**_bombs(), **_metadata(), **_shapes(), **_polyglots(), **_strangers()}


def _bombs() -> dict[str, bytes]:
    """Small files that claim, or need, very much."""
    return {
        "PNG of 3.6 gigapixels": png(60_000, 60_000, 8, 2, bytes(1000)),
        "PNG of 36 megapixels of nothing": png(6000, 6000, 8, 0, bytes(6001 * 6000)),
        "PNG whose data never end": png(30, 30, 8, 2, bytes(20_000_000)),
        "PNG of 16-bit colours, 39 megapixels declared": png(6245, 6245, 16, 6, bytes(1000)),
        "JPEG of thousands of scans": scan_bomb(2000),
        "JPEG of a hundred scans": scan_bomb(100),
        "JPEG of 4 gigapixels": resized_jpeg(65_535, 65_535),
        "GIF of one pixel on 36 megapixels": gif((6000, 6000), [(0, 0, 1, 1)]),
        "GIF of one pixel on 4 gigapixels": gif((65_535, 65_535), [(0, 0, 1, 1)]),
        "GIF whose frame is larger than its canvas": gif((1, 1), [(0, 0, 60_000, 60_000)]),
        "GIF whose frame lies far outside": gif((1, 1), [(65_000, 65_000, 1, 1)]),
        "GIF of 100,000 frames": gif((1, 1), [(0, 0, 1, 1)] * 100_000),
        "GIF of 900 frames": gif((1, 1), [(0, 0, 1, 1)] * 900),
        "TIFF of 5,000 pages": tiff([ONE_PIXEL] * 5000),
        "TIFF whose pages go in a circle": tiff([ONE_PIXEL] * 2, last=8),
        "TIFF of a tag with 4 billion values": tiff([[(256, 4, 1, 9), (273, 4, 2**32 - 1, 8)]]),
        "TIFF of text of 4 GB": tiff([[(256, 4, 1, 9), (270, 2, 2**32 - 1, 8)]]),
        "TIFF of 65,000 tags": tiff([[(tag, 4, 1, 7) for tag in range(254, 65_254)]]),
        "TIFF of 200,000 strips": strip_bomb(200_000),
        "TIFF of 3.6 gigapixels": tiff([[(256, 4, 1, 60_000), (257, 4, 1, 60_000)]]),
        "BMP of 4 exapixels": bmp(2**31 - 1, 2**31 - 1),
        "BMP of 39 megapixels declared": bmp(6245, 6245),
        "BMP upside down": bmp(30, -30, bytes(2880)),
        "BMP of runs, 36 megapixels": bmp(6000, 6000, b"\xff\0" * 5000, depth=8, compression=1),
        "WEBP of 268 megapixels": webp_canvas_only(16_384, 16_384),
        "WEBP of 36 megapixels declared": webp_canvas_only(6000, 6000),
        "WEBP of 1,200 frames": webp_frames(1200),
    }


def _metadata() -> dict[str, bytes]:
    """Files with far more about the picture than picture."""
    text = zlib.compress(bytes(50_000_000))
    rows = bytes(91 * 30)
    exif_loop = b"Exif\0\0II*\0\x08\0\0\0" + b"\x01\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
    segment = b"\xff\xe1" + struct.pack(">H", len(exif_loop) + 2) + exif_loop
    jpeg = seeds()["JPEG rgb"]
    exif = Image.Exif()
    exif[0x0112] = 77
    pieces = {
        "zTXt bomb": png_chunk(b"zTXt", b"a\0\0" + text),
        "iTXt bomb": png_chunk(b"iTXt", b"a\0\1\0\0\0" + text),
        "profile bomb": png_chunk(b"iCCP", b"a\0\0" + text),
        "100,000 texts": png_chunk(b"tEXt", b"a\0b") * 100_000,
        "2 MB of text": png_chunk(b"tEXt", b"a\0" + b"b" * 2_000_000),
        "EXIF of zeros": png_chunk(b"eXIf", bytes(100_000)),
        "a palette of 300 colours": png_chunk(b"PLTE", bytes(900)),
        "a negative length": b"\xff\xff\xff\xffIDAT",
    }
    made = {f"PNG with {name}": png(30, 30, 8, 2, rows, chunk) for name, chunk in pieces.items()}
    return made | {
        "JPEG with EXIF in a circle": jpeg[:2] + segment + jpeg[2:],
        "JPEG with an orientation of 77": encoded(picture(), "JPEG", exif=exif),
        "JPEG with 10,000 segments": jpeg[:2] + b"\xff\xe3\0\x03x" * 10_000 + jpeg[2:],
        "JPEG with a profile in missing parts": (
            jpeg[:2] + b"\xff\xe2\0\x14ICC_PROFILE\0\x02\xfflost" + jpeg[2:]
        ),
        "JPEG with a profile of 8 MB": encoded(picture(), "JPEG", icc_profile=b"x" * 8_000_000),
        "JPEG with pictures it has not": jpeg[:2] + _pictures_elsewhere() + jpeg[2:],
        "TIFF with a profile of 8 MB": encoded(picture(), "TIFF", icc_profile=b"x" * 8_000_000),
    }


def _shapes() -> dict[str, bytes]:
    """Hardly any pixels, or all of them in a row."""
    made = {
        "PNG of no width": png(0, 5, 8, 2, b""),
        "PNG of no height": png(5, 0, 8, 2, b""),
        "GIF of nothing": gif((0, 0), [(0, 0, 0, 0)]),
        "GIF of an empty frame": gif((5, 5), [(0, 0, 0, 0)]),
        "GIF without frames": gif((5, 5), []),
        "BMP of no width": bmp(0, 5),
        "TIFF of no width": tiff([[(256, 4, 1, 0), (257, 4, 1, 5)]]),
        "JPEG of no width": resized_jpeg(0, 5),
        "WEBP of no width": encoded(picture(), "WEBP")[:26] + bytes(4),
    }
    for name, longest in {
        "JPEG": 65_500, "PNG": 60_000, "GIF": 60_000, "BMP": 60_000, "TIFF": 60_000, "WEBP": 16_383
    }.items():  # fmt: skip
        for width, height in ((1, 1), (2, 1), (1, longest), (longest, 1)):
            made[f"{name} of {width} × {height}"] = encoded(picture(width, height), name)
    return made


def _polyglots() -> dict[str, bytes]:
    """Files that are also something else."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "a")
    jpeg = seeds()["JPEG rgb"]
    comment = b"<script>alert(1)</script><?php phpinfo(); ?>"
    return {
        "PNG and ZIP": seeds()["PNG rgb"] + archive.getvalue(),
        "JPEG and HTML": jpeg[:2] + b"\xff\xfe\0\x2e" + comment + jpeg[2:],
        "GIF and JavaScript": b"GIF89a=1;alert(1);//" + seeds()["GIF"],
        "PDF and JPEG": b"%PDF-1.4\n" + jpeg,
        "JPEG and JPEG": jpeg + jpeg,
        "PNG and JPEG": seeds()["PNG rgb"] + jpeg,
        "HTML and PNG": b"<!doctype html><img>" + seeds()["PNG rgb"],
        "a text that begins like BMP": b"BM is how it begins, and then it goes on" * 10,
        "a sound that begins like WEBP": b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0" + bytes(40),
        "a text that begins like TIFF": b"MM\0*" + b"and then it goes on" * 10,
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "SVG of a billion laughs": b"<!DOCTYPE s [<!ENTITY a 'aaaa'>]><svg>&a;&a;</svg>",
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
    }


def _strangers() -> dict[str, bytes]:
    """Sound files of formats that are not accepted, and no files at all."""
    image = Image.fromarray(picture())
    names = ("PPM", "ICO", "TGA", "PCX", "SGI", "ICNS", "JPEG2000", "AVIF", "DDS", "EPS", "PDF")
    made = {f"a {name} file": encoded(image.resize((32, 32)), name) for name in names}
    return made | {
        "one byte": b"\xff",
        "zeros": bytes(1000),
        "noise": random.Random(0).randbytes(5000),
        "only the signature of PNG": b"\x89PNG\r\n\x1a\n",
        "only the signature of JPEG": b"\xff\xd8\xff",
        "only the signature of GIF": b"GIF89a",
        "only the signature of BMP": b"BM",
        "only the signature of TIFF": b"II*\0",
        "only the signature of big TIFF": b"MM\0+",
        "only the signature of WEBP": b"RIFF\x04\0\0\0WEBP",
    }


def scan_bomb(n_scans: int) -> bytes:
    """A progressive JPEG of 9 megapixels whose last scan comes so many times."""
    data = encoded(np.zeros((3000, 3000), dtype=np.uint8), "JPEG", progressive=True)
    last = data.rfind(b"\xff\xda")
    return data[:last] + data[last:-2] * n_scans + data[-2:]


def strip_bomb(n_strips: int) -> bytes:
    """A TIFF of one column, of which every pixel is a strip of its own."""
    offset = 8 + 2 + 12 * 8 + 4
    strips = {257: (4, 1, n_strips), 273: (4, n_strips, offset)}
    strips[279] = (4, n_strips, offset + 4 * n_strips)
    tags = [(tag[0], *strips.get(tag[0], tag[1:])) for tag in ONE_PIXEL]
    return tiff([tags]) + struct.pack("<I", 8) * n_strips + struct.pack("<I", 1) * n_strips


def resized_jpeg(width: int, height: int) -> bytes:
    """A JPEG whose header speaks of another size."""
    data = bytearray(seeds()["JPEG rgb"])
    struct.pack_into(">HH", data, data.find(b"\xff\xc0") + 5, height, width)
    return bytes(data)


def gif(canvas: tuple[int, int], frames: list[tuple[int, int, int, int]]) -> bytes:
    """A GIF of frames (left, top, width, height) with a pixel's worth of data each."""
    made = [b"GIF89a", struct.pack("<HH", *canvas), b"\x80\0\0", b"\0\0\0\xff\xff\xff"]
    for frame in frames:
        made += [b"\x21\xf9\x04\0\0\0\0\0", b"\x2c", struct.pack("<HHHH", *frame), b"\0"]
        made += [b"\x02\x02\x44\x01\0"]
    return b"".join([*made, b"\x3b"])


def tiff(pages: list[list[Tag]], last: int = 0) -> bytes:
    """A TIFF of nothing but directories; ``last`` is what the last one says follows it."""
    made, place = [b"II*\0\x08\0\0\0"], 8
    for number, page in enumerate(pages):
        entries = b"".join(struct.pack("<HHII", *entry) for entry in page)
        place += 2 + len(entries) + 4
        following = last if number == len(pages) - 1 else place
        made += [struct.pack("<H", len(page)), entries, struct.pack("<I", following)]
    return b"".join(made)


def bmp(width: int, height: int, rows: bytes = b"", depth: int = 24, compression: int = 0) -> bytes:
    """A BMP with such a header, whatever its data."""
    palette = bytes(1024) if depth == 8 else b""
    start = 54 + len(palette)
    header = struct.pack(
        "<IiiHHIIiiII", 40, width, height, 1, depth, compression, len(rows), 0, 0, 0, 0
    )
    file = struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start)
    return file + header + palette + rows


def webp_canvas_only(width: int, height: int) -> bytes:
    """An extended WebP that declares this canvas and holds one pixel."""
    pixel = encoded(Image.new("RGB", (1, 1)), "WEBP", lossless=True)[12:]
    extended = b"VP8X\x0a\0\0\0" + bytes(4)
    extended += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + extended + pixel
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_frames(n_frames: int) -> bytes:
    """An animation of pictures that have nothing in common."""
    noise = np.random.default_rng(0).integers(0, 256, (n_frames, 8, 8, 3), dtype=np.uint8)
    first, *others = map(Image.fromarray, noise)
    return encoded(first, "WEBP", save_all=True, append_images=others, duration=10)


def _pictures_elsewhere() -> bytes:
    """The segment by which a JPEG says that more pictures follow, which they do not."""
    entries = struct.pack("<IIIHH", 0x030000, 100, 0, 0, 0) * 50
    directory = b"II*\0\x08\0\0\0\x02\0"
    directory += struct.pack("<HHII", 0xB001, 4, 1, 50) + struct.pack("<HHII", 0xB002, 7, 800, 38)
    body = b"MPF\0" + directory + bytes(4) + entries
    return b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body
