"""Bytes to pixels: the one decoder that builder and service share.

With two decoders, training and service would see different pixels. So all steps from an image file
to the encoder's input are here: `decode` (accepted formats, and limits on content and cost),
`containers` (facts about a file before decoding), `tiff` (kinds of TIFF that Pillow misreads, and
samples of more than eight bits), `colours` (conversion to RGB, from the colour space that the file
states), and `resize` (to the encoder's input, thumbnails and previews). `quality` measures whether
a picture is good enough.
"""

from model_store.images.containers import content_of, format_of
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
    encode_icon,
    encode_preview,
    encode_thumbnail,
)
