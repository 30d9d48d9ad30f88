"""Conventions of the command line: help at 80 columns, versions, exit statuses, Ctrl+C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.main import get_command

from index_builder import progress
from index_builder.commands.app import app
from index_builder.commands.command_line import PANELS
from index_builder.indexing.workdir import LOCK_FILE
from model_store.installation import installed_version
from tests.support.build_command import Done, vouch_build
from tests.support.help_pages import readable
from tests.support.narrowing import instance_of
from tests.torture.crash_indexing import prepare


def pages(group: typer.core.TyperGroup, *words: str) -> list[tuple[str, ...]]:
    """The words of every command and group."""
    found = [words]
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            found += pages(command, *words, name)
        else:
            found.append((*words, name))
    return found


PAGES = pages(instance_of(typer.core.TyperGroup, get_command(app)))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
@pytest.mark.usefixtures("narrow")
def test_help_at_80_columns_is_readable(words: tuple[str, ...], tmp_path: Path) -> None:
    done = vouch_build(*words, "--help", cwd=tmp_path)
    assert done.returncode == 0
    readable(done.stdout)
    assert done.stdout.startswith(f"Usage: {' '.join(('vouch-build', *words))} [OPTIONS]")
    assert "\x1b" not in done.stdout
    assert vouch_build(*words, "-h", cwd=tmp_path).stdout == done.stdout


@pytest.mark.usefixtures("narrow")
def test_help_of_a_wide_terminal_is_no_wider_than_100_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = vouch_build("index", "--help", cwd=tmp_path).stdout.splitlines()
    assert 80 < max(map(len, lines)) <= 100


def test_every_command_is_in_a_named_panel(tmp_path: Path) -> None:
    shown = vouch_build("--help", cwd=tmp_path).stdout
    panels = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    wanted = ["Build", "Galleries", "Bundles", "Evidence", "Operations", "Global options"]
    assert panels == [*wanted, "Exit status"]
    commands = {words[0] for words in PAGES if words}
    assert {name for name in commands if re.search(rf"^  {name} ", shown, re.MULTILINE)} == commands


@pytest.mark.parametrize("option", ["--version", "-V"])
@pytest.mark.parametrize("before", [(), ("--quiet",)])
def test_version_is_one_line(option: str, before: tuple[str, ...], tmp_path: Path) -> None:
    done = vouch_build(*before, option, cwd=tmp_path)
    assert done == Done(0, f"vouch-build {installed_version()}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("index", "--abacus"), "No such option: --abacus"),
        (("indx",), "Did you mean 'index'?"),
        (("index", "--engine", "abacus"), "'abacus' is not one of 'local', 'ray'"),
        (("items", "put"), "Missing argument 'DIRECTORY'"),
        (("index",), "index needs SOURCE"),
        (("index", "a", "-c", "digits"), "SOURCE and --config exclude each other"),
        (("index", "-c", "digits", "--name", "x"), "--name cannot be given with --config"),
        (("index", "a", "--name", "../evil"), "--name: A gallery cannot be called '../evil'"),
        (("index", "a", "--name", "a/b"), "A gallery cannot be called 'a/b'"),
        (("index", "a", "--name", ""), "A gallery cannot be called ''"),
        (("index", "a", "--database", "foo"), "begins with 'foo'. Wanted: postgresql://"),
        (("index", "a", "--database", "postgre://u:pw@h/d"), "begins with 'postgre'. Wanted"),
        (("index", "a", "--database", "http://u:pw@h"), "--database: The address of Milvus names"),
        (
            ("all", "--images", ".", "--database", "foo"),
            '--database "foo": The address of the data',
        ),
        (("index", "a", "--strict", "--max-bad", "50%"), "--strict and --max-bad exclude"),
        (("index", "a", "--encoder", "b", "--levels", "c"), "--levels needs --calibrate"),
        (("evaluate",), "evaluate needs a directory of bundles"),
        (("evaluate", "b"), "evaluate needs --queries"),
        (("evaluate", "b", "-c", "digits"), "takes no BUNDLES"),
        (("evaluate", "-c", "digits", "--out", "x"), "takes no --out"),
        (("calibrate", "b", "--items", "x"), "calibrate needs --queries"),
        (("calibrate", "b", "--within", "9"), "--within needs --queries"),
        (("calibrate", "b", "-c", "d", "--decisions", "x"), "Remove --config, or --decisions"),
        (("calibrate", "b", "--feedback", "x", "--alpha", "0.1"), "Remove --alpha"),
        (("calibrate", "b", "--parents", "x", "--levels", "y"), "exclude each other"),
        (("certify",), "certify needs BUNDLE"),
        (("all",), "Give --images FOLDER"),
        (("all", "--images", "a", "-c", "b"), "--images, --config exclude each other"),
        (("all", "-c", "digits", "--name", "x"), "--name cannot be given with --config"),
        (("all", "--images", "a", "--items", "b"), "--items cannot be given with --images"),
        (("all", "-c", "a", "--encoder", "b"), "--encoder cannot be given with --config"),
        (("all", "--vectors", "a", "--no-labels"), "--no-labels cannot be given with --vectors"),
        (("all", "--vectors", "a", "--root", "b"), "--root cannot be given with --vectors"),
        (("all", "-c", "a", "--root", "b"), "--root cannot be given with --config"),
        (("all", "--images", ".", "--root", "b"), "--root applies to a table"),
        (("all", "--vectors", "a"), "--vectors needs --encoder-name"),
        (("unknown", "b", "--queries", "q", "--expected-absent", "0"), "--expected-absent"),
        (("unknown", "b", "--queries", "q", "--expected-absent", "1"), "below 1"),
        (("unknown", "b", "--queries", "q", "--table", "u", "--out", "./u"), "the same file"),
        (("config", "show"), "Give --images FOLDER"),
        (("encoder",), "Name a model with one of --timm, --open-clip"),
        (("encoder", "--timm", "a", "--hf", "b"), "exclude each other"),
        (("encoder", "--onnx", "a", "--weights", "b"), "Remove --weights"),
        (("encoder", "--timm", "a", "--weights", "b", "--untrained"), "Remove --weights, or"),
        (("encoder", "--timm", "a", "--output", "b"), "need --onnx"),
        (("encoder", "--vectors", "a"), "need each other"),
    ],
)
def test_wrong_usage_has_status_2_and_names_the_help(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = vouch_build(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert re.fullmatch(r"Try 'vouch-build[ \w]* --help' for help\.", hint)


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("b.tar", ("--root", "."), "--root applies to a local folder and to a manifest"),
        ("v.npy", ("--root", "."), "--root applies to images"),
        ("v.npy", ("--max-pixels", "9", "--max-bytes", "9"), "--max-pixels, --max-bytes applies"),
    ],
)
def test_an_option_without_effect_is_refused(
    source: str, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "v.npy", np.eye(3))
    with tarfile.open(tmp_path / "b.tar", "w"):
        pass
    encoder = ("--encoder-name", "x") if source == "v.npy" else ()
    done = vouch_build("index", source, *options, *encoder, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_error_has_status_1_and_verbose_shows_where(tmp_path: Path) -> None:
    done = vouch_build("activate", "none", "x", cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    done = vouch_build("-v", "activate", "none", "x", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_no_command_shows_the_help_with_status_2(tmp_path: Path) -> None:
    done = vouch_build(cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: vouch-build")


def test_ctrl_c_ends_a_command_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("index_builder.commands.bundles.bundle_ids", interrupted)
    assert vouch_build("bundles", ".", cwd=tmp_path) == Done(130, "", "interrupted\n")


def test_ctrl_c_before_a_command_begins_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("index_builder.commands.app.run", interrupted)
    assert vouch_build("bundles", ".", cwd=Path()) == Done(130, "", "interrupted\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("vouch-build cal", "calibrate"), ("vouch-build index --max-f", "--max-false-match-rate")],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: str, tmp_path: Path) -> None:
    variables = {
        **os.environ,
        "_VOUCH_BUILD_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    command = [sys.executable, "-m", "index_builder"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stdout.split()) == (0, [offered])


def test_quiet_leaves_the_result_alone(digits_bundle: Path, tmp_path: Path) -> None:
    def pulled(*options: str) -> Done:
        places = str(digits_bundle.parent), str(tmp_path / f"pulled{len(options)}")
        return vouch_build(*options, "pull", *places, cwd=tmp_path)

    assert "Next: vouch-serve" in pulled().stderr
    done = pulled("--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith(digits_bundle.name)
    assert "Next: vouch-serve" in pulled("-v", "-v").stderr  # quiet no more


LOGGING = """
import logging, warnings
from index_builder.progress import messages_shown, set_output
shown = messages_shown()
shown.__enter__()
set_output(verbose={verbose}, quiet={quiet})
hub = logging.getLogger("huggingface_hub")
hub.addHandler(logging.StreamHandler())
hub.setLevel(logging.INFO)
logging.getLogger("huggingface_hub.utils").warning("retrying")
warnings.warn("deprecated")
logging.getLogger("onnxscript").info("optimised")
logging.getLogger("urllib3").error("gave up")
logging.getLogger("index_builder.datasets").warning("left out a.png")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("verbose", "quiet", "shown"),
    [
        (False, False, {"gave up", "left out a.png"}),
        (True, False, {"retrying", "deprecated", "optimised", "gave up", "left out a.png"}),
        (False, True, set()),
    ],
)
def test_log_messages_of_other_libraries_are_shown_with_verbose_only(
    verbose: bool, quiet: bool, shown: set[str]
) -> None:
    script = LOGGING.format(verbose=verbose, quiet=quiet)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    everything = "retrying", "deprecated", "optimised", "gave up", "left out a.png"
    assert {words for words in everything if words in done.stderr} == shown


def test_no_color_turns_colours_off(monkeypatch: pytest.MonkeyPatch) -> None:
    context = instance_of(typer.core.TyperGroup, get_command(app))
    shown = []
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        shown.append(context.get_help(context.make_context("vouch-build", ["--quiet", "all"])))
    assert "\x1b[" in shown[0]
    assert "\x1b[" not in shown[1]


def test_a_step_prints_its_name_and_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.timed_step("train (1 of 6)"):
        pass
    assert capsys.readouterr().err == "train (1 of 6) …\ntrain (1 of 6) … 0.0 s\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (3.21, "3.2 s"),
        (59.97, "1 min 0 s"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_a_duration_is_written_in_words(seconds: float, words: str) -> None:
    assert progress.in_words(seconds) == words


@pytest.mark.process
def test_ctrl_c_in_a_terminal_leaves_one_line(digits_bundle: Path, tmp_path: Path) -> None:
    """A terminal interrupts all processes of a command, those that decode images among them."""
    prepare(tmp_path / "drawings", 1_500)
    command = [sys.executable, "-m", "index_builder", "index", "drawings", "--workers", "2"]
    indexing = subprocess.Popen(
        [*command, "--encoder", str(digits_bundle), "--provider", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    lock = tmp_path / "runs/drawings/index" / LOCK_FILE
    while not lock.exists():
        assert indexing.poll() is None
        time.sleep(0.01)
    time.sleep(0.1)  # decoders are being started
    os.killpg(indexing.pid, signal.SIGINT)
    _, said = indexing.communicate(timeout=60)
    # CPython ends by the signal itself where it came while a string was executed.
    assert indexing.returncode in {130, -signal.SIGINT}
    assert re.fullmatch(r"interrupted.*\n", said), said


@pytest.mark.parametrize("name", PANELS)
def test_every_option_of_a_long_command_has_a_panel(name: str) -> None:
    commands = instance_of(typer.core.TyperGroup, get_command(app)).commands
    below = instance_of(typer.core.TyperGroup, commands["config"]).commands
    command = commands.get(name) or below[name]
    options = {one.name for one in command.params if one.param_type_name == "option"}
    in_panels = [option for names in PANELS[name].values() for option in names]
    assert sorted(in_panels) == sorted(options - {"verbose", "quiet"})


def test_values_are_named_in_help(tmp_path: Path) -> None:
    shown = vouch_build("calibrate", "--help", cwd=tmp_path).stdout
    for option in ("--queries, --vectors SOURCE", "--levels FIELD,...", "--within METRES"):
        assert f" {option}\n" in shown


def test_the_help_of_a_command_with_many_options_is_in_panels(tmp_path: Path) -> None:
    shown = vouch_build("index", "--help", cwd=tmp_path).stdout
    panels = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    assert panels == ["Arguments", *PANELS["index"], "Global options"]


@pytest.mark.parametrize(
    ("variable", "value", "arguments"),
    [
        ("VOUCH_MILVUS_LOG", "postgresql://u:hunter2/@h/db", ["doctor", "."]),
        ("VOUCH_MILVUS_URI", "http://root:hunter2@milvus:19530", ["doctor", "."]),
        ("VOUCH_ALLOWED_ORIGINS", "hunter2", ["index", "http://127.0.0.1:9/list.csv"]),
        ("NO_COLOR", "1", ["doctor", ".", "https://ann:hunter2@a.example/list.csv"]),
        ("NO_COLOR", "1", ["index", "s4://ann:hunter2@bucket/list.csv?sig=hunter2"]),
    ],
)
def test_a_secret_in_a_variable_or_an_address_is_not_printed(
    variable: str,
    value: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setenv(variable, value)
    done = vouch_build(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert variable in done.stdout + done.stderr or variable == "NO_COLOR"


def test_a_secret_in_a_file_is_read_and_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "vouch_milvus_log").write_text("mysql://u:hunter2@h/db\n")
    monkeypatch.setenv("VOUCH_SECRETS_DIR", str(secrets))
    done = vouch_build("doctor", ".", cwd=tmp_path)
    assert "VOUCH_MILVUS_LOG must begin with postgresql://" in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr
