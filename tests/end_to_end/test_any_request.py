"""Requests that nobody would write, made from the OpenAPI document, at a running service.

Schemathesis asks all operations, in all of its phases and with all of its checks.
`schemathesis.toml` and `request_hooks.py` say what it has to know of the service.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.processes import Service

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_schemathesis_finds_no_fault_in_any_operation(built_digits: Path, tmp_path: Path) -> None:
    bundles = Path(shutil.copytree(built_digits / "bundles", tmp_path / "bundles"))
    (tmp_path / "galleries").mkdir()
    variables = {
        "VOUCH_GALLERIES": str(tmp_path / "galleries"),
        "VOUCH_FEEDBACK": str(tmp_path / "feedback.sqlite3"),
        "VOUCH_REVIEW_REASONS": "ambiguous,absent,random",
        "VOUCH_RECALIBRATE": "false",
    }
    with Service(bundles, tmp_path / "service.log", variables) as service:
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--no-color", "--config-file", str(HERE / "schemathesis.toml"), "run"),
            *("--generation-database", "none", f"{service.http.base_url}/openapi.json"),
        ]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 63" in done.stdout
    assert "API Links:    0 covered" not in done.stdout
    assert not service.logged("unhandled")
