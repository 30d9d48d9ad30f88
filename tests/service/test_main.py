"""What `vouch-serve` says before it serves; that it serves is tested end to end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from model_store.errors import GalleryUnavailable
from service.__main__ import main, open_bundles, open_served, read_command_line
from service.encoding.process import EncoderProcess
from service.encoding.shared import SharedEncoders
from service.settings import Settings


@pytest.fixture(autouse=True)
def _logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of this process is the test runner's."""
    monkeypatch.setattr("service.__main__.log_as_json", lambda: None)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on standard error that `vouch-serve` ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("vouch-serve: ")
    return line.removeprefix("vouch-serve: ")


def test_help_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name in Settings.model_fields:
        assert f"VOUCH_{name.upper()}" in text


def test_two_galleries_of_one_name_are_refused(
    capsys: pytest.CaptureFixture[str], digits_bundle: Path
) -> None:
    bundle = ("--bundle", str(digits_bundle))
    assert "['digits', 'digits']" in refusal(capsys, *bundle, *bundle, "--provider", "cpu")


def test_the_bundle_may_be_a_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOUCH_BUNDLE", "/from/the/environment")
    assert "No bundle at /from/the/environment" in refusal(capsys)
    assert "No bundle at /from/an/option" in refusal(capsys, "--bundle", "/from/an/option")


def test_a_directory_of_bundles_gives_its_current_one(digits_bundle: Path) -> None:
    open_one = partial(open_served, Settings(provider="cpu"), SharedEncoders(EncoderProcess))
    [opened] = open_bundles([digits_bundle.parent], open_one)
    assert opened.directory == digits_bundle


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VOUCH_PORT", "http"),
        ("VOUCH_CORS_ORIGINS", "https://shop.example"),  # wanted: JSON
        ("VOUCH_REDIS_URL", "localhost:6379"),
    ],
)
def test_a_setting_that_cannot_be_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    digits_bundle: Path,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    # Were it accepted, the missing bundle would be refused next, and nothing served.
    said = refusal(capsys, "--bundle", str(digits_bundle / "none"))
    assert name.removeprefix("VOUCH_") in said.upper()
    assert "No bundle" not in said


@pytest.mark.parametrize(
    ("cause", "said"), [(OSError("10.0.0.7:\n gone"), " (OSError: 10.0.0.7: gone)"), (None, "")]
)
def test_who_starts_a_service_whose_gallery_does_not_answer_is_told_the_reason(
    cause: OSError | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serve(*_: object) -> None:
        raise GalleryUnavailable("Milvus does not answer.") from cause

    monkeypatch.setattr("service.__main__._serve", serve)
    assert refusal(capsys) == f"Milvus does not answer.{said}"


def test_an_unknown_provider_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'openvino' or 'coreml'" in refusal(capsys, "--provider", "abacus")


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--abacus"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --abacus" in capsys.readouterr().err


def test_every_setting_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description
        assert " ".join(field.description.split()) in text


def test_options_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_PORT", "9000")
    monkeypatch.setenv("VOUCH_WORKERS", "7")
    origins = ("--cors-origins", "https://a.example", "--cors-origins", "https://b.example")
    options = ("--port", "9001", "--pad-batches", "--rate-limit", "60/minute", *origins)
    settings, bundles = read_command_line(["--bundle", "a", "--bundle=b", *options])
    assert (settings.port, settings.workers, settings.pad_batches) == (9001, 7, True)
    assert settings.rate_limit == "60/minute"
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert bundles == [Path("a"), Path("b")]
    assert read_command_line([])[1] == [Path("bundles/digits")]


def test_several_processes_need_a_redis(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--processes", "2", "--bundle", "/none")
    assert "VOUCH_PROCESSES=2 needs VOUCH_REDIS_URL" in said
