"""What the three workflows do alike: run commands, write tables, ask, and wait."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from tests.end_to_end.processes import Service, wait_until
from tests.support.build_command import vouch_build

DECISIONS = "decisions.sqlite3"


@dataclass(frozen=True)
class Commands:
    """`vouch-build` in a directory."""

    place: Path

    def run(self, *arguments: object) -> str:
        """Run a command that succeeds, and return what it printed."""
        done = vouch_build(*map(str, arguments), cwd=self.place)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def index(self, source: str, encoder: Path, gallery: str, *options: object) -> None:
        """Index a collection by an encoder, as a gallery of that name."""
        self.run("index", source, "--encoder", encoder, "--name", gallery, *options)

    def serve(self, gallery: str, **variables: str) -> Service:
        """Serve what was indexed under a name; decisions are kept."""
        named = {f"VOUCH_{name.upper()}": value for name, value in variables.items()}
        kept = {"VOUCH_FEEDBACK": str(self.place / DECISIONS)}
        return Service(self.place / "bundles" / gallery, self.place / "log", kept | named)

    def exported_decisions(self, gallery: str) -> list[dict[str, str]]:
        """Export the decisions that were kept, and read them."""
        self.run("feedback", "export", DECISIONS, "decisions.csv", "--gallery", gallery)
        return self.read_table("decisions.csv")

    def write_table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Write a table as CSV."""
        with (self.place / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def read_table(self, name: str) -> list[dict[str, str]]:
        """Read a table that a command has written."""
        with (self.place / name).open(newline="") as file:
            return list(csv.DictReader(file))


def verdicts(answers: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count the verdicts."""
    return Counter(answer["verdict"] for answer in answers)


def matches(answers: Sequence[Mapping[str, Any]], truth: Sequence[str], by: str) -> list[bool]:
    """Tell of each answer ``match`` whether the first result is what was photographed.

    Parameters
    ----------
    truth : of each answer.
    by : what it is the truth of: ``label`` or ``id``.
    """
    return [
        answer["results"][0][by] == true
        for answer, true in zip(answers, truth, strict=True)
        if answer["verdict"] == "match"
    ]


def wait_for_another_bundle(service: Service, gallery: str, bundle: str) -> None:
    """Wait until another bundle than ``bundle`` is served, and its calibration is valid."""

    def is_another() -> bool:
        detail = service.http.get(f"/v1/galleries/{gallery}").json()["bundle"]
        return bool(detail["id"] != bundle and detail["calibration"]["status"] == "valid")

    wait_until(is_another, service)


def as_jpeg(picture: Image.Image) -> bytes:
    """Return a picture as a camera saves it."""
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
