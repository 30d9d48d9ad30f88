"""The plugin of FiftyOne, run by FiftyOne itself on a dataset in its database.

FiftyOne pins a web framework, so `make try NAME=fiftyone` makes an environment of its own.
`VOUCH_FIFTYONE_PYTHON` names its interpreter, without which these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from model_store.bundles.bundle import Bundle
from tests.end_to_end.processes import Service

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
import fiftyone as fo
import fiftyone.operators as foo

asked = json.loads(sys.argv[1])
dataset = fo.Dataset(asked["name"], overwrite=True)
dataset.add_samples([fo.Sample(filepath=path) for path in asked["images"]])
if asked["foreign"]:
    dataset.add_sample_field(asked["foreign"], fo.FloatField)
try:
    for _ in range(2):  # again: its own fields are written anew
        outcome = foo.execute_operator(
            "@vouch/vouch/write_verdicts",
            {"dataset": dataset, "view": dataset.view(), "params": asked["params"]},
        )
    dataset.reload()
    prefix = asked["params"].get("prefix", "")
    names = ["vouch_verdict", "match_probability", "uncertainty", "ood"]
    fields = [dict(zip(names, [sample[prefix + name] for name in names])) for sample in dataset]
    outcome = outcome if isinstance(outcome, dict) else outcome.result
    ids = dataset.values("id")
    problems = {ids.index(one): said for one, said in outcome["problems"].items()}
    answer = {"fields": fields, "written": outcome["written"], "problems": problems}
except Exception as error:
    answer = {"error": str(error)}
finally:
    dataset.delete()
print("\\nANSWER " + json.dumps(answer))
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder of plugins with Vouch's, as a user links it."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "vouch").symlink_to(ROOT / "service" / "client" / "fiftyone")
    return folder


def run(
    plugins: Path, service: Service, images: list[Path], foreign: str = "", **params: str
) -> Any:
    python = os.environ.get("VOUCH_FIFTYONE_PYTHON")
    if python is None:
        pytest.skip("VOUCH_FIFTYONE_PYTHON is not set: no FiftyOne; see `make try NAME=fiftyone`")
    asked = {
        "name": f"vouch-test-{os.getpid()}",
        "images": [str(path) for path in images],
        "foreign": foreign,
        "params": {"gallery": "digits", "url": str(service.http.base_url), **params},
    }
    own = {
        "PYTHONPATH": str(ROOT),
        "FIFTYONE_PLUGINS_DIR": str(plugins),
        "FIFTYONE_DO_NOT_TRACK": "true",
        "FIFTYONE_DATABASE_DIR": str(plugins.with_name("database")),
    }
    done = subprocess.run(
        [python, "-c", PROGRAM, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **own},
        timeout=300,
    )
    assert "\nANSWER " in done.stdout, done.stderr
    return json.loads(done.stdout.rpartition("\nANSWER ")[2])


def test_samples_get_what_the_library_says(
    service: Service, library: Bundle, plugins: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"broken")
    images = [library.directory / one.file for one in library.manifest.samples]
    nothing = dict.fromkeys(("vouch_verdict", "match_probability", "uncertainty", "ood"))
    answer = run(plugins, service, [*images, tmp_path / "broken.png", tmp_path / "missing.png"])
    assert answer["written"] == len(images)
    assert answer["fields"][len(images) :] == [nothing, nothing]
    for path, fields in zip(images, answer["fields"], strict=False):
        expected = library.retriever.search(path.read_bytes(), limit=1)
        assert fields["vouch_verdict"] == expected.decision.verdict
        assert fields["match_probability"] == pytest.approx(expected.matches[0].match_probability)
        assert fields["uncertainty"] == pytest.approx(expected.uncertainty, rel=1e-4)
        assert fields["ood"] == (expected.decision.verdict == "out_of_distribution")
    said = [answer["problems"][str(len(images) + n)] for n in range(2)]
    assert said[0].startswith("unsupported_image: ")
    assert said[1].startswith("unreadable: ")


def test_fields_of_others_are_not_overwritten(
    service: Service, library: Bundle, plugins: Path
) -> None:
    images = [library.directory / library.manifest.samples[0].file]
    assert "['uncertainty']" in run(plugins, service, images, "uncertainty")["error"]
    assert run(plugins, service, images, "uncertainty", prefix="vouch_")["written"] == 1
