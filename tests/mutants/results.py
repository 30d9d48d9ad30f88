"""Results of mutants, one JSON object a line, of however many runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutants.drawing import Key, Mutant, key_of

Entry = Mapping[str, Any]


class Results:
    """A file of results; what was tried again stands in it again, and the last line counts.

    Attributes
    ----------
    first, last : the earliest and the latest result of every mutant.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.first: dict[Key, Entry] = {}
        self.last: dict[Key, Entry] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                self._note(json.loads(line))

    def append(self, mutant: Mutant) -> None:
        """Keep a result before the next mutant is tried."""
        entry = asdict(mutant)
        del entry["source"]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._note(entry)

    def survivors(self) -> list[Entry]:
        """Return those that nothing has killed yet."""
        return [entry for entry in self.last.values() if entry["outcome"] == "survived"]

    def summary(self, equivalent: Iterable[Key]) -> str:
        """Return how many were killed at first and are now, in all and in every room."""
        known = set(equivalent)
        rooms = dict.fromkeys(entry["room"] for entry in self.first.values())
        lines = [self._counted(known, room) for room in rooms]
        return "\n".join([*lines, self._counted(known)])

    def _counted(self, equivalent: set[Key], room: str = "") -> str:
        counted = [
            key
            for key, entry in self.first.items()
            if key not in equivalent and room in ("", entry["room"])
        ]
        n_equivalent = sum(
            room in ("", self.first[key]["room"]) for key in equivalent & {*self.first}
        )
        first = Counter(self.first[key]["outcome"] for key in counted)["killed"]
        last = Counter(self.last[key]["outcome"] for key in counted)["killed"]
        n = len(counted)
        return (
            f"{room or 'all':12} killed at first {first} of {n} ({first / max(n, 1):.1%}), "
            f"now {last} ({last / max(n, 1):.1%}); {n_equivalent} equivalent"
        )

    def _note(self, entry: Entry) -> None:
        self.first.setdefault(key_of(entry), entry)
        self.last[key_of(entry)] = entry
