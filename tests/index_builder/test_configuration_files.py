"""`vouch-build config`, the configuration in a run, and the JSON schema."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image

from index_builder.configuration.build import BuildConfig, builtin_configs, load_config
from index_builder.configuration.file import EXAMPLE, effective_file, starting_file
from index_builder.configuration.objective import OF_VIEWS
from index_builder.configuration.schema import SCHEMA_FILE, keys_of, schema_of, tags_of
from index_builder.pipeline.run import CONFIG_FILE, Run
from tests.index_builder.test_configuration_errors import CONTRADICTIONS, TYPOS
from tests.support.build_command import vouch_build

DIGITS = 'name = "x"\n[dataset]\nkind = "digits"\n'

COMMENTED_OUT = re.compile(r"^#(\w+ = .*)$", re.MULTILINE)
"""A key of `starting_file` that is commented out."""


def variants() -> list[tuple[str, str]]:
    """Each objective and each method, as the text of a file."""
    found = []
    for table, name, _, node in keys_of(schema_of(BuildConfig)):
        tag = tags_of(node)
        if tag is not None and name == tag[0] and table in {"training.objective", "posterior"}:
            found += [(table, f'{name} = "{value}"') for value in tag[1]]
    return found


def text_of(table: str, tag: str) -> str:
    """Return a file with that objective or method, and what it needs."""
    name = tag.split('"')[1]
    more = "[network]\ndropout = 0.2\n" if name == "mc_dropout" else ""
    more += "[training]\ncrop = 0.3\n" if name in OF_VIEWS else ""
    return f"{DIGITS}{more}[{table}]\n{tag}\n"


@pytest.mark.parametrize(
    "text",
    [
        *(text_of(*one) for one in variants()),
        '[dataset]\npath = "photographs"\nwithheld_labels = ["ä", "b"]\n',
        '[dataset]\npath = "photographs"\n[network]\ntrunk = "small_cnn"\n',
        '[dataset]\npath = "photographs"\n[network]\nencoder = "timm:x"\n',
        '[dataset]\npath = "v.npz"\n[network]\nencoder = "declared"\n',
        f'{DIGITS}[index]\nfilter_fields = ["year"]\n[calibration]\nmax_false_match_rate = 1e-7\n',
    ],
)
def test_effective_file_means_the_same(tmp_path: Path, text: str) -> None:
    path = tmp_path / "given.toml"
    path.write_text(text)
    config = load_config(path)
    path.write_text(effective_file(config))
    assert load_config(path) == config
    jsonschema.validate(tomllib.loads(path.read_text()), schema())


@pytest.mark.parametrize("name", builtin_configs())
def test_config_show_prints_every_key_with_its_value(tmp_path: Path, name: str) -> None:
    shown = vouch_build("config", "show", "--config", name, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "shown.toml").write_text(shown.stdout)
    assert load_config(tmp_path / "shown.toml") == load_config(name)
    tables = tomllib.loads(shown.stdout)
    assert tables["training"]["labels_per_batch"] == load_config(name).training.labels_per_batch
    assert tables["calibration"]["delta"] == 0.1
    assert list(tmp_path.iterdir()) == [tmp_path / "shown.toml"]


def test_config_show_takes_the_options_of_all(tmp_path: Path) -> None:
    options = ("--images", "photographs", "--name", "mine", "--milvus", "http://milvus:19530")
    shown = vouch_build("config", "show", *options, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    tables = tomllib.loads(shown.stdout)
    assert tables["name"] == "mine"
    assert tables["dataset"]["path"] == str(tmp_path / "photographs")
    assert tables["index"]["database_uri"] == "http://milvus:19530"
    assert tables["training"]["epochs"] == 0
    assert not list(tmp_path.iterdir())


def test_config_show_of_vectors_writes_nothing(tmp_path: Path) -> None:
    options = ("--vectors", "v.npy", "--encoder-name", "theirs")
    shown = vouch_build("config", "show", *options, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    declared = tomllib.loads(shown.stdout)["network"]["encoder"]
    assert declared == str(tmp_path / "runs" / "v" / "encoder.onnx")
    assert not list(tmp_path.iterdir())


def test_config_show_of_a_wrong_file_ends_with_its_errors(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(DIGITS + "[training]\nepoch = 5\n")
    shown = vouch_build("config", "show", "-c", "mine.toml", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stderr == (
        "error: mine.toml:5: training.epoch = 5: unknown key. Did you mean `epochs`?\n"
    )


def test_config_init_writes_a_file_that_means_what_its_folder_alone_does(tmp_path: Path) -> None:
    done = vouch_build("config", "init", "mine.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine.toml\n")
    text = (tmp_path / "mine.toml").read_text()
    assert text.splitlines()[0] == f"#:schema {SCHEMA_FILE.as_uri()}"
    assert "vouch-build all --config mine.toml" in text
    config = BuildConfig.model_validate({"dataset": {"path": tmp_path / "photographs"}})
    assert load_config(tmp_path / "mine.toml") == config


def test_config_init_leaves_no_part_of_a_file_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        done = vouch_build("config", "init", cwd=tmp_path)
    assert done.returncode == 1
    assert "Cannot write vouch.toml: No space left on device." in done.stderr
    assert vouch_build("config", "init", cwd=tmp_path).returncode == 0


def test_config_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "vouch.toml").write_text("mine")
    done = vouch_build("config", "init", cwd=tmp_path)
    assert done.returncode == 1
    assert "vouch.toml already exists" in done.stderr
    assert (tmp_path / "vouch.toml").read_text() == "mine"


def test_starting_file_has_every_key_with_the_default_it_says(tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    tables, _, _ = starting_file("vouch.toml").partition("#[[")
    lines, n_keys = tables.splitlines(), 0
    for number, line in enumerate(lines):
        key = COMMENTED_OUT.match(line)
        if key is not None:
            n_keys += 1
            if not lines[number - 1].endswith(EXAMPLE):
                lines[number] = key[1]
    path.write_text("\n".join(lines))
    config = BuildConfig.model_validate({"dataset": {"path": tmp_path / "photographs"}})
    assert load_config(path) == config
    schema = schema_of(BuildConfig)
    first = schema["properties"]["posterior"]["oneOf"][0]
    others = [
        (table, name)
        for table, name, _, node in keys_of(schema)
        if table not in {"training.objective", "samples"}
        and (table != "posterior" or node == first)
    ]
    assert n_keys == len(others)  # dataset.path is given, training.objective is a key here


def test_starting_file_has_examples_that_are_valid(tmp_path: Path) -> None:
    """Each key without a default, with the value that stands there, in a file that may have it."""
    given = {
        "items": '[dataset]\npath = "v.npy"\n[network]\nencoder = "e"\n',
        "weights": DIGITS + '[network]\ntrunk = "resnet18"\n',
    }
    table, n_examples = "", 0
    tables, _, _ = starting_file("vouch.toml").partition("#[[")
    for before, line in pairwise(tables.splitlines()):
        table = line if line.startswith("[") else table
        if before.endswith(EXAMPLE) and line:
            n_examples += 1
            key = line.removeprefix("#")
            base = given.get(key.split(" ")[0], DIGITS)
            whole = base.replace(f"{table}\n", f"{table}\n{key}\n") if table in base else ""
            (tmp_path / "given.toml").write_text(whole or f"{base}{table}\n{key}\n")
            load_config(tmp_path / "given.toml")
    assert n_examples >= 7


def test_starting_file_ends_with_a_sample_that_is_valid(tmp_path: Path) -> None:
    tables, _, sample = starting_file("vouch.toml").partition("#[[")
    uncommented = re.sub(COMMENTED_OUT, r"\1", f"[[{sample}")
    (tmp_path / "given.toml").write_text(tables + uncommented)
    (read,) = load_config(tmp_path / "given.toml").samples
    assert read.file.is_relative_to(tmp_path)
    assert read.label is not None


def schema() -> dict[str, Any]:
    """The JSON schema as it is shipped."""
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text("utf-8"))
    return found


def test_config_schema_prints_the_shipped_schema(tmp_path: Path) -> None:
    done = vouch_build("config", "schema", cwd=tmp_path)
    assert json.loads(done.stdout) == schema()
    jsonschema.Draft7Validator.check_schema(schema())


@pytest.mark.parametrize(
    "text",
    [
        DIGITS,
        '[dataset]\npath = "p"\n',
        *(text_of(*one) for one in variants()),
        DIGITS + '[training]\nobjective = "smooth_ap"\n',
    ],
)
def test_schema_accepts_what_is_read(text: str) -> None:
    jsonschema.validate(tomllib.loads(text), schema())


TOLD_BY_CODE_ALONE = ("IMAGENET_V1", "a..b", "s3://", "inf")


@pytest.mark.parametrize(
    "text", [one[0] for one in TYPOS if not any(part in one[0] for part in TOLD_BY_CODE_ALONE)]
)
def test_schema_refuses_typos(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), schema())


BEFORE = """
import os, sys
from index_builder.__main__ import main
for folder in sys.argv[1:]:
    os.chdir(folder)
    for command in ("all", "train"):
        sys.argv = ["vouch-build", command, "-c", "mine.toml"]
        try:
            main()
        except SystemExit as end:
            assert end.code == 1, end.code
        loaded = {"torch", "torchvision", "sklearn", "onnx"} & set(sys.modules)
        assert not loaded, loaded
        print("REFUSED", file=sys.stderr)
"""
"""Several commands, one after the other: each imports for half a second."""

CANNOT_BE = [
    (CONTRADICTIONS[0][0], "dataset.labels"),
    ('[dataset]\npath = "nowhere"\n', "nowhere does not exist"),
    ('[dataset]\npath = "photos"\nwithheld_labels = ["crab", "b"]\n', "Did you mean 'crabs'"),
    (DIGITS + '[network]\ntrunk = "resnet18"\nweights = "w.pth"\n', "w.pth does not exist"),
]


@pytest.mark.process
def test_a_build_that_cannot_be_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(CANNOT_BE))]
    for folder, (text, _) in zip(folders, CANNOT_BE, strict=True):
        (folder / "photos" / "crabs").mkdir(parents=True)
        (folder / "mine.toml").write_text(text)
    command = [sys.executable, "-c", BEFORE, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *answers, last = done.stderr.split("REFUSED\n")
    assert (len(answers), last) == (2 * len(CANNOT_BE), "")
    for number, answer in enumerate(answers):
        assert CANNOT_BE[number // 2][1] in " ".join(answer.split())


def test_all_with_a_signing_key_that_is_missing_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOUCH_SIGNING_KEY", str(tmp_path / "publisher"))
    done = vouch_build("all", "--config", "digits", cwd=tmp_path)
    assert done.returncode == 1
    assert "publisher" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.bundle
def test_a_run_has_the_configuration_that_builds_it_again(tmp_path: Path) -> None:
    """Through the command line; the file names the encoder as it was asked for."""
    rng = np.random.default_rng(0)
    for label in range(8):
        folder = tmp_path / "shades" / f"l{label}"
        folder.mkdir(parents=True)
        for number in range(34):
            noise = rng.integers(-30, 30, (16, 16, 3))
            shade = (60 + 20 * label + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(shade).save(folder / f"{number}.png")
    (tmp_path / "mine.toml").write_text(
        '[dataset]\npath = "shades"\n[outliers]\ncalibration = "none"\nevaluation = "none"\n'
    )
    first = vouch_build("all", "--config", "mine.toml", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    written = tmp_path / "runs" / "shades" / CONFIG_FILE
    assert tomllib.loads(written.read_text())["network"]["encoder"] == "mobilenet_v2"
    elsewhere = ("--run", "again", "--bundles", "others")
    again = vouch_build("all", "--config", str(written), *elsewhere, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    names = [out.stdout.strip().splitlines()[-1].rpartition("/")[2] for out in (first, again)]
    assert names[0] == names[1]  # bundles are named by their content
    assert (tmp_path / "again" / CONFIG_FILE).read_text() == written.read_text()


def test_write_config_of_torchrun_is_left_to_its_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    Run(tmp_path / "run").write_config(load_config("digits"))
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("RANK", "0")
    Run(tmp_path / "run").write_config(load_config("digits"))
    assert load_config(tmp_path / "run" / CONFIG_FILE) == load_config("digits")
