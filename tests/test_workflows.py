"""The workflow of GitHub runs what the Makefile and `.ci/run` run, and names what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return found


def targets(commands: str) -> set[str]:
    return set(re.findall(r"\bmake ([a-z-]+)", commands))


def run_by(jobs: dict[str, Any]) -> set[str]:
    steps = [step for job in jobs.values() for step in job["steps"] if "run" in step]
    assert all(step["run"].startswith("make ") for step in steps), "a step that the Makefile lacks"
    return targets("\n".join(step["run"] for step in steps))


def test_workflow_runs_targets_of_the_makefile_and_all_of_ci(jobs: dict[str, Any]) -> None:
    run = run_by(jobs)
    for target in run:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    assert targets((ROOT / ".ci" / "run").read_text("utf-8")) <= run


def test_workflow_tests_the_python_versions_that_the_distribution_names(
    jobs: dict[str, Any],
) -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == named


def test_workflow_publishes_only_what_was_tested_and_only_for_tags(jobs: dict[str, Any]) -> None:
    for name in ("publish-wheel", "publish-images", "publish-chart"):
        assert jobs[name]["if"] == "github.ref_type == 'tag'"
    for name in ("publish-wheel", "publish-images"):
        assert {"lint", "test", "dist"} <= set(jobs[name]["needs"])
    assert jobs["publish-chart"]["needs"] == ["publish-images"]  # whose tag the chart names
    assert jobs["publish-wheel"]["permissions"] == {"id-token": "write"}
    for image in jobs["publish-images"]["strategy"]["matrix"]["image"]:
        assert (ROOT / "docker" / f"{image}.Dockerfile").exists()


def test_every_copied_file_of_an_image_is_in_its_context() -> None:
    allowed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for file in (ROOT / "docker").glob("*.Dockerfile"):
        for line in re.findall(r"^COPY (?!--)(.*)$", file.read_text("utf-8"), re.MULTILINE):
            for source in line.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source.startswith(one[1:]) for one in allowed if one[0] == "!"), source
