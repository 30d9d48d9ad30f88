from __future__ import annotations

import doctest
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from model_store.images import ImageLimits
from service.command_line import settings_problem
from service.settings import Settings

MISTAKES = (
    *("u:hunter2@h:x", "u:hunter2/1@h", "u:hunter2#1@h", "u:hunter2?1@h", "u:1/hunter2@h"),
    *("u:1?hunter2@h", "u:h@nter@h", "u:hunter2@[h", "u:hunter 2@h", "u:hunter2@h\n", "#hunter2"),
)
"""What follows the scheme of an address, where a password has characters that end it early."""

# name, text in the environment, the value it stands for
FROM_ENVIRONMENT = [
    ("secrets_dir", "/", Path("/")),
    ("bundle", "/srv/bundles/shoes,/srv/hats", (Path("/srv/bundles/shoes"), Path("/srv/hats"))),
    ("host", "0.0.0.0", "0.0.0.0"),
    ("port", "9000", 9000),
    ("redis_timeout_s", "0.25", 0.25),
    ("cache_ttl_s", "60", 60),
    ("cache_bytes", "0", 0),
    ("provider", "cuda", "cuda"),
    ("encoder_threads", "3", 3),
    ("postgres_uri", "postgresql://db/vouch", SecretStr("postgresql://db/vouch")),
    ("postgres_timeout_s", "2.5", 2.5),
    ("milvus_uri", "http://milvus:19530", "http://milvus:19530"),
    ("milvus_token", "a:b", SecretStr("a:b")),
    ("milvus_log", "postgresql://db/vouch", SecretStr("postgresql://db/vouch")),
    ("milvus_timeout_s", "2.5", 2.5),
    ("workers", "5", 5),
    ("max_image_bytes", "1000", 1000),
    ("max_image_pixels", "2000", 2000),
    ("decoders", "4", 4),
    ("decode_timeout_s", "0.5", 0.5),
    ("decoder_memory_bytes", "3000", 3000),
    ("max_batch", "1", 1),
    ("max_batch_pixels", "1000", 1000),
    ("pad_batches", "true", True),
    ("cuda_graphs", "true", True),
    ("processes", "3", 3),
    ("max_in_flight", "9", 9),
    ("deadline_s", "2.5", 2.5),
    ("max_connections", "50", 50),
    ("keep_alive_s", "620", 620),
    ("drain_s", "5", 5.0),
    ("min_upload_bytes_per_s", "1000", 1000.0),
    ("root_path", "/vouch/", "/vouch"),
    ("tls_cert", "/srv/cert.pem", Path("/srv/cert.pem")),
    ("tls_key", "/srv/key.pem", Path("/srv/key.pem")),
    ("trusted_proxies", "10.0.0.7, 10.1.0.0/16", ("10.0.0.7", "10.1.0.0/16")),
    ("cache_secret", "sixteen or more characters", SecretStr("sixteen or more characters")),
    ("decoder_sandbox", "required", "required"),
    ("allowed_hosts", "shop.example", ("shop.example",)),
    ("canary_period_s", "0.5", 0.5),
    ("compact_after", "0", 0),
    ("keep_bundles", "1", 1),
    ("recalibrate", "false", False),
    ("query_retention_s", "60", 60),
    ("galleries", "/srv/galleries", Path("/srv/galleries")),
    ("max_galleries", "7", 7),
    ("open_galleries", "5", 5),
    ("bundle_keys", "/srv/publisher.pub", (Path("/srv/publisher.pub"),)),
    ("signing_key", "/srv/compaction.key", Path("/srv/compaction.key")),
    ("otlp_endpoint", "http://collector:4318", "http://collector:4318"),
    ("otlp_endpoint", "HTTP://collector:4318", "http://collector:4318"),
    ("max_batch_bytes", "1000", 1000),
    ("feedback", "/srv/feedback.sqlite3", Path("/srv/feedback.sqlite3")),
    ("audit_share", "0.2", 0.2),
    ("on_drift", "withhold", "withhold"),
    ("shadow_share", "0.5", 0.5),
    ("review_reasons", "absent,random", ("absent", "random")),
    ("review_image", "original", "original"),
    ("review_retention_s", "60", 60),
    ("review_cases", "5", 5),
    ("review_bytes", "0", 0),
    ("reviewers", "2", 2),
    ("keys", "/srv/keys.json", Path("/srv/keys.json")),
    ("anonymous", "true", True),
    ("published_host", "0.0.0.0", "0.0.0.0"),
    ("rate_limit", "600/minute", "600/minute"),
    (
        "cors_origins",
        "https://a.example,https://b.example",
        ("https://a.example", "https://b.example"),
    ),
    ("frame_ancestors", '["https://a.example"]', ("https://a.example",)),
    ("image_origins", '["https://*.b.example:8443"]', ("https://*.b.example:8443",)),
    (
        "record_urls",
        "shoes=https://a.example/{id}?a=1, hats=https://b.example/{label}",
        {"shoes": "https://a.example/{id}?a=1", "hats": "https://b.example/{label}"},
    ),
]


@pytest.mark.parametrize(("name", "text", "value"), FROM_ENVIRONMENT)
def test_a_variable_sets_it(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    assert getattr(Settings(), name) != value
    monkeypatch.setenv(f"VOUCH_{name.upper()}", text)
    assert getattr(Settings(), name) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("bundle_keys", '["a,b.pub"]', (Path("a,b.pub"),)),
        ("cors_origins", '["https://a.example", "*"]', ("https://a.example", "*")),
        ("review_reasons", "[]", ()),
        ("record_urls", '{"a": "https://a.example/{id},1"}', {"a": "https://a.example/{id},1"}),
    ],
)
def test_a_list_may_be_json(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(f"VOUCH_{name.upper()}", text)
    assert getattr(Settings(), name) == value


def test_every_setting_is_tried_above() -> None:
    assert {name for name, *_ in FROM_ENVIRONMENT} | {"redis_url"} == set(Settings.model_fields)


EXAMPLES = {
    name: [str(one) for one in field.examples or ()]
    for name, field in Settings.model_fields.items()
    if field.get_default(call_default_factory=True) in (None, "", (), {})
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_of_a_setting_without_a_default_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = EXAMPLES[name]
    if name == "secrets_dir":  # it must exist
        assert text.startswith("/")
        text = str(tmp_path)
    unset = getattr(Settings(), name)
    monkeypatch.setenv(f"VOUCH_{name.upper()}", text)
    assert getattr(Settings(), name) != unset


def test_example_in_the_docstring_of_settings_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RATE_LIMIT", "CORS_ORIGINS"):
        monkeypatch.setenv(f"VOUCH_{name}", "")  # so that they are unset after the test
    names = {"os": os, "Settings": Settings}
    example = doctest.DocTestParser().get_doctest(Settings.__doc__ or "", names, "", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example) == (0, len(example.examples))
    assert example.examples


def test_what_is_given_wins_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_PORT", "9000")
    assert Settings(port=9001).port == 9001


def test_another_variable_of_that_name_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_DATA_DIR", "/data")
    assert Settings() == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("port", "http"),
        ("redis_timeout_s", "0"),
        ("cache_ttl_s", "0"),
        ("cache_bytes", "-1"),
        ("provider", "tpu"),
        ("encoder_threads", "-1"),
        ("workers", "0"),
        ("max_image_bytes", "0"),
        ("max_image_pixels", "0"),
        ("max_batch", "0"),
        ("max_in_flight", "0"),
        ("deadline_s", "0"),
        *[("canary_period_s", text) for text in ("0", "inf", "nan", "86401")],
        ("drain_s", "86401"),
        ("compact_after", "-1"),
        ("keep_bundles", "0"),
        ("otlp_endpoint", "localhost:4318"),
        ("anonymous", "perhaps"),
        ("rate_limit", "often"),
        ("rate_limit", "0/minute"),
        ("rate_limit", "10/second; 100/minute"),
        ("redis_url", "localhost:6379"),
        ("redis_url", "https://localhost:6379"),
        *[("redis_url", f"redis://{rest}") for rest in MISTAKES],
        ("redis_url", "redis://h/hunter2"),
        ("redis_url", "redis://h?db=hunter2"),
        ("redis_url", "redis://h?hunter2=1"),
        ("redis_url", "rediss://h?ssl_cert_reqs=hunter2"),
        *[("postgres_uri", f"postgresql://{rest}") for rest in MISTAKES],
        ("postgres_uri", "mysql://root:hunter2@db/vouch"),
        *[("milvus_log", f"postgresql://{rest}") for rest in MISTAKES],
        ("milvus_log", "host=db password=hunter2"),
        *[("milvus_uri", f"http://{rest}") for rest in MISTAKES],
        ("milvus_uri", "http://root:hunter2@milvus:19530"),
        ("otlp_endpoint", "http://root:hunter2@collector:4318"),
        ("cache_secret", "hunter2"),
        ("rate_limit", "hunter2"),
        ("record_urls", "hunter2"),
        ("record_urls", "shoes=ftp://hunter2/"),
        ("image_origins", "https://hunter2@a.example"),
        *[("cors_origins", text) for text in ("https://a.example/", "a.example", "null")],
        *[("cors_origins", text) for text in ("https://*.a.example", "https://hunter2@a.example")],
        *[("allowed_hosts", text) for text in ("a.example:8443", "https://a.example", "a.*.b")],
        *[("allowed_hosts", text) for text in ("[::1]:8080", "a.example/hunter2", "a b")],
        ("trusted_proxies", "10.0.0.7 10.0.0.8"),
        ("trusted_proxies", "10.0.0.0/33"),
        ("trusted_proxies", "10.0.0.7,balancer.example"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(f"VOUCH_{name.upper()}", text)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert {error["loc"][0] for error in refused.value.errors()} == {name}
    line = settings_problem(refused.value, {})
    assert line.startswith(f"VOUCH_{name.upper()}: ")
    assert "\n" not in line
    assert "hunter2" not in line + str(refused.value)


NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation is float]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", ["inf", "1e400", "nan"])
def test_number_is_finite(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """An infinite `drain_s` would let SIGTERM end no service."""
    monkeypatch.setenv(f"VOUCH_{name.upper()}", text)
    with pytest.raises(ValidationError, match=name):
        Settings()


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("127.0.0.1/8", "127.0.0.0/8"),
        ("2001:DB8::1/32", "2001:db8::/32"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("*", "*"),
    ],
)
def test_proxy_is_read_in_the_form_that_is_compared(text: str, known: str) -> None:
    assert Settings(trusted_proxies=(text,)).trusted_proxies == (known,)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("https://A.example:8443", "https://a.example:8443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://a.example:443", "https://a.example"),
        ("http://a.example:80", "http://a.example"),
        ("http://a.example:443", "http://a.example:443"),
        ("capacitor://localhost", "capacitor://localhost"),
        ("*", "*"),
    ],
)
def test_origin_is_read_in_the_form_that_browsers_send(text: str, known: str) -> None:
    assert Settings(cors_origins=(text,)).cors_origins == (known,)


@pytest.mark.parametrize("text", ["*", "*.a.example", "localhost", "a_b.example.", "::1"])
def test_host_may_be_a_name_or_an_address(text: str) -> None:
    assert Settings(allowed_hosts=(text,)).allowed_hosts == (text,)


def test_message_of_a_secret_counts_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_CACHE_SECRET", "short")
    with pytest.raises(ValidationError) as refused:
        Settings()
    line = "VOUCH_CACHE_SECRET: must have at least 16 characters"
    assert settings_problem(refused.value, {}) == line


def test_host_may_have_the_brackets_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_HOST", "[::1]")
    assert Settings().host == "::1"


def test_message_of_a_list_says_which_value_is_wrong() -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(trusted_proxies=("10.0.0.7", "10.0.0.0/33"))
    line = settings_problem(refused.value, {})
    assert line.startswith("VOUCH_TRUSTED_PROXIES: value 2: must be an address or network")


@pytest.mark.parametrize("url", ["redis://cache:6379/0", "rediss://cache", "unix:///run/redis"])
def test_redis_has_an_address(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert Settings().redis_url is None
    monkeypatch.setenv("VOUCH_REDIS_URL", url)
    found = Settings().redis_url
    assert found is not None
    assert found.get_secret_value() == url


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file passes on what its user has not set."""
    monkeypatch.setenv("VOUCH_REDIS_URL", "")
    assert Settings().redis_url is None


def test_a_password_is_not_shown() -> None:
    settings = Settings(redis_url="redis://:hunter2@cache:6379/0")
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_secrets_are_secret_settings_and_passwords_in_them() -> None:
    settings = Settings(
        redis_url="redis://user:p%40ss@cache:6379/0",
        cache_secret="sixteen or more characters",
        milvus_uri="http://milvus:19530",
    )
    url = "redis://user:p%40ss@cache:6379/0"
    assert settings.secrets == {url, "p%40ss", "p@ss", "sixteen or more characters"}


def test_they_do_not_change() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc] # on purpose


def test_the_limits_of_an_image() -> None:
    assert Settings().image_limits == ImageLimits()
    assert Settings(max_image_bytes=1, max_image_pixels=2).image_limits == ImageLimits(1, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("frame_ancestors", '["https://a.example; script-src *"]'),
        ("image_origins", '["https://a.example/pictures"]'),
        ("record_urls", '{"shoes": "javascript:alert({id})"}'),
        ("record_urls", '{"shoes": "https://{label}/"}'),
    ],
)
def test_an_address_that_could_lead_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(f"VOUCH_{name.upper()}", text)
    with pytest.raises(ValidationError, match="must be"):
        Settings()


def test_port_of_a_kubernetes_service_link_is_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {
        "VOUCH_PORT": "tcp://10.96.12.7:8080",
        "VOUCH_SERVICE_HOST": "10.96.12.7",
        "VOUCH_SERVICE_PORT": "8080",
        "VOUCH_PORT_8080_TCP": "tcp://10.96.12.7:8080",
        "VOUCH_PORT_8080_TCP_ADDR": "10.96.12.7",
    }.items():
        monkeypatch.setenv(name, value)
    assert Settings().port == 8080
    assert "enableServiceLinks" in caplog.text


@pytest.mark.parametrize("value", ["http", "80a", "tcp:", "-1"])
def test_port_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ValidationError):
        Settings(port=value)


def test_secrets_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Docker and Kubernetes mount them; a variable takes precedence."""
    (tmp_path / "vouch_cache_secret").write_text("sixteen or more characters\n", encoding="utf-8")
    (tmp_path / "..data").mkdir()  # as in Kubernetes
    (tmp_path / "..data" / "VOUCH_MILVUS_TOKEN").write_text("a:b", encoding="utf-8")
    (tmp_path / "VOUCH_MILVUS_TOKEN").symlink_to(Path("..data", "VOUCH_MILVUS_TOKEN"))
    (tmp_path / "vouch_redis_url").write_text("redis://file", encoding="utf-8")
    (tmp_path / "of_another_service").write_text("x", encoding="utf-8")
    monkeypatch.setenv("VOUCH_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("VOUCH_REDIS_URL", "redis://variable")
    settings = Settings()
    assert settings.cache_secret == SecretStr("sixteen or more characters")
    assert settings.milvus_token == SecretStr("a:b")
    assert settings.redis_url == SecretStr("redis://variable")
    monkeypatch.delenv("VOUCH_SECRETS_DIR")
    assert Settings(secrets_dir=tmp_path).milvus_token == SecretStr("a:b")


def test_secrets_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="must be a directory"):
        Settings(secrets_dir=tmp_path / "missing")
    (tmp_path / "vouch_cash_secret").write_text("x", encoding="utf-8")
    with pytest.raises(ValidationError, match="name no setting: vouch_cash_secret"):
        Settings(secrets_dir=tmp_path)
    for impossible in ("x" * 5000, "a\0b"):
        with pytest.raises(ValidationError, match="must be a directory"):
            Settings(secrets_dir=Path(impossible))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"hunter2\xff\xfe"),
        lambda path: path.symlink_to("missing"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
    ids=["no text", "a link to nothing", "a directory", "a pipe"],
)
def test_secret_that_cannot_be_read_is_refused_by_its_file(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "vouch_cache_secret")
    with pytest.raises(ValidationError, match="vouch_cache_secret must be a") as refused:
        Settings(secrets_dir=tmp_path)
    assert "hunter2" not in str(refused.value)
