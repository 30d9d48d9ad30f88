"""What `vouch-serve` says before it serves; that it serves is tested end to end."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from model_store.errors import GalleryUnavailable
from model_store.installation import installed_version
from model_store.programs import misspelt_variables
from service.__main__ import main
from service.command_line import read_command_line
from service.encoding.process import EncoderProcess
from service.encoding.queues import SharedEncoders
from service.settings import Settings, settings_in_groups
from service.start import _listeners, _with_galleries, open_bundles, open_served
from tests.support.help_pages import readable


@pytest.fixture(autouse=True)
def _logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of this process is the test runner's."""
    monkeypatch.setattr("service.start.log_as_json", lambda **_: None)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> str:
    """The one line on standard error that `vouch-serve` ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
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


def test_service_without_bundles_has_a_directory_of_galleries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _with_galleries(Settings(bundle=("a",))).galleries is None
    own = _with_galleries(Settings(galleries="b"))
    assert (own.galleries, [*tmp_path.iterdir()]) == (Path("b"), [])
    assert _with_galleries(Settings()).galleries == tmp_path / "galleries"
    assert _with_galleries(Settings()).bundle == ()
    (tmp_path / "galleries").rmdir()
    (tmp_path / "galleries").touch()
    said = refusal(capsys)
    assert said.startswith(f"There is no bundle to serve, and the directory {tmp_path}/galleries")
    assert "(File exists). Set VOUCH_BUNDLE" in said


def test_directory_of_galleries_that_cannot_be_used_is_named_with_its_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "galleries").touch()
    said = refusal(capsys, "--galleries", str(tmp_path / "galleries"))
    assert said.startswith(f"VOUCH_GALLERIES: {tmp_path}/galleries cannot be used (")
    assert "Not a directory" in said


def test_empty_list_of_bundles_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--bundle", "", status=2).startswith("--bundle: ")


def test_a_directory_of_bundles_gives_its_current_one(digits_bundle: Path) -> None:
    open_one = partial(open_served, Settings(provider="cpu"), SharedEncoders(EncoderProcess))
    [opened] = open_bundles([digits_bundle.parent], open_one)
    assert opened.directory == digits_bundle


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VOUCH_PORT", "http"),
        ("VOUCH_CORS_ORIGINS", '["https://shop.example"'),
        ("VOUCH_RECORD_URLS", "https://shop.example/{id}"),
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
    missing = "--bundle", str(digits_bundle / "none")
    assert refusal(capsys, *missing, status=2).startswith(f"{name}: ")
    monkeypatch.delenv(name)
    option = "--" + name.removeprefix("VOUCH_").replace("_", "-").lower()
    assert refusal(capsys, *missing, option, value, status=2).startswith(f"{option}: ")


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

    monkeypatch.setattr("service.start._open_app", serve)
    assert refusal(capsys, "--bundle", "a") == f"Milvus does not answer.{said}"


def test_an_unknown_provider_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'openvino' or 'coreml'" in refusal(capsys, "--provider", "abacus", status=2)


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--abacus"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --abacus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--redis-urll", "redis://:hunter2@h"], "--redis-urll, 1 value without an option"),
        (["--redis-urll=redis://:hunter2@h"], "unrecognized arguments: --redis-urll"),
        (["redis://:hunter2@h", "hunter2"], "unrecognized arguments: 2 values without an option"),
        (["--cache-secret", "--hunter2"], "argument --cache-secret: expected one argument"),
        (["--anonymous=hunter2"], "--no-anonymous: ignored explicit argument"),
    ],
)
def test_a_value_among_wrong_options_is_not_printed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.endswith(f"{said}\n")
    assert "hunter2" not in printed


def test_a_certificate_that_cannot_be_used_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cert.pem").write_text("hunter2")
    for file, why in (("cert.pem", "no PEM certificate"), ("none.pem", "No such file")):
        line = refusal(capsys, "--tls-cert", str(tmp_path / file), status=2)
        assert why in line
        assert "hunter2" not in line


def test_private_key_without_a_certificate_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = refusal(capsys, "--tls-key", str(tmp_path / "key.pem"), status=2)
    assert said == "VOUCH_TLS_KEY needs VOUCH_TLS_CERT, the certificate of this key."


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Path.mkdir, "unable to open"),
        (lambda file: file.write_text("no database" * 100), "not a database"),
        (lambda file: file.parent.joinpath("feedback").touch(), "File exists"),
    ],
)
def test_feedback_file_that_cannot_be_used_is_refused(
    made: Callable[[Path], object], why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made(file := tmp_path / "feedback")
    place = file if why != "File exists" else file / "feedback.sqlite3"
    line = refusal(capsys, "--bundle", str(tmp_path / "none"), "--feedback", str(place))
    assert line.startswith(f"VOUCH_FEEDBACK: {place} cannot be used (")
    assert why in line


@pytest.mark.parametrize(
    ("option", "value"), [("--review-reasons", "random"), ("--query-retention-s", "60")]
)
def test_what_is_kept_for_review_needs_a_file(
    option: str, value: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ("--bundle", str(tmp_path / "none"), option, value)
    name = "VOUCH_" + option.removeprefix("--").replace("-", "_").upper()
    said = refusal(capsys, *given, status=2)
    assert said == f"{name} needs VOUCH_FEEDBACK, the file for reviews."
    kept = tmp_path / "new" / "feedback.sqlite3"
    assert "No bundle at" in refusal(capsys, *given, "--feedback", str(kept))
    assert kept.exists()


def test_signing_key_that_cannot_be_read_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ("--bundle", str(tmp_path / "none"), "--signing-key", str(tmp_path / "none.key"))
    assert refusal(capsys, *given).startswith(f"{tmp_path}/none.key is no private key")


def test_every_setting_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description
        assert " ".join(field.description.split()) in text
    assert "--min-upload-bytes-per-s BYTES/S" in text
    assert "--deadline-s SECONDS" in text


def test_options_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_PORT", "9000")
    monkeypatch.setenv("VOUCH_WORKERS", "7")
    monkeypatch.setenv("VOUCH_RECALIBRATE", "true")
    origins = (
        "--cors-origins",
        "https://a.example",
        "--cors-origins",
        "https://b.example,http://c",
    )
    options = ("--port", "9001", "--pad-batches", "--no-recalibrate", "--rate-limit", "60/minute")
    settings = read_command_line(["--bundle", "a", "--bundle=b", *options, *origins])
    assert (settings.port, settings.workers, settings.pad_batches) == (9001, 7, True)
    assert (settings.rate_limit, settings.recalibrate) == ("60/minute", False)
    assert settings.cors_origins == ("https://a.example", "https://b.example", "http://c")
    assert settings.bundle == (Path("a"), Path("b"))
    assert read_command_line([]).bundle == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("VOUCH_KEY", "VOUCH_KEYS"),
        ("vouch_key", "VOUCH_KEYS"),
        ("VOUCH_KEYZ", "VOUCH_KEYS"),
        ("VOUCH_BUNDLE_KEY", "VOUCH_BUNDLE_KEYS"),
        ("VOUCH_ALLOWED_HOST", "VOUCH_ALLOWED_HOSTS"),
        ("VOUCH_CASHE_SECRET", "VOUCH_CACHE_SECRET"),
    ],
)
def test_misspelt_variable_is_refused(
    name: str, meant: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hunter2")
    said = refusal(capsys, "--bundle", "/none", status=2)
    assert said == f"{name}: is not a setting; did you mean {meant}? Rename or unset it"
    monkeypatch.setenv(meant, "sixteen-or-more-characters")
    assert "is not a setting" not in refusal(capsys, "--bundle", "/none")


def test_variables_of_other_programs_start_a_service() -> None:
    kubernetes = ("VOUCH_SERVICE_HOST", "VOUCH_SERVICE_PORT_HTTP", "VOUCH_PORT_8080_TCP_ADDR")
    others = ("VOUCH_REDIS_PORT", "VOUCH_API_KEY", "VOUCH_TRUSTED_PROXY", "VOUCH_DATA_DIR", "PATH")
    names = (*kubernetes, *others, "VOUCH_KEYS", "vouch_keys", "KEY")
    assert not list(misspelt_variables(names, Settings.model_fields, in_any_case=True))


def test_several_processes_need_a_redis(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--processes", "2", "--bundle", "/none", status=2)
    assert "--processes 2 needs --redis-url" in said


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_one_line(capsys: pytest.CaptureFixture[str], option: str) -> None:
    main([option])
    assert capsys.readouterr().out == f"vouch-serve {installed_version()}\n"
    with pytest.raises(SystemExit) as ended:
        main(["--port", "1", option])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"vouch-serve {installed_version()}\n"


def test_help_at_80_columns_is_readable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["-h"])
    shown = capsys.readouterr().out
    readable(shown)
    headings = re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE)
    assert headings == [*settings_in_groups(), "Global options", "Exit status"]
    assert all(len(names) < 12 for names in settings_in_groups().values())


def test_ctrl_c_before_it_answers_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.start._open_app", interrupted)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_address_that_is_in_use_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes of a service whose parent was killed hold it until they have ended."""
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        settings = Settings(port=held.getsockname()[1])
        monkeypatch.setattr("service.start.IN_USE_S", 0.3)
        with pytest.raises(SystemExit):
            _listeners(settings)
        assert "address already in use" in capsys.readouterr().err
        monkeypatch.setattr("service.start.IN_USE_S", 60.0)
        threading.Timer(0.3, held.close).start()
        for door in _listeners(settings):
            assert door.getsockname()[1] == settings.port
            door.close()
