"""What runs where torch cannot be imported: the service, its client, and half of the builder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.end_to_end.processes import Service
from tests.support.released_bundles import released

BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {names} or name.split(".")[0] in {names}:
            print("BLOCKED", name, file=sys.stderr, flush=True)
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)
        return None

sys.meta_path.insert(0, Blocked())
"""


def blocked(*names: str) -> str:
    """The beginning of a program that can import none of these."""
    return BLOCK.format(names=set(names))


BLOCKED = blocked("torch", "torchvision", "sklearn", "index_builder", "onnx")

SERVE = BLOCKED + "from service.__main__ import main; main(sys.argv[1:])"
ALONE = {"VOUCH_RECALIBRATE": "false"}
"""Else the service looks whether the builder is there, which the block takes for an import."""


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
    with Service(digits_bundle, tmp_path / "log", ALONE, command=command) as without:
        for image in samples:
            ours, theirs = without.answer(image), service.answer(image)
            assert ours["results"] == theirs["results"]
            assert ours["query"] == theirs["query"]
        assert without.http.get("/docs").status_code == 200
        assert "BLOCKED" not in without.printed()


def test_a_client_needs_neither_model_nor_gallery() -> None:
    names = ("numpy", "scipy", "faiss", "onnxruntime", "PIL", "sqlite3", "fastapi", "redis")
    program = blocked(*names) + "from service.client import VouchClient; VouchClient('http://x')"
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_help_of_the_builder_needs_none_of_what_it_works_with() -> None:
    names = ("torch", "scipy", "faiss", "onnxruntime", "sklearn", "onnx")
    commands = [[*command, "--help"] for command in ((), ("index",), ("all",), ("items",))]
    done = run(blocked(*names) + BUILD_ALL, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(commands)
    assert "BLOCKED" not in done.stderr


BUILD = """
from index_builder.__main__ import main
main()
"""


def test_indexing_calibrating_evaluating_and_the_doctor_need_no_torch(
    digits_bundle: Path, tmp_path: Path
) -> None:
    staging = tmp_path / "run" / "bundle"
    staging.mkdir(parents=True)
    shutil.copy(digits_bundle / "encoder.onnx", staging)
    (tmp_path / "run" / "lock").touch()  # as `export` leaves it
    few = resources.files("index_builder").joinpath("configs/digits.toml").read_text("utf-8")
    config = tmp_path / "few.toml"
    config.write_text(few.replace("[outliers]", "[outliers]\nn_images = 100"), encoding="utf-8")
    step = ("-c", str(config), "--run", str(tmp_path / "run"))
    collection = ("index", str(digits_bundle / "samples"), "--encoder", str(digits_bundle))
    places = ("--run", str(tmp_path / "own"), "--bundles", str(tmp_path / "bundles"))
    commands = (
        ("index", *step),
        ("calibrate", *step),
        ("evaluate", *step),
        ("publish", *step, "--bundles", str(tmp_path / "published")),
        (*collection, *places),
        ("doctor", str(tmp_path / "published")),
    )
    hidden = blocked("torch", "torchvision", "onnx", "safetensors")
    done = run(hidden + BUILD_ALL, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    assert "BLOCKED" not in done.stderr
    looked_at = run(hidden + BUILD, "doctor")
    assert (
        "torch is not installed; training and encoders of other libraries need it"
        in looked_at.stdout
    )
    assert looked_at.returncode == 0, looked_at.stdout


def test_a_gallery_of_photographs_is_built_without_torch(tmp_path: Path) -> None:
    source = Path("docs/demo/photographs")
    for label in sorted(source.iterdir())[:8]:
        shutil.copytree(label, tmp_path / "photographs" / label.name)
    places = ("--run", str(tmp_path / "run"), "--bundles", str(tmp_path / "bundles"))
    commands = (
        ("all", "--images", str(tmp_path / "photographs"), *places),
        ("doctor", str(tmp_path / "bundles")),
    )
    hidden = blocked("torch", "torchvision", "onnxscript")
    done = run(hidden + BUILD_ALL, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    assert "BLOCKED" not in done.stderr
    assert "The first result is right for" in done.stdout
    assert "good  bundle" in done.stdout


BUILD_ALL = """
import json
from index_builder.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
"""Several commands, one after the other: each imports for seconds."""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def missing_in_the_image() -> tuple[str, ...]:
    """Modules that are installed here, and not in the service's image."""
    image = (ROOT / "docker" / "service.Dockerfile").read_text("utf-8")
    (extras,) = re.findall('^ARG EXTRAS="(.+)"$', image, re.MULTILINE)
    listed = subprocess.run(
        [sys.executable, ROOT / "docker" / "requirements.py", *extras.split()],
        env={"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    installed = {"vouch-search", *re.findall(r"^([\w.-]+)==", listed, re.MULTILINE)}
    assert {"onnxruntime", "rich"} <= installed
    return tuple(
        module
        for module, distributions in packages_distributions().items()
        if installed.isdisjoint(map(canonicalize_name, distributions)) and module != "onnxruntime"
    )


OPERATE = """
from index_builder.__main__ import main
for command in {commands}:
    sys.argv = ["vouch-build", *command.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def test_commands_of_an_operator_need_only_what_the_image_has(
    built_digits: Path, tmp_path: Path, missing_in_the_image: tuple[str, ...]
) -> None:
    assert {"torch", "sklearn", "onnx", "jinja2", "matplotlib"} <= set(missing_in_the_image)
    root, other = released("schema-7", tmp_path), tmp_path / "restored"
    digits = shutil.copytree(built_digits / "bundles", tmp_path / "digits")
    commands = [
        f"calibrate {digits}",
        f"upgrade {root}",
        f"items delete {root} 00/1.png",
        f"backup {root} {tmp_path}/backup.tar",
        f"restore {tmp_path}/backup.tar {other}",
        f"compact {other}",
        f"prune {other} --keep 1",
        f"bundles {other}",
        f"doctor {other}",
    ]
    program = blocked(*missing_in_the_image) + OPERATE.format(commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "1 items deleted, the gallery has 47" in done.stdout
    assert done.stdout.count("47 items, 1 changes") == 2
    assert "good  bundle" in done.stdout


def test_command_that_needs_the_builder_names_what_installs_it(
    tmp_path: Path, missing_in_the_image: tuple[str, ...]
) -> None:
    program = blocked(*missing_in_the_image) + OPERATE.format(commands=["all --config digits"])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "is not installed. In a checkout of Vouch: pip install '.[build]'" in done.stderr
    assert "Traceback" not in done.stderr
