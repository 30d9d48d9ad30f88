"""The compose file says of the settings and of the balancer what they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.torture import try_compose

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


OF_THE_IMAGE = {"BUNDLE", "HOST", "PORT"}
OF_THE_BALANCER = {"TLS_CERT", "TLS_KEY"}
ELSEWHERE = {
    "PROVIDER",  # docker/compose.gpu.yml
    "RECALIBRATE",  # the image has no builder
}


def test_every_setting_is_passed_on_and_no_other(services: dict[str, Any]) -> None:
    """What is set in the environment, and not passed on, would be ignored without a word."""
    passed = {name for name in services["service"]["environment"] if name.startswith("VOUCH_")}
    wanted = {name.upper() for name in Settings.model_fields}
    wanted -= OF_THE_IMAGE | OF_THE_BALANCER | ELSEWHERE
    assert passed == {f"VOUCH_{name}" for name in wanted}


VARIABLE = re.compile(r"\$\{(\w+)")
OF_THE_LAST_RELEASE = {"FORWARDED_ALLOW_IPS"}


def test_variables_of_the_compose_file_are_documented() -> None:
    names = set(VARIABLE.findall((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert {name for name in names if f"`{name}" not in pages} == OF_THE_LAST_RELEASE


def test_documented_settings_can_be_set_in_the_environment(services: dict[str, Any]) -> None:
    """What the compose file fixes, it has a reason for."""
    given = services["service"]["environment"]
    fixed = {name for name, value in given.items() if value is not None and "$" not in value}
    assert fixed == {"VOUCH_TRUSTED_PROXIES"}  # only the balancer reaches the service
    trusted = services["balancer"]["environment"]["VOUCH_TRUSTED_PROXY"]
    assert trusted.startswith("${VOUCH_TRUSTED_PROXIES:-")
    # An empty text lets a file of VOUCH_SECRETS_DIR name the URL.
    assert given["VOUCH_REDIS_URL"].startswith("${VOUCH_REDIS_URL-redis://")
    page = (ROOT / "docs" / "howto" / "replicas.md").read_text(encoding="utf-8")
    (exceptions,) = re.findall(r"also work in `.env`, except (.*?)\.", page, re.DOTALL)
    named = set(re.findall(r"`VOUCH_(\w+)`", exceptions))
    assert named == OF_THE_BALANCER | ELSEWHERE


def test_operator_commands_sign_with_the_keys_of_the_service(services: dict[str, Any]) -> None:
    operate = services["operate"]
    assert {"VOUCH_BUNDLE_KEYS", "VOUCH_SIGNING_KEY"} <= set(operate["environment"])
    (keys,) = [one for one in services["service"]["volumes"] if ":/keys" in one]
    assert keys in operate["volumes"]


def test_start_waits_until_the_balancer_has_found_the_new_service(
    services: dict[str, Any],
) -> None:
    """A balancer that is not restarted keeps its state `healthy` from before."""
    depends = services["balancer"]["depends_on"]["service"]
    assert depends == {"condition": "service_healthy", "restart": True}
    assert "/readyz" in services["balancer"]["healthcheck"]["test"][-1]


def test_the_trial_of_the_compose_file_asks_its_gallery(services: dict[str, Any]) -> None:
    assert "--config /demo/photographs.toml" in services["bundle"]["command"][0]
    text = (ROOT / "docs" / "demo" / "photographs.toml").read_text(encoding="utf-8")
    assert f"/v1/galleries/{tomllib.loads(text)['name']}" == try_compose.GALLERY


def test_no_documented_command_names_files_of_compose() -> None:
    """`docker/roll.sh` and the next `docker compose up` would not have these files."""
    named = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").glob("*.yml")]
    assert [page for page in named if "compose -f" in page.read_text(encoding="utf-8")] == []


DATABASES = {"VOUCH_POSTGRES_URI", "VOUCH_MILVUS_URI", "VOUCH_MILVUS_TOKEN", "VOUCH_MILVUS_LOG"}


@pytest.mark.parametrize("name", ["build", "operate"])
def test_commands_reach_the_databases_of_the_service(services: dict[str, Any], name: str) -> None:
    """`doctor` and `compact` open galleries in PostgreSQL and Milvus."""
    command, service = services[name], services["service"]
    assert set(service["environment"]) >= DATABASES
    assert {one for one in command["environment"] if one in DATABASES} == DATABASES
    assert set(command["networks"]) == {"outside", "vectors"} < set(service["networks"])


def test_the_service_can_be_scaled(services: dict[str, Any]) -> None:
    """Several of it cannot have one name, or one port of the host."""
    assert {"ports", "container_name"}.isdisjoint(services["service"])
    assert [name for name, one in services.items() if "ports" in one] == ["balancer", "grafana"]
    assert services["grafana"]["ports"] == ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"]


def test_the_balancer_is_given_what_its_configuration_reads(services: dict[str, Any]) -> None:
    text = (ROOT / "docker" / "balancer.cfg").read_text(encoding="utf-8")
    given = set(services["balancer"]["environment"])
    assert {name for name in given if f'"${name}"' in text} == given
    networks = set(services["balancer"]["networks"]) & set(services["service"]["networks"])
    assert "balanced" in networks


def test_only_the_service_and_commands_reach_milvus(services: dict[str, Any]) -> None:
    """It asks for no password."""
    there = {name for name, one in services.items() if "vectors" in one.get("networks", [])}
    assert there == {"service", "build", "operate", "milvus"}


def test_the_replicas_write_beside_the_bundles_and_nowhere_else(services: dict[str, Any]) -> None:
    service = services["service"]
    writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert writable == ["${VOUCH_BUNDLES:-bundles}:/bundles:${VOUCH_BUNDLES_ACCESS:-rw}"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(path.startswith("/tmp:") for path in service["tmpfs"])


def test_everything_but_milvus_is_hardened(services: dict[str, Any]) -> None:
    for name, one in services.items():
        if name != "milvus":
            assert one["read_only"] is True, name
            assert one["cap_drop"] == ["ALL"], name
            assert one["security_opt"] == ["no-new-privileges:true"], name
    for name in ("service", "balancer", "redis", "bundle", "build", "operate"):
        assert {"mem_limit", "pids_limit"} <= set(services[name]), name


def test_redis_is_on_internal_networks_alone(services: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    networks = yaml.safe_load(text)["networks"]
    assert all(networks[name]["internal"] for name in services["redis"]["networks"])


def test_replicas_are_a_setting_that_every_start_keeps(services: dict[str, Any]) -> None:
    assert services["service"]["deploy"]["replicas"] == "${VOUCH_REPLICAS:-1}"


def test_start_refuses_an_old_bundle_with_the_command_to_run(services: dict[str, Any]) -> None:
    """Compose (2.40) removes the old service first, and then waits for `bundle`."""
    depends = services["service"]["depends_on"]["bundle"]["condition"]
    assert depends == "service_completed_successfully"
    command = services["bundle"]["command"][0]
    assert "vouch-build upgrade /bundles --check && exit" in command
    assert "docker compose run --rm operate upgrade /bundles" in command
    assert command.rstrip().endswith("exit 1")


def test_monitoring_scrapes_each_replica_by_the_job_that_alerts_name(
    services: dict[str, Any],
) -> None:
    watch = ROOT / "docker" / "watch"
    scraped = yaml.safe_load((watch / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in (watch / "alerts.yml").read_text(encoding="utf-8")
    (found,) = job["dns_sd_configs"]
    assert found["names"] == ["service"]
    networks = [set(services[name]["networks"]) for name in ("prometheus", "service", "grafana")]
    assert set.intersection(*networks) == {"balanced"}
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        mounted = [one.split(":")[0] for one in services[name]["volumes"] if one.startswith("./")]
        assert all((ROOT / path).is_file() for path in mounted)
