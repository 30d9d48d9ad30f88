"""The facts that an image file's structure tells, without decoding and at a bounded cost.

Pillow answers some of these questions too, but only after it has read every frame (GIF, TIFF) or
set aside the memory for the whole canvas (WebP).
"""

from __future__ import annotations

import struct

_MAGIC = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
}


def format_of(data: bytes) -> str | None:
    """The accepted format that the first bytes announce, whatever the rest is; None for none."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    return next((name for magic, name in _MAGIC.items() if data.startswith(magic)), None)


def webp_canvas(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP file; None where there is no such header."""
    kind, header = data[12:16], data[20:30]
    if len(header) < 10:
        return None
    if kind == b"VP8X":
        return _little(header[4:7]) + 1, _little(header[7:10]) + 1
    if kind == b"VP8L" and header[0] == 0x2F:
        bits = _little(header[1:5])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and header[3:6] == b"\x9d\x01\x2a":
        return _little(header[6:8]) & 0x3FFF, _little(header[8:10]) & 0x3FFF
    return None


def count_frames(data: bytes, most: int) -> int:
    """Frames of a GIF, pages of a TIFF; counting stops one past ``most``.

    What cannot be read ends the count: it says how many frames there are to be had, and whether
    they are whole is for the decoder to find.
    """
    counted = _gif_frames if format_of(data) == "GIF" else _tiff_pages
    try:
        return counted(data, most)
    except (IndexError, struct.error):
        return 1


def _gif_frames(data: bytes, most: int) -> int:
    def after_palette(flags: int, place: int) -> int:
        return place + (3 << (flags & 7) + 1 if flags & 0x80 else 0)

    n_frames, place = 0, after_palette(data[10], 13)
    while n_frames <= most and place < len(data):
        block = data[place]
        if block == 0x2C:  # an image: 9 bytes of geometry, maybe a palette, the size of a code
            n_frames += 1
            place = after_palette(data[place + 9], place + 10) + 1
        elif block == 0x21:  # an extension
            place += 2
        elif block == 0x3B:  # the end
            break
        else:  # Pillow skips what it does not know, byte by byte
            place += 1
            continue
        while place < len(data) and data[place]:
            place += data[place] + 1
        place += 1
    return n_frames


def _tiff_pages(data: bytes, most: int) -> int:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in {b"+\0", b"\0+"}
    count, entry, offset = ("Q", 20, "Q") if big else ("H", 12, "I")
    n_pages, place = 0, _number(order + offset, data, 8 if big else 4)
    while n_pages <= most and 0 < place < len(data):
        n_pages += 1
        n_entries = _number(order + count, data, place)
        place += struct.calcsize(order + count) + n_entries * entry
        if place >= len(data):
            break
        place = _number(order + offset, data, place)
    return n_pages


def _number(layout: str, data: bytes, place: int) -> int:
    return int(struct.unpack_from(layout, data, place)[0])


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
