"""Facts about an image file from its structure, at a limited cost and without decoding.

Pillow can also return some of these facts. But Pillow must first read every frame (GIF, TIFF), or
allocate the memory of the whole canvas (WebP).
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

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
    """Return the accepted format that the first bytes indicate; None for other content."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    name = next((name for magic, name in _MAGIC.items() if data.startswith(magic)), None)
    if name == "BMP" and len(data) >= 18 and _little(data[14:18]) not in _BMP_HEADERS:
        return None  # a text may begin with BM
    return name


_BMP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
"""Sizes of the second header of a BMP file, one for each version."""


@dataclass(frozen=True, slots=True)
class Content:
    """The kind of content of a file that has no accepted format.

    Attributes
    ----------
    name : name of the kind, for the message ``It is {name}.``
    is_image : whether the file is an image in another format.
    is_system_file : whether an operating system writes such files next to the user's files.
    advice : one sentence; empty if the advice is to convert the file to an accepted format.
    """

    name: str
    is_image: bool = False
    is_system_file: bool = False
    advice: str = ""


_RAW = "a camera's raw image"
_OTHER_IMAGES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"II\xbc\x01", "JPEG XR"),
    (8, b"CR\x02\x00", f"{_RAW} (CR2)"),
    (0, b"IIRO", f"{_RAW} (ORF)"),
    (0, b"IIRS", f"{_RAW} (ORF)"),
    (0, b"MMOR", f"{_RAW} (ORF)"),
    (0, b"IIU\x00", f"{_RAW} (RW2)"),
    (0, b"FUJIFILMCCD-RAW", f"{_RAW} (RAF)"),
    (0, b"FOVb", f"{_RAW} (X3F)"),
    (0, b"\x00MRM", f"{_RAW} (MRW)"),
    (0, b"8BPS", "Photoshop (PSD)"),
    (0, b"gimp xcf", "GIMP (XCF)"),
    (0, b"v/1\x01", "OpenEXR"),
    (0, b"#?RADIANCE", "Radiance HDR"),
    (0, b"#?RGBE", "Radiance HDR"),
    (0, b"DDS ", "DDS"),
    (0, b"qoif", "QOI"),
    (0, b"BPG\xfb", "BPG"),
    (0, b"FLIF", "FLIF"),
    (0, b"icns", "an Apple icon (ICNS)"),
    (0, b"\x0a\x05\x01", "PCX"),
    (0, b"\x59\xa6\x6a\x95", "a Sun raster image"),
    (0, b"\x01\xda", "SGI"),
    (0, b"\xd7\xcd\xc6\x9a", "a Windows metafile (WMF)"),
    (0, b"AT&TFORM", "DjVu"),
    (0, b"SIMPLE  =", "FITS"),
    (12, b"CgBI", "a PNG in Apple's variant for iOS apps (CgBI)"),
    (0, b"\xff\x10\xff\x50", "JPEG XS"),
    (0, b"\x00\x00\x00\x0cJXS \r\n\x87\n", "JPEG XS"),
    (0, b"\x8aMNG\r\n\x1a\n", "MNG"),
    (0, b"\x8bJNG\r\n\x1a\n", "JNG"),
    (0, b"/* XPM */", "XPM"),
    (0, b"P7\n", "a portable bitmap (PAM)"),
    (40, b" EMF", "a Windows metafile (EMF)"),
    (0, b"SDPX", "DPX"),
    (0, b"XPDS", "DPX"),
    (0, b"\xabKTX ", "KTX"),
    (0, b"NRRD0", "NRRD"),
    (344, b"n+1\x00", "NIfTI"),
    (0, b"ZISRAWFILE", "a microscope's image (CZI)"),
    (0, b"\xda\xce\xbe\x0a", "a microscope's image (ND2)"),
    (0, b"BA", "a set of OS/2 bitmaps"),
    (128, b"DICM", "DICOM"),
    (0, b"%!PS", "PostScript"),
    (0, b"\xc5\xd0\xd3\xc6", "PostScript"),
    (0, b"%PDF", "PDF"),
)
_NO_IMAGES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1aE\xdf\xa3", "a video (Matroska)"),
    (0, b"\x00\x00\x01\xba", "a video (MPEG)"),
    (0, b"OggS", "audio or video (Ogg)"),
    (0, b"ID3", "audio (MP3)"),
    (0, b"fLaC", "audio (FLAC)"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "compressed data (gzip)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!", "a RAR archive"),
    (0, b"\xfd7zXZ", "compressed data (xz)"),
    (0, b"\x28\xb5\x2f\xfd", "compressed data (zstd)"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89HDF", "HDF5"),
    (0, b"PAR1", "Parquet"),
    (0, b"SQLite format 3", "an SQLite database"),
)
_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), Content("AVIF", is_image=True)),
    **dict.fromkeys(
        (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
        Content("HEIC, which iPhones write", is_image=True),
    ),
    **dict.fromkeys((b"avio", b"MA1A", b"MA1B"), Content("AVIF", is_image=True)),
    **dict.fromkeys(
        (
            *(b"mif2", b"mif3", b"miaf", b"MiHB", b"MiHE", b"1pic"),
            *(b"vvic", b"vvis", b"evbi", b"evbs", b"j2ki", b"j2is", b"jpeg", b"jpgs"),
        ),
        Content("HEIF", is_image=True),
    ),
    b"crx ": Content(f"{_RAW} (CR3)", is_image=True),
}
"""Kinds of ISO media files by the brand after ``ftyp``. Files with any other brand are videos."""

_ICONS = {b"\0\0\1\0": "an icon (ICO)", b"\0\0\2\0": "a cursor (CUR)"}
_HEAD = 512

_PAGE = Content("an HTML page", advice="Download the image itself.")
_BASE64 = Content("an image as base64 text", advice="Decode it first.")
_ANSWER = "It is probably an error message of a server. Download the image again."
_TEXTS: tuple[tuple[bytes, Content], ...] = (
    (b"<!doctype html", _PAGE),
    (b"<html", _PAGE),
    (b"<svg", Content("SVG", is_image=True)),
    (
        b"version https://git-lfs",
        Content("a Git LFS pointer, not the file itself", advice="Run `git lfs pull`."),
    ),
    (b"/annex/objects/", Content("a git-annex pointer", advice="Run `git annex get`.")),
    (b"../.git/annex/", Content("a git-annex pointer", advice="Run `git annex get`.")),
    *((start, _BASE64) for start in (b"data:image/", b"/9j/", b"ivborw0kggo", b"r0lgod", b"uklgr")),
)
"""Kinds of text by the beginning of the text, in lower case."""


def content_of(data: bytes) -> Content | None:
    """Return the kind of content that the first bytes of a file indicate.

    The result is None for accepted formats (see `format_of`) and for unknown content. A raw image
    that begins like a TIFF is not an accepted format, so its kind is returned.
    """
    if data.startswith((b"\x00\x05\x16\x07", b"\x00\x05\x16\x00")):
        return Content("AppleDouble, which macOS writes beside a file", is_system_file=True)
    for table, is_image in ((_OTHER_IMAGES, True), (_NO_IMAGES, False)):
        for place, magic, name in table:
            if data.startswith(magic, place):
                return Content(name, is_image=is_image)
    return _media_content(data) or _text_content(data)


def _media_content(data: bytes) -> Content | None:
    """Return the kind of content of an ISO media file, a RIFF file, an icon, or an empty file."""
    if data[4:8] == b"ftyp":
        brands = data[8:12], *(data[place : place + 4] for place in range(16, 40, 4))
        known = [_BRANDS[one] for one in brands if one in _BRANDS]
        names = {one.name: one for one in reversed(known) if one.name != "HEIF"}
        avif = names.pop("AVIF", None)
        found = avif or next(iter(names.values()), next(iter(known), None))
        return found or Content("a video (MP4 or QuickTime)")
    if data[:4] == b"RIFF" and data[8:12] != b"WEBP":
        return Content("audio or video (RIFF)")
    if data[:4] in _ICONS and 0 < _little(data[4:6]) < 256:  # TGA has a count of 0
        return Content(_ICONS[data[:4]], is_image=True)
    if len(data) > 16 and not data[:_HEAD].strip(b"\0"):
        return Content(
            "empty (all bytes are zero)",
            advice="The copy was interrupted, or the disk has lost data. Copy the file again.",
        )
    return None


def _text_content(data: bytes) -> Content | None:
    if len(data) > 2 and data[:1] == b"P" and data[1:2] in b"123456fF" and data[2:3].isspace():
        return Content("a portable bitmap (PNM)", is_image=True)
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    text = head[:256].lower()
    if text.startswith(b"<?xml") and b"<svg" in data:
        return Content("SVG", is_image=True)
    if text.startswith(b"<!--") and b"<html" in head.lower():
        return _PAGE
    return next((content for start, content in _TEXTS if text.startswith(start)), None)


def text_in_place_of_image(data: bytes) -> Content | None:
    """Return the kind of text that was sent instead of an image; None if the bytes are not text."""
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if len(head) < 2 or not all(byte in _PRINTABLE for byte in head):
        return None
    kinds = {b"{": "JSON", b"<": "XML"}
    return Content(kinds.get(head[:1], "plain text"), advice=_ANSWER)


_PRINTABLE = frozenset((*b"\t\n\r", *range(0x20, 0x7F)))


def begins_late(data: bytes) -> int | None:
    """If other bytes precede an image, return the image's offset; None if no image follows.

    Some web programs wrongly send a line break or a byte order mark before an image.
    """
    magics = [magic for magic, name in _MAGIC.items() if name in {"JPEG", "PNG", "GIF"}]
    places = [place for magic in magics if (place := data.find(magic, 1, _HEAD)) > 0]
    return min(places, default=None)


def without_damaged_text(data: bytes) -> bytes | None:
    """Return a PNG without the ancillary chunks that have wrong checksums.

    None if there are no such chunks.
    """
    if format_of(data) != "PNG":
        return None
    kept, place = [data[:8]], 8
    while place + 12 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        chunk = data[place : place + 12 + length]
        may_miss = chunk[4] & 0x20 and chunk[4:8] != b"tRNS"
        if not (may_miss and zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:], "big")):
            kept.append(chunk)
        place += 12 + length
    mended = b"".join(kept)
    return mended if len(mended) < min(place, len(data)) else None


def webp_canvas(data: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of a WebP file; None if there is no such header."""
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


_JPEG_FRAMES = {
    0xC3: "lossless",
    0xC5: "hierarchical",
    0xC6: "hierarchical, progressive",
    0xC7: "hierarchical, lossless",
    0xCB: "lossless, arithmetic coding",
    0xCD: "hierarchical, arithmetic coding",
    0xCE: "hierarchical, progressive, arithmetic coding",
    0xCF: "hierarchical, lossless, arithmetic coding",
    0xF7: "JPEG-LS",
}
"""Kinds of JPEG frames that common decoders do not support."""


def unread_jpeg(data: bytes) -> str | None:
    """Return the kind of a valid but unsupported JPEG, such as 12 bits; None for other files."""
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # fill bytes
            place += 1
            continue
        if marker in _JPEG_FRAMES:
            return f"{_JPEG_FRAMES[marker]}, {data[place + 4]} bits"
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            precision, n_components = data[place + 4], data[place + 9]
            if precision in range(9, 17):
                return f"{precision} bits"
            return f"{n_components} components" if n_components not in {1, 3, 4} else None
        if marker in {0xDA, 0xD9}:
            return None
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


_SEQUENTIAL, _PROGRESSIVE = frozenset({0xC0, 0xC1, 0xC9}), frozenset({0xC2, 0xCA})
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


def last_scan(data: bytes) -> int | None:
    """Return the offset of the coded data in the last scan of a JPEG without an end marker.

    None if a scan is missing: the scans together must contain the last bit of all 64 coefficients
    of each component.
    """
    try:
        return _last_scan(data)
    except (IndexError, ValueError):
        return None


def _last_scan(data: bytes) -> int | None:
    place, start = 2, None
    is_sequential = True
    missing: set[tuple[int, int]] = set()
    while place < len(data):
        marker = data[place + 1]
        if data[place] != 0xFF or marker == 0xD9:
            return None
        if marker == 0xFF:  # fill bytes
            place += 1
            continue
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        segment = data[place + 4 : place + 2 + length]
        place += 2 + length
        if marker in _SEQUENTIAL | _PROGRESSIVE:
            is_sequential = marker in _SEQUENTIAL
            missing = {(component, one) for component in segment[6::3] for one in range(64)}
        if marker == 0xDA:
            start, after_components = place, 1 + 2 * segment[0]
            first, last, bits = segment[after_components : after_components + 3]
            if is_sequential:
                first, last, bits = 0, 63, 0
            if not bits & 15:  # the scan contains the last bit
                components = segment[1:after_components:2]
                missing -= {(one, n) for one in components for n in range(first, last + 1)}
            found = _AFTER_SCAN.search(data, place)
            place = found.start() if found else len(data)
    return None if missing or place > len(data) else start


def count_frames(data: bytes, most: int) -> int:
    """Count the frames of a GIF or the pages of a TIFF, up to ``most`` + 1.

    Unreadable data ends the count. The decoder later checks whether the frames are complete.
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
        if block == 0x2C:  # an image: 9 bytes of geometry, an optional palette, the code size
            n_frames += 1
            place = after_palette(data[place + 9], place + 10) + 1
        elif block == 0x21:  # an extension
            place += 2
        elif block == 0x3B:  # the end
            break
        else:  # Pillow skips unknown data byte by byte
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
