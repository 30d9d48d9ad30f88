"""Files that look like images and are of a format that Vouch does not read: counted, and said."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePath

from model_store.images import FORMATS

OTHER_SUFFIXES = frozenset(
    {".heic", ".heif", ".hif", ".avif", ".jxl", ".jp2", ".j2k", ".jpf", ".jpx", ".jpm"}
    | {".svg", ".psd", ".eps", ".ico", ".tga", ".pcx", ".dds", ".exr", ".hdr"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
    | {".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw", ".raw"}
)
"""File name suffixes of other image formats: those of phones, cameras and image programs."""

N_SHOWN = 10
"""Names in a message; a report lists all."""


@dataclass(slots=True)
class OtherFormats:
    """The files of a source that look like images and were not taken.

    Attributes
    ----------
    names : of all of them, in the order of the source; bytes that are not UTF-8 are escaped.
    """

    names: list[str] = field(default_factory=list)

    def look_at(self, name: str) -> None:
        """Keep the name of a file that no decoder takes, if it is called as images are."""
        if PurePath(name).suffix.lower() in OTHER_SUFFIXES:
            self.names.append(name.encode(errors="backslashreplace").decode())

    @property
    def counts(self) -> str:
        """The number of files with each suffix, the most frequent first: ``8 .heic, 1 .avif``."""
        suffixes = Counter(PurePath(name).suffix.lower() for name in self.names)
        return ", ".join(f"{n:,} {suffix}" for suffix, n in suffixes.most_common())

    @property
    def sentence(self) -> str:
        """A message that names the files left out, and how to convert them."""
        n = len(self.names)
        these = "file looks like an image and was" if n == 1 else "files look like images and were"
        shown = ", ".join(self.names[:N_SHOWN]) + (", …" if n > N_SHOWN else "")
        suffix = PurePath(self.names[0]).suffix
        return (
            f"{n:,} {these} not taken ({self.counts}): {shown}. Vouch reads {', '.join(FORMATS)}. "
            "Convert them and run the command again, for example with ImageMagick: "
            f"find FOLDER -iname '*{suffix}' -exec magick mogrify -format jpg {{}} +"
        )
