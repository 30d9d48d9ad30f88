"""The service runs where torch cannot be imported, and tries to import nothing of the builder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from end_to_end.processes import Service

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "torchvision", "sklearn", "index_builder", "onnx"}:
            print("BLOCKED", name, file=sys.stderr, flush=True)
            raise ImportError(f"{name} is not installed here")
        return None

sys.meta_path.insert(0, Blocked())
"""

SERVE = BLOCKED + "from service.__main__ import main; main(sys.argv[1:])"


def test_the_block_blocks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{BLOCKED}\nimport sklearn.datasets"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "BLOCKED sklearn" in done.stderr


def test_it_answers_without_torch(
    service: Service, digits_bundle: Path, tmp_path: Path, samples: list[bytes]
) -> None:
    command = (sys.executable, "-c", SERVE)
    with Service(digits_bundle, tmp_path / "log", command=command) as without:
        for image in samples:
            ours, theirs = without.answer(image), service.answer(image)
            assert ours["results"] == theirs["results"]
            assert ours["query"] == theirs["query"]
        assert without.http.get("/docs").status_code == 200
        assert "BLOCKED" not in without.printed()
