"""Find the image files of a folder, an archive or a bucket, and list the files that are left out.

The content of a file, not its name, decides whether the file is an image. The report of the run
lists each file that is left out, with the reason. It also lists labels that differ only in case,
spaces or Unicode form, because they often mean the same.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from shlex import quote

from model_store.errors import TooManyBadImages
from model_store.images import FORMATS, RAW_SUFFIXES, SUFFIXES, content_of, format_of

HEAD_BYTES = 512
"""Number of bytes at the beginning of a file that identify its format."""

N_SHOWN = 10
"""Maximum number of names in a message; a report lists all names."""

_SYSTEM_NAMES = frozenset(
    {"@eadir", "@tmp", "@recycle", "@recently-snapshot", "@synoresource", "@sharebin"}
    | {"#recycle", "#snapshot", "$recycle.bin", "recycler", "recycled", "lost+found"}
    | {"system volume information", "found.000", "__macosx", "__pycache__", "_gsdata_"}
    | {"network trash folder", "temporary items", "thevolumesettingsfolder", "icon\r"}
    | {"thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"}
    | {"picasa.ini", "zbthumbnail.info", "folder.thumbs.db", "aclgallery.ini"}
    | {"@synoeastream", "@s2s", "@appstore", "@database", "@autoupdate", "@synofinder-etc-volume"}
    | {"trashbox", "nas_prog", "~snapshot", "lost.dir", "windowsimagebackup", "msocache"}
    | {"config.msi", "$windows.~bt", "$windows.~ws", "$winreagent", "$extend", "albumartsmall.jpg"}
    | {"node_modules", "site-packages"}
)
"""Names of files and folders that operating systems, NAS devices and programs create."""

_SYSTEM_BEGINNINGS = (
    *(".", "@__thumb", "synofile_thumb_", "synophoto_", "~syncthing~", "~$"),
    *("network recycle bin", "albumart_{"),
)
_SYSTEM_ENDS = (
    *("@synoeastream", "@synoresource", ".lrdata", ".thm"),
    *(".crdownload", ".part", ".partial", ".download", ".opdownload", ".filepart"),
)
"""Name endings of preview caches, of cameras' video thumbnails, and of incomplete downloads."""

_LIBRARY, _OWN_IN_LIBRARIES = ".photoslibrary", frozenset({"originals", "masters"})
"""The suffix of macOS photo libraries, and the names of the folders with the original images in
such a library. Images outside these folders are derived from the originals."""

_OTHER_SUFFIXES = (
    RAW_SUFFIXES
    | {".heic", ".heif", ".hif", ".avif", ".jxl", ".jp2", ".j2k", ".jpf", ".jpx", ".jpm"}
    | {".jxr", ".hdp", ".wdp", ".qoi", ".svg", ".psd", ".psb", ".eps", ".ai", ".ico", ".tga"}
    | {".pcx", ".dds", ".exr", ".hdr", ".ppm", ".pgm", ".pbm", ".pnm", ".xcf", ".dcm", ".djvu"}
)
"""File name suffixes of image formats of phones, cameras and programs that Vouch does not read."""

_OUTPUTS = (
    frozenset({"manifest.json", "encoder.onnx"}),  # a bundle
    frozenset({"encoder.json", "encoder.onnx"}),  # an encoder that `all` or `index` has exported
    frozenset({"lock", "config.toml"}),  # the run of a build
    frozenset({"lock", "shards"}),  # the run of `index`
    frozenset({"training.json", "bundle"}),  # the run of a build with Vouch 0.2
)
"""Names of files and folders that together identify a folder that Vouch has written."""


class Reason(StrEnum):
    """The reason why a file of a source is left out; the value is an error name for the report."""

    other_format = "UnsupportedImage"
    not_an_image = "NotAnImage"
    system_file = "SystemFile"
    linked_folder = "LinkedFolder"
    own_output = "WrittenByVouch"
    not_opened = "NotOpened"
    bad_name = "NameNotUnicode"
    no_label = "NoLabelFolder"
    unlabelled = "NoLabel"
    beside_tables = "BesideTables"
    no_image = "SidecarWithoutImage"
    crowd = "CrowdBox"
    no_box = "ImageWithoutBox"
    no_painting = "CanvasWithoutImage"
    further_image = "FurtherImage"
    further_sequence = "FurtherSequence"


_TITLES = {
    Reason.other_format: "of other formats",
    Reason.not_an_image: "no images",
    Reason.system_file: "files of the system",
    Reason.linked_folder: "linked folders, not entered",
    Reason.own_output: "folders that Vouch has written",
    Reason.not_opened: "that cannot be opened",
    Reason.bad_name: "names that are not UTF-8",
    Reason.no_label: "in no label folder",
    Reason.unlabelled: "without a label",
    Reason.beside_tables: "beside Parquet files",
    Reason.no_image: "sidecar files without an image",
    Reason.crowd: "boxes of a crowd",
    Reason.no_box: "images without a box",
    Reason.no_painting: "canvases without an image",
    Reason.further_image: "further images of a canvas",
    Reason.further_sequence: "canvases of further sequences",
}
"""For each reason, the title of its table row."""

_SENTENCES = {
    Reason.other_format: f"Vouch reads {', '.join(FORMATS)}. Convert the file.",
    Reason.not_an_image: "The content has no known image format.",
    Reason.system_file: "An operating system, a NAS device or a program created the file.",
    Reason.linked_folder: (
        "The file is a link to a folder. Links to folders in the source are never followed, "
        "because their images would be repeated. To follow another link, use `index` with --root, "
        "the path of a folder that contains the source and the linked folder."
    ),
    Reason.own_output: "The folder is a bundle, an encoder or a run directory.",
    Reason.not_opened: (
        "The file cannot be opened: it is a link, a pipe or a device, or a permission is missing."
    ),
    Reason.bad_name: "The file name is not UTF-8, so it cannot be an id. Rename the file.",
    Reason.no_label: "The file is in no sub-folder, but the sub-folders are the labels.",
    Reason.unlabelled: "The source gives the image no label, but training needs labels.",
    Reason.beside_tables: "The Parquet files of the folder are the source; this file is not read.",
    Reason.no_image: (
        "No image of this name is next to the file in the archive, so its label and metadata are "
        "not used. Pack each image next to its sidecar files, in the order of the names."
    ),
    Reason.crowd: "The box has `iscrowd`: it contains several objects.",
    Reason.no_box: "No annotation names the image, and each box is an item.",
    Reason.no_painting: (
        "The canvas has no whole image that Vouch reads: it is empty, or has a video, a sound or a "
        "part of an image."
    ),
    Reason.further_image: "The canvas has several images; only its first image is used.",
    Reason.further_sequence: "Only the first sequence of a manifest is read.",
}
"""For each reason, the sentence in the report."""

_SAID = (
    *(Reason.other_format, Reason.linked_folder, Reason.not_opened, Reason.bad_name),
    *(Reason.no_label, Reason.unlabelled, Reason.no_image),
    *(Reason.no_painting, Reason.further_image, Reason.further_sequence),
)
"""Reasons that are printed immediately, because part of the collection may be missing."""


@dataclass(frozen=True, slots=True)
class LeftOutFile:
    """A file that belongs to a source but is not read as an image.

    Attributes
    ----------
    name : path of the file in the source; bytes that are not UTF-8 are escaped.
    reason : why the file is not read.
    content : format of the content, or the suffix of the name if the format is unknown.
    """

    name: str
    reason: Reason
    content: str = ""

    @property
    def sentence(self) -> str:
        """A text for the report: what the file contains, and why the file was left out."""
        found = f"It is {self.content}. " if self.content and self.content[0] != "." else ""
        return found + _SENTENCES[self.reason]


@dataclass(slots=True)
class LeftOut:
    """The files in a source that are not read as images, in the order of the source."""

    files: list[LeftOutFile] = field(default_factory=list)

    def add(self, name: str, reason: Reason, content: str = "") -> None:
        """Note one file."""
        shown = name.encode(errors="backslashreplace").decode()
        self.files.append(LeftOutFile(shown, reason, content))

    def takes(self, name: str, head: Callable[[], bytes]) -> bool:
        """Return whether to decode a file as an image; record each file that is not decoded.

        If the content of a file is unknown, but its suffix is that of an image, the file is
        decoded, too. If decoding fails, the file counts as an unreadable image.

        Parameters
        ----------
        name : the path in the source.
        head : function that reads the first `HEAD_BYTES` of the file; not called for system files.
        """
        suffix = PurePosixPath(name).suffix.lower()
        if is_system_file(name):
            self.add(name, Reason.system_file)
            return False
        try:
            first = head()
        except OSError:
            if suffix not in SUFFIXES:
                self.add(name, Reason.not_opened)
                return False
            first = b""  # the decoder reports the error
        content = content_of(first)
        if content is not None and content.is_system_file:
            self.add(name, Reason.system_file, content.name)
        elif content is not None and content.is_image:
            self.add(name, Reason.other_format, content.name)
        elif format_of(first) == "TIFF" and suffix in RAW_SUFFIXES:
            self.add(name, Reason.other_format, f"a camera's raw image ({suffix})")
        elif suffix in SUFFIXES or format_of(first) is not None:
            return self._takes_name(name)
        elif suffix in _OTHER_SUFFIXES:
            self.add(name, Reason.other_format, suffix)
        else:
            self.add(name, Reason.not_an_image, suffix if content is None else content.name)
        return False

    def _takes_name(self, name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            self.add(name, Reason.bad_name)
            return False
        return True

    def of(self, reason: Reason) -> list[LeftOutFile]:
        """Return the files that were left out for one reason."""
        return [one for one in self.files if one.reason is reason]

    def counts(self, reason: Reason) -> str:
        """Return the number of files for one reason, by content: ``8: 5 HEIC, 3 .raw``."""
        found = self.of(reason)
        contents = Counter(one.content for one in found if one.content)
        parts = [f"{n:,} {content}" for content, n in contents.most_common(5)]
        parts += ["…"] * (len(contents) > 5)
        return f"{len(found):,}" + (f": {', '.join(parts)}" if parts else "")

    def rows(self, report: Path | None = None) -> list[tuple[str, str]]:
        """Return rows for a table; ``report`` is the file with the names of all files left out.

        The row for other formats is always present, even with zero files.
        """
        where = "" if report is None else f"; see {report}"
        shown = [reason for reason in Reason if self.of(reason) or reason is Reason.other_format]
        return [(_TITLES[one], self.counts(one) + (where if self.of(one) else "")) for one in shown]

    @property
    def sentences(self) -> list[str]:
        """Messages; one for each reason that is possibly a mistake of the user."""
        return [self._said(reason) for reason in _SAID if self.of(reason)]

    @property
    def sentence(self) -> str:
        """A message about all files that were left out; empty if there are none."""
        return " ".join(self._said(reason) for reason in Reason if self.of(reason))

    def _said(self, reason: Reason) -> str:
        found = self.of(reason)
        names = ", ".join(one.name for one in found[:N_SHOWN]) + ", …" * (len(found) > N_SHOWN)
        said = f"Left out, {_TITLES[reason]}: {self.counts(reason)} ({names})."
        said += f" {_SENTENCES[reason]}"
        if reason is Reason.other_format:
            said += f" For example with ImageMagick: {_conversion(found[0].name)}"
        return said


def _conversion(name: str) -> str:
    """Return the command that converts a file of another format, and similar files."""
    suffix = PurePosixPath(name).suffix or ".heic"
    if suffix.lower() in SUFFIXES:  # `mogrify` would also overwrite sound images with this suffix
        return f"magick {quote(name)} {quote(name + '.png')}"
    return f"find FOLDER -iname '*{suffix}' -exec magick mogrify -format jpg {{}} +"


def is_system_file(name: str) -> bool:
    """Return whether a path belongs to an operating system, a NAS device or a program.

    Every name with a leading dot is such a path, for example ``._`` files of macOS and
    ``.ipynb_checkpoints``.
    """
    parts = [part for part in name.lower().split("/") if part not in {"", ".", ".."}]
    return any(
        part in _SYSTEM_NAMES
        or part.startswith(_SYSTEM_BEGINNINGS)
        or part.endswith(_SYSTEM_ENDS)
        or (before.endswith(_LIBRARY) and part not in _OWN_IN_LIBRARIES)
        for before, part in zip(["", *parts], parts, strict=False)
    )


def head_of(path: Path) -> bytes:
    """Read the first bytes of a regular file; never waits for the writer of a pipe.

    Raises
    ------
    OSError : the file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.read(descriptor, HEAD_BYTES)
    finally:
        os.close(descriptor)


def files_below(folder: Path, root: Path, left_out: LeftOut) -> Iterator[str]:
    """Yield the files below a folder, sorted, as relative POSIX paths.

    A link to a folder is followed if its target is outside ``folder`` and inside ``root``. Links to
    targets within ``folder`` are left out, because files would be repeated. Links to targets
    outside ``root`` are left out, too. Bundles, encoders and run directories below ``folder`` are
    left out.
    """
    top, allowed = folder.resolve(), root.expanduser().resolve()

    def below(directory: Path, prefix: str, entered: tuple[Path, ...]) -> Iterator[str]:
        try:
            with os.scandir(directory) as found:
                members = sorted(found, key=lambda one: one.name)
        except PermissionError:
            if not is_system_file(prefix):
                raise
            left_out.add(prefix, Reason.system_file)  # for example lost+found
            return
        names = {one.name for one in members}
        if prefix and any(output <= names for output in _OUTPUTS):
            left_out.add(prefix, Reason.own_output)
            return
        for member in members:
            name, path = prefix + member.name, Path(member.path)
            if member.is_dir(follow_symlinks=False):
                yield from below(path, f"{name}/", entered)
            elif not _leads_to_folder(member):
                yield name
            elif is_system_file(name):
                left_out.add(name, Reason.system_file)
            elif _may_enter(real := path.resolve(), top, allowed) and real not in entered:
                yield from below(path, f"{name}/", (*entered, real))
            else:
                left_out.add(name, Reason.linked_folder)

    yield from below(folder, "", ())


def image_files(folder: Path, left_out: LeftOut) -> Iterator[str]:
    """Yield the image files below a folder and its linked folders; record all other files."""
    for name in files_below(folder, Path(folder.resolve().anchor), left_out):
        if left_out.takes(name, partial(head_of, folder / name)):
            yield name


def _leads_to_folder(member: os.DirEntry[str]) -> bool:
    try:
        return member.is_symlink() and member.is_dir()
    except OSError:  # links in a circle
        return False


def _may_enter(real: Path, top: Path, allowed: Path) -> bool:
    inside = real.is_relative_to(top) or top.is_relative_to(real)
    return real.is_relative_to(allowed) and not inside


MOST_BAD = 0.2
"""Maximum share of unreadable images or vectors in the source of a build."""

_FEW_BAD = 4
"""Number of unreadable images or vectors that a build always accepts; a message names each."""


def require_readable(bad: Mapping[str, str], n: int) -> None:
    """Refuse a source of a build if more than `MOST_BAD` of it, and more than four, cannot be read.

    Parameters
    ----------
    bad : reasons, by the ids of unreadable images or vectors.
    n : number of all images or vectors.

    Raises
    ------
    TooManyBadImages
    """
    if len(bad) > max(_FEW_BAD, MOST_BAD * n):
        name, why = next(iter(bad.items()))
        raise TooManyBadImages(
            f"{len(bad):,} of {n:,} items cannot be read, and at most {100 * MOST_BAD:g} % may "
            f"fail; for example {name!r}: {why} Repair or remove such items."
        )


def plain_label(label: str) -> str:
    """Return a label without differences in case, spaces and Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())


def similar_labels(labels: Iterable[str]) -> list[list[str]]:
    """Return groups of labels that differ only in case, spaces or Unicode form, sorted."""
    found: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        found.setdefault(plain_label(label), []).append(label)
    return [names for names in found.values() if len(names) > 1]


_NO_VALUES = frozenset(
    {"nan", "none", "null", "n/a", "na", "<na>", "-", "?", "??"}
    | {"unknown", "unidentified", "unbekannt", "inconnu", "inconnue"}
)
"""Texts that programs and people write for a missing value, in lower case. As a label, "unknown"
would make one identity of all unknown animals or persons."""


def label_messages(labels: Iterable[str]) -> list[str]:
    """Return the warnings about labels: likely missing values, and similar labels."""
    labels = set(labels)
    messages = missing_labels_message(labels), similar_labels_message(similar_labels(labels))
    return [message for message in messages if message]


def missing_labels_message(labels: Iterable[str]) -> str:
    """Return a warning about labels that look like missing values; empty if there are none."""
    found = sorted(label for label in labels if plain_label(label) in _NO_VALUES)
    if not found:
        return ""
    return (
        f"Taken as labels: {', '.join(map(repr, found))}. If the labels are missing, leave these "
        "fields empty."
    )


def similar_labels_message(groups: list[list[str]]) -> str:
    """Return a warning about groups of similar labels; empty if there are none."""
    if not groups:
        return ""
    shown = "; ".join(", ".join(map(repr, names)) for names in groups[:N_SHOWN])
    return (
        f"Labels that differ only in case, spaces or Unicode form count as different: {shown}"
        f"{'; …' if len(groups) > N_SHOWN else ''}. If they mean the same, use one spelling."
    )


_PARTS = frozenset(
    {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
)
"""Names of folders with parts of a data set, in lower case."""

_MOST_PATHS = 100_000
"""Maximum number of paths in which `nested_labels_message` searches for folders."""


def nested_labels_message(labels: Iterable[str], paths: Iterable[str]) -> str:
    """Return a warning if the labels are probably one folder deeper; empty otherwise.

    The labels are probably deeper if there is only one label, or if all labels are names of parts
    of a data set, such as ``train`` and ``test``, and the folders of the labels contain folders.

    Parameters
    ----------
    labels : the labels.
    paths : paths of the images with labels, as strings with ``/``. The first folder in a path is
        the label, if the labels come from folders.
    """
    tops = set(labels)
    if len(tops) != 1 and not {plain_label(label) for label in tops} <= _PARTS:
        return ""
    inner: dict[str, None] = {}
    for path in islice(paths, _MOST_PATHS):
        parts = path.split("/")
        if len(parts) > 2 and parts[0] in tops:
            inner[parts[1]] = None
            if len(inner) > 2:
                break
    if len(inner) < 2:
        return ""
    found, top = list(map(repr, inner)), max(tops)  # "train" comes after "test"
    return (
        f"The names of the top folders are the labels: {', '.join(map(repr, sorted(tops)))}. But "
        f"these contain other folders: {', '.join(found[:2])}{', …' * (len(found) > 2)}. If those "
        f"are the labels, name the folder that contains them, for example SOURCE/{top}. For "
        "several such folders, write a table with the columns path and label. If no folder is a "
        "label, use --no-labels."
    )
