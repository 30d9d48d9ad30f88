"""Reads forms (``multipart/form-data``) completely into memory, and refuses ambiguous forms.

`python_multipart` finds the parts. Starlette's form reader is not used: it writes files to the
disk, reads encodings other than UTF-8 as Latin-1, and accepts incomplete forms.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile

from model_store.errors import InvalidForm, UnsupportedMediaType
from service.http import limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_UTF_8 = frozenset({b"utf-8", b"utf8", b"us-ascii"})

_LIKE_ASCII = frozenset({b"iso-8859-1", b"iso-8859-15", b"windows-1252"})
"""Encodings that are identical to ASCII for ASCII characters."""

_PLAIN_ENCODINGS = {
    "content-transfer-encoding": ("7bit", "8bit", "binary"),
    "content-encoding": ("identity",),
}
"""Encoding headers of a part, with the values that mean "not encoded"."""


async def read_form(content_type: str, body: AsyncIterator[bytes]) -> FormData:
    """Read a form. After an error, nothing of the form stays in memory.

    Raises
    ------
    InvalidForm : the form is malformed, has too many parts, or lacks its closing boundary.
    UnsupportedMediaType : a part is encoded, or declares an encoding other than UTF-8.
    """
    form = _Form()
    try:
        await form.read(content_type, body)
    except BaseException:
        form.drop()
        raise
    return FormData(form.items)


@dataclass(slots=True)
class _Part:
    """The part of a form that the parser is reading."""

    header: list[tuple[bytes, bytes]] = field(default_factory=list)
    name: str = ""
    file_name: str | None = None
    pieces: list[bytes] = field(default_factory=list)
    n_bytes: int = 0


class _Form:
    """The fields and files of a form, collected by the callbacks of the parser."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str | UploadFile]] = []
        self._part = _Part()
        self._header_name = self._header_value = b""
        self._n_files = self._n_fields = 0
        self._is_whole = False

    async def read(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        """Read the whole form.

        The parser accepts truncated forms, and ignores data after the closing boundary. This method
        refuses both.
        """
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if boundary is None:
            raise _refusal("Missing boundary in multipart")
        closing, before = b"--" + boundary + b"--", b""
        try:
            parser = MultipartParser(boundary, self._callbacks())
            async for piece in body:
                had_ended = self._is_whole
                parser.write(piece)
                if self._is_whole:
                    after = piece if had_ended else (before + piece).partition(closing)[2]
                    if after.strip():
                        raise _refusal("it continues after its closing boundary")
                before = (before + piece if len(piece) < len(closing) else piece)[-len(closing) :]
        except FormParserError:
            raise _refusal("Invalid multipart data") from None
        finally:
            piece = b""  # the traceback of an error would keep the piece in memory
        if not self._is_whole:
            raise _refusal("it ends before its closing boundary")

    def drop(self) -> None:
        """Close the files, and delete all parts."""
        for _, value in self.items:
            if isinstance(value, UploadFile):
                value.file.close()
        self.items.clear()
        self._part = _Part()

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def _on_part_begin(self) -> None:
        self._part = _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._part.header.append((self._header_name.lower(), self._header_value))
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        """Begin a file or a field, and refuse a part with encoded content."""
        part = self._part
        disposition = dict(part.header).get(b"content-disposition")
        options = parse_options_header(disposition)[1]
        if b"name" not in options:
            raise _refusal('The Content-Disposition header field "name" must be provided')
        part.name = _decoded(options[b"name"])
        if b"filename" in options:
            part.file_name = _decoded(options[b"filename"])
            self._n_files += 1
        else:
            self._n_fields += 1
        for n, most, what in (
            (self._n_files, limits.MAX_FILES, "files"),
            (self._n_fields, limits.MAX_FIELDS, "fields"),
        ):
            if n > most:
                raise _refusal(f"Too many {what}. Maximum number of {what} is {most}")
        header = Headers(raw=part.header)
        for name, plain in _PLAIN_ENCODINGS.items():
            encoding = header.get(name, "").strip().lower()
            if encoding and encoding not in plain:
                raise UnsupportedMediaType(
                    f"The part {part.name[:100]!r} is encoded as {encoding[:40]!r} "
                    f"({name.title()}), which the service does not decode. Send its bytes "
                    "unencoded."
                )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        part.n_bytes += end - start
        if part.file_name is None and part.n_bytes > limits.MAX_FIELD_BYTES:
            raise _refusal(f"Part exceeded maximum size of {limits.MAX_FIELD_BYTES // 1024}KB")
        part.pieces.append(data[start:end])

    def _on_part_end(self) -> None:
        """Join all pieces of the part in one step; otherwise, each piece would copy the data."""
        part, content = self._part, b"".join(self._part.pieces)
        part.pieces.clear()
        if part.file_name is None:
            self.items.append((part.name, _text_of(part, content)))
            return
        file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=0)  # noqa: SIM115 - of the request
        upload = UploadFile(
            file=file,  # type: ignore[arg-type]
            size=file.write(content),
            filename=part.file_name,
            headers=Headers(raw=part.header),
        )
        file.seek(0)
        self.items.append((part.name, upload))

    def _on_end(self) -> None:
        self._is_whole = True


def _text_of(part: _Part, content: bytes) -> str:
    """Return the text of a field.

    Raises
    ------
    UnsupportedMediaType : the part declares an encoding other than UTF-8.
    InvalidForm : the bytes are not valid UTF-8.
    """
    # Java clients declare ISO-8859-1. For ASCII text, its bytes are the same as in UTF-8.
    allowed = _UTF_8 | _LIKE_ASCII if content.isascii() else _UTF_8
    check_charset(Headers(raw=part.header).get("content-type", ""), allowed)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _refusal(
            f"its field {part.name[:100]!r} is not text in UTF-8; a file needs a file name "
            '(filename="…" in its Content-Disposition)'
        ) from None


def check_charset(content_type: str, allowed: frozenset[bytes] = _UTF_8) -> None:
    """Refuse a Content-Type whose ``charset`` is not one of the ``allowed`` encodings.

    Raises
    ------
    UnsupportedMediaType : the charset is another encoding.
    """
    if "charset" not in content_type.lower():  # the usual case, which needs no parser
        return
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.lower() not in allowed:
        raise UnsupportedMediaType(
            f"Content-Type declares the charset {charset[:40].decode('latin-1')!r}; only UTF-8 is "
            "accepted. Send UTF-8, and omit the charset in Content-Type."
        )


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


def _refusal(why: str) -> InvalidForm:
    return InvalidForm(
        f"The form cannot be read: {why}. Nothing was done. Send the whole form as "
        "multipart/form-data, with the boundary that Content-Type names."
    )
