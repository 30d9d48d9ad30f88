"""``vouch-search``: search a gallery with every image of a folder, and write a table."""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from model_store.errors import VouchError
from model_store.files import disk_error, naming, replacing
from model_store.images import decode_image, encode_thumbnail
from model_store.installation import how_to_install
from model_store.programs import add_global_options, interruptible, parser_of
from model_store.text_values import to_cell
from vouch_search.answers import Failure, Picture, columns_of, counts_of, data_uri, to_arrow
from vouch_search.protocol import SearchableGallery, images_of, is_of_image

PROGRAM = "vouch-search"
AT_ONCE = 64
"""Number of images between two writes to the journal."""

SUFFIXES = (".csv", ".parquet", ".html")
_SERVED = re.compile(r"((?i:https?)://.+?)/v1/galleries/([^/]+)/?")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; exit status 1 if the search fails, 2 for wrong options."""
    with interruptible():
        parser = _parser()
        options = parser.parse_args(arguments)
        out: Path = options.out
        if out.suffix.lower() not in SUFFIXES:
            parser.error(f"--out {out}: its name must end in {', '.join(SUFFIXES)}.")
        gallery: str = options.gallery
        if gallery.lower().startswith(("http://", "https://")) and not _SERVED.fullmatch(gallery):
            parser.error(
                f"--gallery {gallery}: the address names no gallery. Write "
                f"{gallery.rstrip('/')}/v1/galleries/NAME."
            )
        try:
            status = run(options)
        except Exception as error:
            why = disk_error(error) or _unreachable(error, gallery)
            if why is None and not isinstance(error, _expected_errors()):
                raise
            print(f"error: {why or error}", file=sys.stderr)
            status = 1
    raise SystemExit(status)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Return the errors whose messages are shown; with client errors if `httpx2` is imported."""
    expected = (VouchError, OSError, ValueError, TypeError, ImportError)
    if "httpx2" not in sys.modules:
        return expected
    import httpx2  # noqa: PLC0415 - an extra

    from service.client import VouchProblem  # noqa: PLC0415 - an extra

    return (*expected, httpx2.HTTPError, VouchProblem)


def _unreachable(error: Exception, gallery: str) -> str | None:
    """Return the message for an error of a service that does not answer; None for other errors."""
    if "httpx2" not in sys.modules:
        return None
    import httpx2  # noqa: PLC0415 - an extra

    if not isinstance(error, httpx2.TransportError):
        return None
    return f"The service of {gallery} does not answer ({error}). Is it running?"


def _count(text: str) -> int:
    """Return a whole number from 1.

    Raises
    ------
    argparse.ArgumentTypeError : the text is another number, or no number.
    """
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"received {text!r}, wanted a whole number from 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        PROGRAM,
        " FOLDER",
        description="Search with every image of a folder, and write a table of the matches. After "
        "an interruption, the same command continues the search.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="Its image files, sub-folders included.")
    parser.add_argument(
        "--gallery",
        required=True,
        help="A folder that vouch-build made, such as bundles/mine; or a gallery of a service, "
        "such as http://127.0.0.1:8080/v1/galleries/mine (key: VOUCH_API_KEY).",
    )
    parser.add_argument(
        "--out", required=True, type=Path, help="The table: its name ends in .csv, .parquet, .html."
    )
    parser.add_argument("-k", type=_count, default=5, help="Results of each search. [default: 5]")
    parser.add_argument(
        "--per",
        choices=("query", "result"),
        default="query",
        help="A row for each image with its first result, or for each result. [default: query]",
    )
    parser.add_argument("--jobs", type=_count, help="Searches at the same time.")
    parser.add_argument("--quiet", "-q", action="store_true", help="Show no progress.")
    add_global_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Search with the images, write the table, and return the exit status.

    Raises
    ------
    VouchError, OSError, ValueError, ImportError : the gallery, an image or the table cannot be
        opened, read or written.
    """
    if not Path(options.folder).expanduser().is_dir():
        raise ValueError(f"{options.folder!r} is no folder. Name a folder of image files.")
    files = [Path(os.fspath(one)) for one in images_of(options.folder)]  # type: ignore[arg-type]
    write = _writer(options.out)
    with _opened(options.gallery) as gallery:
        journal = Journal(options.out, gallery, options)
        done = journal.read()
        rest = [one for one in files if _state(one) not in done]
        if done and not options.quiet:
            print(f"{len(files) - len(rest)} of {len(files)} images are done.", file=sys.stderr)
        _search(gallery, rest, journal, options)
        done = journal.read()
        entries = [done[_state(one)] for one in files if _state(one) in done]
        write(options.out, [row for rows in entries for row in rows], gallery)
        journal.remove()
    if not options.quiet:
        _summary(entries, options.out)
    return 1 if all(rows and rows[0].get("error") for rows in entries) else 0


def _search(
    gallery: SearchableGallery, files: Sequence[Path], journal: Journal, options: argparse.Namespace
) -> None:
    from tqdm.auto import tqdm  # noqa: PLC0415 - a tenth of a second

    with tqdm(total=len(files), unit="image", disable=options.quiet) as bar:
        for start in range(0, len(files), AT_ONCE):
            part = files[start : start + AT_ONCE]
            answers = gallery.search_many(part, options.k, n_jobs=options.jobs)
            finished = [
                (file, list(answers[i : i + 1].rows(options.per)))
                for i, (file, one) in enumerate(zip(part, answers, strict=True))
                if not isinstance(one, Failure) or is_of_image(one.error)
            ]
            journal.append(finished)
            for failure in answers.failures:  # the command can be run again for these images
                if not is_of_image(failure.error):
                    raise failure.error
            bar.update(len(part))


class Journal:
    """A file that contains the finished answers. An interrupted search resumes from this file.

    The file is in the folder of the table. It has one JSON line for each image. The name of the
    file depends on the gallery and the options. A changed image file is searched again.
    """

    def __init__(self, out: Path, gallery: SearchableGallery, options: argparse.Namespace) -> None:
        of = [options.gallery, gallery.bundle_id, options.k, options.per]
        self._key = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]
        self._path = out.with_name(f"{out.name}.{self._key}.partial")

    def read(self) -> dict[str, list[Row]]:
        """Return the rows of each finished image; a truncated line is skipped."""
        done: dict[str, list[Row]] = {}
        if self._path.exists():
            for line in self._path.read_text("utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                done[entry["file"]] = entry["rows"]
        return done

    def append(self, entries: Iterable[tuple[Path, list[Row]]]) -> None:
        """Append answers and flush them to disk."""
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            for path, rows in entries:
                entry = {"file": _state(path), "rows": rows}
                file.write("\n" + json.dumps(entry, default=str))  # after a line that was cut off
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Delete the file after the table is written."""
        self._path.unlink(missing_ok=True)


def _state(file: Path) -> str:
    """Return path, size and modification time as text, to detect a changed file."""
    try:
        found = file.stat()
    except OSError:
        return f"{file} missing"
    return f"{file} {found.st_size} {found.st_mtime_ns}"


def _opened(gallery: str) -> SearchableGallery:
    """Open a local gallery, or a gallery of a service.

    Raises
    ------
    VouchError, OSError, ImportError : the gallery cannot be opened.
    """
    served = _SERVED.fullmatch(gallery)
    if served is None:
        from vouch_search.gallery import open_gallery  # noqa: PLC0415 - slow

        return open_gallery(gallery)
    from vouch_search.remote import Client  # noqa: PLC0415 - slow, and an extra

    return Client(served[1], os.environ.get("VOUCH_API_KEY") or None).open(served[2])


Writer = Callable[[Path, Sequence[Row], SearchableGallery], None]


def _writer(out: Path) -> Writer:
    """Return the writer for the file's suffix. A missing pyarrow is reported before the search.

    Raises
    ------
    ImportError : pyarrow is needed, and not installed.
    """
    if out.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise ImportError(f"Parquet needs pyarrow. {how_to_install('tables')}") from error
        return _write_parquet
    return _write_html if out.suffix.lower() == ".html" else _write_csv


def _write_csv(out: Path, rows: Sequence[Row], _: SearchableGallery) -> None:
    with replacing(out) as making, making.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns_of(rows))
        table.writeheader()
        table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _write_parquet(out: Path, rows: Sequence[Row], _: SearchableGallery) -> None:
    from pyarrow import parquet  # noqa: PLC0415 - slow, and an extra

    with replacing(out) as making:
        parquet.write_table(to_arrow(rows), making)


def _write_html(out: Path, rows: Sequence[Row], gallery: SearchableGallery) -> None:
    """Write a self-contained HTML page: each query beside its result, with all columns."""
    columns = columns_of(rows)
    pictures: dict[str, str] = {}
    body = []
    for row in rows:
        item = row.get("id")
        if item is not None and item not in pictures:
            pictures[item] = _html_picture(gallery.thumbnail(item))
        cells = [_html_picture(_thumbnail_of(row["query"])), pictures.get(item or "", "")]
        cells += [escape(_shown(row.get(name))) for name in columns]
        body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", "first result", *columns))
    page = _PAGE.format(title=escape(out.stem), head=head, body="\n".join(body))
    with replacing(out) as making:
        making.write_text(page, "utf-8")


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px system-ui}}table{{border-collapse:collapse}}
th,td{{padding:4px 8px;text-align:left;border-bottom:1px solid #ccc}}
img{{max-width:96px;max-height:96px}}</style>
<h1>{title}</h1><table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></html>
"""


def _thumbnail_of(query: str) -> Picture | None:
    try:
        return encode_thumbnail(decode_image(Path(query).read_bytes()).pixels)
    except (OSError, VouchError):
        return None


def _html_picture(picture: Picture | None) -> str:
    if picture is None:
        return ""
    return f'<img alt="" loading="lazy" src="{data_uri(picture)}">'


def _cell(value: object) -> object:
    """Return a CSV cell that spreadsheets do not read as a formula; metadata are JSON."""
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return to_cell(value) if isinstance(value, str) else value


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _summary(entries: Sequence[Sequence[Row]], out: Path) -> None:
    counts = counts_of([rows[0]["verdict"] for rows in entries if rows])
    print(f"{len(entries)} images: {counts}. {out}", file=sys.stderr)
