"""Image arguments in Python: a path, bytes, an open file, a Pillow image or an array.

The client does not require Pillow or NumPy. The module uses one of these libraries only if the
caller has imported the library.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    ImageInput: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | NDArray[Any]
else:
    ImageInput = Any
"""The path of an image file, its bytes, the file opened for reading bytes, a Pillow image, or an
array: (H, W), (H, W, 3) or (H, W, 4), uint8, or float from 0 to 1."""

WANTED = (
    "the path of an image file, its bytes, a file opened with open(…, 'rb'), a Pillow image, or "
    "a NumPy array (H, W), (H, W, 3) or (H, W, 4) of uint8 or of floats from 0 to 1"
)

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_NO_IMAGE_MODES = frozenset({"F", "I"})
"""Pillow modes whose values have no fixed range."""


def image_file(image: ImageInput) -> tuple[str, bytes]:
    """Return the file name and the bytes of an image; pixels are encoded losslessly.

    Raises
    ------
    TypeError : the argument is not an `ImageInput`.
    ValueError : the array or the Pillow image is not a valid picture.
    OSError : the file cannot be read.
    """
    given: object = image  # callers may pass any type
    if isinstance(given, str | os.PathLike):
        return _read(given)
    if isinstance(given, bytes | bytearray | memoryview):
        return "image", bytes(given)
    if _is_a(given, "PIL.Image", "Image"):
        return _file_name(getattr(given, "filename", None)), _pillow_bytes(image)  # type: ignore[arg-type]
    if _is_a(given, "numpy", "ndarray"):
        return "image", _pillow_bytes(_from_array(image))  # type: ignore[arg-type]
    if hasattr(given, "read"):
        return _file_name(getattr(given, "name", None)), _file_bytes(given)
    raise TypeError(f"An image cannot be made from {_described(given)}. Wanted: {WANTED}.")


def _is_a(value: Any, module: str, name: str) -> bool:  # noqa: ANN401 - anything
    """Return whether a value is an instance of a class, without importing its library."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


def _read(path: object) -> tuple[str, bytes]:
    text = os.fspath(path)  # type: ignore[call-overload] # a string or a path
    if not isinstance(text, str):
        raise TypeError(f"The path {text!r} is bytes. Wanted: a path as str; use os.fsdecode.")
    if not text:
        raise ValueError(f"An image cannot be made from the empty text ''. Wanted: {WANTED}.")
    file = Path(text).expanduser()
    try:
        return as_unicode(file.name), file.read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no image file {text[:200]!r} in {Path.cwd()}. Wanted: {WANTED}."
        ) from error
    except IsADirectoryError as error:
        raise IsADirectoryError(
            f"{text[:200]!r} is a folder. Wanted: one image. To search with each image of a "
            "folder, use search_many."
        ) from error
    except ValueError as error:  # a null character
        raise ValueError(f"{text[:200]!r} cannot be the path of a file ({error}).") from error


def _file_bytes(file: Any) -> bytes:  # noqa: ANN401 - anything with `read`
    content = "" if isinstance(file, io.TextIOBase) else file.read()
    if not isinstance(content, bytes):
        raise TypeError(f"{_described(file)} is opened for reading text. Wanted: open(…, 'rb').")
    return content


def _file_name(name: object) -> str:
    return as_unicode(Path(name).name) if isinstance(name, str) and name else "image"


def as_unicode(name: str) -> str:
    """Return a file name as valid Unicode, with ``?`` for each byte that is not UTF-8.

    Python reads such bytes as surrogates, which HTTP and tables cannot hold.
    """
    return name.encode("utf-8", "replace").decode()


def _from_array(array: NDArray[Any]) -> Image.Image:
    import numpy as np  # noqa: PLC0415 - see above
    from PIL import Image  # noqa: PLC0415 - see above

    received = f"an array of shape {array.shape} and dtype {array.dtype}"
    channels_first = array.ndim == 3 and array.shape[0] in {1, 3, 4} and array.shape[2] > 4
    if channels_first:
        raise ValueError(
            f"Received {received}: channels come first. Wanted: (H, W, 3); use "
            "array.transpose(1, 2, 0)."
        )
    if array.ndim == 4:
        raise ValueError(
            f"Received {received}. Wanted: one image (H, W, 3). To search with several images, "
            "use search_many."
        )
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in {1, 3, 4})
    if not is_picture or 0 in array.shape:
        raise ValueError(f"Received {received}. Wanted: (H, W), (H, W, 3) or (H, W, 4).")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif np.issubdtype(array.dtype, np.floating):
        array = _bytes_of_floats(array, received)
    elif array.dtype != np.uint8:
        raise TypeError(
            f"Received {received}. Wanted: uint8, or floats from 0 to 1. Scale the values, and "
            "convert them with array.astype(numpy.uint8)."
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(array))


def _bytes_of_floats(array: NDArray[Any], received: str) -> NDArray[np.uint8]:
    import numpy as np  # noqa: PLC0415 - see above

    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # also not a number
        raise ValueError(
            f"Received {received}, values {low:g} to {high:g}. Wanted: floats from 0 to 1. "
            "Divide by the largest value, or convert to uint8."
        )
    pixels: NDArray[np.uint8] = np.rint(array * 255).astype(np.uint8)
    return pixels


def _pillow_bytes(image: Image.Image) -> bytes:
    from PIL import ImageOps  # noqa: PLC0415 - see above

    if image.mode in _NO_IMAGE_MODES:
        raise ValueError(
            f"Received a Pillow image of mode {image.mode!r}, whose values have no stated range. "
            "Wanted: a mode such as 'RGB' or 'L'; scale the values and use image.convert."
        )
    if 0 in image.size:
        raise ValueError(f"Received a Pillow image of {image.width} × {image.height} pixels.")
    image = ImageOps.exif_transpose(image)
    file, profile = io.BytesIO(), image.info.get("icc_profile")
    if image.mode in _PNG_MODES:
        image.save(file, "PNG", compress_level=1)
    elif image.mode == "CMYK":
        image.save(file, "TIFF", icc_profile=profile)
    else:
        image.convert("RGBA" if image.mode.endswith(("A", "a")) else "RGB").save(
            file, "PNG", compress_level=1
        )
    return file.getvalue()


def _described(value: object) -> str:
    """Return the type and the beginning of a value, for an error message."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:79] + '…'}"
