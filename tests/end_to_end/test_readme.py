"""The commands of the README and of the site, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from model_store.bundles.directory import activate, locate
from model_store.bundles.manifest import SIGNATURE_FILE, read_manifest
from model_store.bundles.signatures import new_key
from tests.end_to_end.processes import Service
from tests.support.build_command import vouch_build

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "demo" not in page.parts),
]
README = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

DEMO = ROOT / "docs" / "demo" / "photographs.toml"
"""The gallery of `make demo`."""

BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(language: str, part: str) -> str:
    """The one block of that language that holds ``part``; pages may repeat it word for word."""
    (found,) = {text for text in blocks(language) if part in text}
    return found


@pytest.fixture(scope="module")
def place(digits_bundle: Path, built_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the README's reader has: the demo, a photo, a folder of images.

    The digits, which take less time, stand for bundles of the reader's own.

    The folder has what calibrating takes: every second image of the labels that are withheld, and
    of the others every fifth.
    """
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(digits_bundle, place / "bundles" / "digits")
    shutil.copytree(built_demo, place / "bundles" / "demo")
    shutil.copy(locate(place / "bundles" / "demo") / "samples" / "1.png", place / "photo.png")
    shutil.copytree(DEMO.parent / "samples", place / "docs" / "demo" / "samples")
    data = load_digits()
    for row, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        if row % (2 if label in {3, 8} else 5):
            continue
        folder = place / "photographs" / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(image * 255 / 16).astype(np.uint8)).save(folder / f"{row}.png")
    return place


@pytest.fixture(scope="module")
def few(place: Path) -> Path:
    """The same with 26 images of each label, for large encoders."""
    few = place / "few"
    for label in (place / "photographs").iterdir():
        (few / "photographs" / label.name).mkdir(parents=True)
        for path in sorted(label.iterdir())[:26]:
            shutil.copy(path, few / "photographs" / label.name)
    return few


@pytest.fixture(scope="module")
def demo(place: Path) -> Iterator[Service]:
    with Service(place / "bundles" / "demo", place / "demo.log") as running:
        yield running


def run(command: str, place: Path) -> str:
    """Run a shell command where the package's own commands are found first."""
    if re.fullmatch(r"vouch-build [^|&;<>$\n]*\n?", command):
        return run_here(command, place)
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(command: str, place: Path) -> str:
    """Run ``vouch-build`` in this process, where torch is imported already."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "vouch-build"
    done = vouch_build(*arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


VERDICTS = {
    "flamingo.webp": "match",
    "crayfish.webp": "ambiguous",
    "rooster.webp": "no_match",
    "page.png": "out_of_distribution",
}
"""The samples of the demo, in the order of the page."""


def test_the_samples_of_the_demo_get_the_four_verdicts(demo: Service) -> None:
    files = [Path(one["file"]) for one in tomllib.loads(DEMO.read_text("utf-8"))["samples"]]
    gallery = demo.http.get("/v1/galleries/demo").json()
    verdicts = {
        file.name: demo.answer(demo.http.get(sample["image_url"]).content, gallery="demo")
        for file, sample in zip(files, gallery["samples"], strict=True)
    }
    assert {name: answer["verdict"] for name, answer in verdicts.items()} == VERDICTS
    calibration = demo.http.get("/v1/galleries/demo/calibration").raise_for_status().json()
    assert calibration["queries"] == "left_out_items"
    look_alikes = verdicts["crayfish.webp"]["results"]
    assert {result["label"] for result in look_alikes} == {"crayfish", "lobster"}


def test_the_query_is_answered_and_looks_as_shown(place: Path, demo: Service) -> None:
    command = block("sh", "flamingo.webp -F limit=3").splitlines()[0]
    assert command.startswith("curl ")
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}")
    answer = json.loads(run(command.replace("curl ", "curl -s "), place))
    shown = json.loads(block("json", '"verdict"'))
    assert len(answer["results"]) == 3

    def check(shown: Any, real: Any) -> None:
        if isinstance(shown, dict):
            named = shown.pop("…", "")
            assert set(shown) | {name for name in named.split(", ") if name} == set(real)
            for name, value in shown.items():
                check(value, real[name])
        elif isinstance(shown, list) and shown:
            check(shown[0], real[0])

    check(shown, answer)


def test_every_door_opens(place: Path, demo: Service) -> None:
    (place / "mine.toml").write_text("no image", encoding="utf-8")
    doors = {}
    for command in block("sh", "/search/raw").splitlines():
        here = command.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}")
        found = re.search("(raw|json|batch|similar|embed|items)(\\?limit=3)?'?$", command)
        assert found is not None, command
        doors[found[1]] = json.loads(run(here.replace("curl ", "curl -s ", 1), place))
    assert len(doors) == 6
    assert len(doors["raw"]["results"]) == len(doors["items"]["items"]) == 3
    assert doors["raw"]["results"] == doors["json"]["results"]
    good, bad = doors["batch"]["items"]
    assert good["answer"]["results"] == doors["raw"]["results"]
    assert (bad["file_name"], bad["problem"]["code"]) == ("mine.toml", "unsupported_image")
    assert {result["match_probability"] for result in doors["similar"]["results"]} == {None}
    assert doors["embed"]["query"] == doors["raw"]["query"]


def test_filters_and_groups_are_heeded(place: Path, demo: Service) -> None:
    labels = []
    for command in block("sh", "filter=").splitlines():
        here = command.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}")
        answer = json.loads(run(here.replace("curl ", "curl -s ", 1), place))
        labels.append([result["label"] for result in answer["results"]])
    filtered, grouped = labels
    assert set(filtered) <= {"crayfish", "lobster"}
    assert len(filtered) == 10
    assert len(set(grouped)) == len(grouped) > 1


def test_the_client_answers(place: Path, demo: Service) -> None:
    code = block("python", 'vouch.Client("http://127.0.0.1:8080").open("demo")\nanswer')
    code = code.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}")
    shown = run(f"{sys.executable} - <<'EOF'\n{code}\nEOF", place)
    assert re.match(r"\w+ [a-z-]+/\d+\.webp [01]\.\d+\n", shown), shown


def test_the_retriever_answers(place: Path, demo: Service) -> None:
    code = block("python", "VouchRetriever").replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}")
    assert int(run(f"{sys.executable} - <<'EOF'\n{code}\nprint(len(documents))\nEOF", place)) > 0


def test_the_library_answers(place: Path) -> None:
    code = block("python", 'gallery = vouch.open("bundles/demo")')
    assert ".webp" in run(f"{sys.executable} - <<'EOF'\n{code}\nEOF", place)


def test_a_folder_becomes_a_table(place: Path) -> None:
    run(block("sh", "--gallery bundles/demo --out matches.csv"), place)
    lines = (place / "matches.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + len([*(place / "photographs").rglob("*.png")])


def test_neighbours_of_another_store_are_decided_on(place: Path) -> None:
    code = block("python", "decide_list")
    verdict, first, nothing = run(f"{sys.executable} - <<'EOF'\n{code}\nEOF", place).split()
    assert verdict in {"match", "ambiguous", "no_match", "out_of_distribution"}
    assert 0 <= float(first) <= 1
    assert 0 <= float(nothing) <= 1


def test_a_folder_of_ones_own_becomes_a_bundle(place: Path) -> None:
    config = block("toml", "withheld_labels")
    config = config.replace("label-a", "digit-3").replace("label-b", "digit-8")
    (place / "mine.toml").write_text(config, encoding="utf-8")
    build, serve = block("sh", "mine.toml\n").splitlines()
    assert "bundles/" in run(build, place)
    program, *_, bundle = serve.split()
    assert (BIN / program).is_file()
    with Service(place / bundle, place / "mine.log") as service:
        answer = service.ask((place / "photo.png").read_bytes(), gallery="mine").json()
    assert answer["results"][0]["label"].startswith("digit-")


def test_any_collection_is_indexed(place: Path) -> None:
    index, doctor = block("sh", "--name everything").splitlines()
    run(index.replace("bundles/mine", "bundles/digits"), place)
    assert "is finished" in run(doctor, place)
    calibrated = run(
        block("sh", "bundles/mine --calibrate").replace("bundles/mine", "bundles/digits"), place
    )
    assert read_manifest(place / calibrated.strip()).calibration is not None


def test_a_bundle_goes_elsewhere_and_comes_back(place: Path) -> None:
    push, *_, pull = block("sh", "push bundles/mine /mnt").splitlines()
    share = str(place / "share")
    key = new_key(place / "publisher")
    run("vouch-build sign bundles/digits --key publisher", place)
    run(push.replace("bundles/mine", "bundles/digits").replace("/mnt/share/mine", share), place)
    pulled = run(pull.replace("hf://our-team/mine", share), place).strip()
    assert key.name in pull
    assert read_manifest(place / pulled) == read_manifest(locate(place / "bundles" / "digits"))


def test_photographs_alone_become_a_bundle(place: Path, few: Path) -> None:
    build, serve = block("sh", "--images photographs\nvouch-serve").splitlines()
    assert "bundles/" in run_here(build, few)
    assert (few / serve.split()[-1] / "CURRENT").exists()


OFFLINE = {
    "vit_small_patch14_dinov2.lvd142m": "test_vit --untrained",
    "hf-hub:BVRA/MegaDescriptor-T-224": "test_efficientnet --untrained",
    "ViT-B-16-SigLIP2/webli": "vouch-small --untrained",
    "facebook/dinov2-base": "hf-model",
}
"""Random weights of the same kinds of architecture, in place of downloads."""

OPEN_CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 32, "width": 16, "heads": 2, "layers": 1},
}


def test_encoders_of_others_become_galleries(few: Path) -> None:
    import open_clip
    import torch
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "image_size": 64}
    ViTModel(ViTConfig(num_attention_heads=2, **small)).save_pretrained(few / "hf-model")
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(few / "hf-model")
    (few / "open-clip").mkdir()
    (few / "open-clip" / "vouch-small.json").write_text(json.dumps(OPEN_CLIP), encoding="utf-8")
    open_clip.add_model_config(few / "open-clip")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 8, 8), torch.nn.Flatten())
    (few / "visual").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's
        torch.onnx.export(
            network,
            (torch.zeros(2, 3, 32, 32),),
            few / "visual" / "model.onnx",
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
            dynamo=False,
        )
    (few / "visual" / "preprocess_cfg.json").write_text('{"size": 32, "mode": "RGB"}')
    *encoders, index, build = block("sh", "vouch-build encoder --timm").splitlines()
    # Two become galleries: the encoder that the block indexes, and one without a library.
    indexed = {"encoders/siglip2", "encoders/graph"}
    for line in encoders:
        command = reduce(lambda text, one: text.replace(*one), OFFLINE.items(), line)
        run_here(command, few)
        written = command.rpartition("--out ")[2]
        if written not in indexed:
            continue
        name = written.rpartition("/")[2]
        here = index.replace("encoders/siglip2", written).replace("clip", name)
        bundle = few / run_here(here, few).strip()
        assert read_manifest(bundle).calibration is not None
    with Service(bundle.parent, few / f"{name}.log") as service:
        answer = service.ask((few.parent / "photo.png").read_bytes(), gallery=name).json()
    assert answer["verdict"] in {"match", "ambiguous", "no_match", "out_of_distribution"}
    assert "bundles/" in run_here(build, few)


def test_a_bundle_is_operated_from_the_command_line(digits_bundle: Path, tmp_path: Path) -> None:
    """Backup, recalibration, activation, certificates and signatures, as the how-to pages do."""
    mine = tmp_path / "bundles" / "mine"
    first = read_manifest(digits_bundle).id
    shutil.copytree(digits_bundle, mine / first)
    activate(mine, first)

    def run_lines(part: str) -> list[str]:
        lines = block("sh", part).splitlines()
        commands = [line.replace("0f2c99a1b3d4e5f6", first) for line in lines]
        return [run_here(one, tmp_path) for one in commands if one.startswith("vouch-build")]

    run_lines("backup bundles/mine mine.tar")
    assert locate(tmp_path / "bundles" / "restored").name == first
    (recalibrated,) = run_lines("--max-error 0.1\n")
    assert locate(mine).name == Path(recalibrated.strip()).name != first
    listed, *_ = run_lines("vouch-build activate")
    assert first in listed
    assert locate(mine).name == Path(recalibrated.strip()).name  # activated, and rolled back
    run_lines("vouch-build absent-share")
    run_lines("vouch-build acknowledge")
    *_, verified = run_lines("vouch-build verify")
    assert verified
    run_here(block("sh", "vouch-build sign").splitlines()[1], tmp_path)
    assert (locate(mine) / SIGNATURE_FILE).exists()
    assert "is finished" not in run_lines("vouch-build doctor bundles/mine\n")[0]
    run_lines("vouch-build prune")
    shown = run_lines("vouch-build config init")[-1]
    assert "[dataset]" in shown


def test_a_gallery_is_changed_reviewed_and_tried_over_http(
    digits_bundle: Path, tmp_path: Path
) -> None:
    """The requests of the how-to pages that change something, as they stand but for names."""
    mine = tmp_path / "bundles" / "mine"
    first = read_manifest(digits_bundle).id
    shutil.copytree(digits_bundle, mine / first)
    activate(mine, first)
    photo = (digits_bundle / "samples" / "1.png").read_bytes()
    for name in ("photo.png", "a.png", "b.png"):
        (tmp_path / name).write_bytes(photo)
    exported = block("sh", "export VOUCH_FEEDBACK=feedback.sqlite3").split()[1:]
    variables = dict(one.split("=") for one in exported) | {"VOUCH_QUERY_RETENTION_S": "60"}
    variables["VOUCH_FEEDBACK"] = str(tmp_path / variables["VOUCH_FEEDBACK"])
    with Service(mine, tmp_path / "mine.log", variables) as service:
        query = service.ask(photo, gallery="digits").json()["query"]["id"]

        def here(text: str) -> str:
            for old, new in {
                "127.0.0.1:8080": f"127.0.0.1:{service.port}",
                "/demo": "/digits",
                '"demo"': '"digits"',
                ', api_key="vouch_…"': "",
                "1ca8dc96…": query,
                "0f2c99a1b3d4e5f6": first,
            }.items():
                text = text.replace(old, new)
            return text

        def ask(part: str) -> list[dict[str, Any]]:
            lines = block("sh", part).replace("\\\n", "").splitlines()
            asked = [here(one).replace("curl ", "curl -s ", 1) for one in lines if "curl" in one]
            return [json.loads(run(one, tmp_path)) for one in asked]

        (decided,) = ask("none_of_these")
        assert decided["query_id"] == query
        (leased,) = ask("review/leases")
        assert isinstance(leased["leases"], list)
        run(
            f"{sys.executable} - <<'EOF'\n{here(block('python', 'client.put_item('))}\nEOF",
            tmp_path,
        )
        item = service.http.get("/v1/galleries/digits/items/shelf%203%2Fcamera").json()
        assert (item["label"], item["metadata"]) == ("camera", {"shelf": 3})
        (compacted,) = ask("demo/compact")
        assert compacted["bundle_id"] == locate(mine).name != first
        started, shown, ended = ask("demo/shadow")
        assert started["bundle_id"] == shown["bundle_id"] == ended["bundle_id"] == first
