"""Bytes to pixels: the one decoder that builder and service share.

A second copy is how train/serve skew is born, so everything that turns an image file into the
encoder's input is here: `decode` (what is accepted, within which limits), `containers` (what a file
says of itself before it is decoded), `tiff` (kinds of TIFF that Pillow misreads), `depth` (samples
of more than eight bits), `colours` (whatever was in it, as RGB), `profiles` (colour profiles),
`statements` (colours that a file states in other ways), and `resize` (to the encoder's input, to
thumbnails and previews).
`budget` is what decoding one image may cost, `quality` measures whether a picture is good enough.
"""

from model_store.images.containers import Content, content_of, format_of
from model_store.images.decode import (
    FORMATS,
    RAW_SUFFIXES,
    SUFFIXES,
    TOO_MUCH_MEMORY,
    DecodedImage,
    ImageLimits,
    check_size,
    decode_image,
)
from model_store.images.resize import (
    MOST_PREVIEW_SIDE,
    THUMBNAIL_SIDE,
    Preprocessing,
    encode_preview,
    encode_thumbnail,
)

__all__ = [
    "FORMATS",
    "MOST_PREVIEW_SIDE",
    "RAW_SUFFIXES",
    "SUFFIXES",
    "THUMBNAIL_SIDE",
    "TOO_MUCH_MEMORY",
    "Content",
    "DecodedImage",
    "ImageLimits",
    "Preprocessing",
    "check_size",
    "content_of",
    "decode_image",
    "encode_preview",
    "encode_thumbnail",
    "format_of",
]
