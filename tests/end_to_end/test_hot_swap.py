"""Bundles are exchanged under load, and nobody notices but by the answers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from index_builder.configuration.build import BuildConfig
from model_store.bundles.directory import activate
from model_store.bundles.manifest import ENCODER_FILE
from service.client import VouchClient
from tests.end_to_end.load import Load
from tests.end_to_end.processes import Service, wait_until
from tests.end_to_end.questions import content, unseen
from tests.support.bundle_copies import copied, flip_a_byte, republished, unlinked

BUNDLES = "/v1/galleries/digits/bundles"
N_CALLERS = 8

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def other_bundle(
    digits_config: BuildConfig,
    digits_bundle: Path,
    digits_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The same gallery by name, with another encoder, other items and another calibration.

    Its embeddings are the first bundle's mirrored: what one encodes, the other finds nothing for.
    """
    from index_builder.pipeline.build import (
        calibrate_step,
        evaluate_step,
        index_step,
        publish_step,
    )
    from index_builder.pipeline.run import Run

    run = Run(tmp_path_factory.mktemp("other") / "run")
    shutil.copytree(digits_run, run.directory)
    mirror(run.staging / ENCODER_FILE)
    dataset = digits_config.dataset.model_copy(update={"withheld_labels": ("0", "1")})
    config = digits_config.model_copy(update={"dataset": dataset, "description": "No 0, no 1."})
    index_step(config, run)
    calibrate_step(config, run)
    evaluate_step(config, run)
    return publish_step(config, run, run.directory / "published")


def mirror(encoder: Path) -> None:
    """Let an encoder give the opposite of each mean."""
    model = onnx.load(encoder)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["unmirrored" if name == "embedding_mean" else name for name in names]
    model.graph.node.append(onnx.helper.make_node("Neg", ["unmirrored"], ["embedding_mean"]))
    onnx.save(model, encoder)


@pytest.fixture
def root(digits_bundle: Path, other_bundle: Path, tmp_path: Path) -> Path:
    """A directory of the two, the digits' own being current."""
    root = tmp_path / "bundles"
    for bundle in (digits_bundle, other_bundle):
        copied(bundle, root / bundle.name)
    activate(root, digits_bundle.name)
    return root


@pytest.fixture
def service(root: Path, tmp_path: Path) -> Iterator[Service]:
    """One that looks for another `CURRENT` often."""
    with Service(root, tmp_path / "log", {"VOUCH_CANARY_PERIOD_S": "0.5"}) as running:
        yield running


def post(service: Service, action: str) -> dict[str, Any]:
    done: dict[str, Any] = service.http.post(f"{BUNDLES}/{action}").raise_for_status().json()
    return done


def served(service: Service) -> str:
    serving: str = service.http.get(BUNDLES).json()["serving"]
    return serving


def answers(service: Service, pictures: list[bytes]) -> Answers:
    return [content(service.answer(image, limit=5)) for image in pictures]


def known_or_not(image: bytes) -> bytes:
    """Half of what is asked is in the cache, of either bundle."""
    return image if random.random() < 0.5 else unseen(image)


def test_no_request_fails_and_no_answer_is_of_two(
    service: Service, root: Path, digits_bundle: Path, other_bundle: Path, pictures: list[bytes]
) -> None:
    first, second = digits_bundle.name, other_bundle.name
    alone = {first: answers(service, pictures)}
    post(service, f"{second}/activate")
    alone[second] = answers(service, pictures)
    pairs = list(zip(alone[first], alone[second], strict=True))
    assert all(one["results"] != other["results"] for one, other in pairs)
    assert any(one["query"] != other["query"] for one, other in pairs)

    with Load(service, pictures, N_CALLERS, known_or_not) as load:
        for action, wanted in (
            ("rollback", first),
            (f"{second}/activate", second),
            (f"{first}/activate", first),
            ("rollback", second),
        ):
            assert post(service, action)["bundle_id"] == wanted
            assert served(service) == wanted
            load.wait_for_answers(2 * N_CALLERS)
        activate(root, first)
        wait_until(lambda: served(service) == first, service)
        load.wait_for_answers(2 * N_CALLERS)
        third = republished(digits_bundle, root, description="Published while it is served.")
        wait_until(lambda: served(service) == third, service)
        load.wait_for_answers(2 * N_CALLERS)

        flip_a_byte(unlinked(root / second / ENCODER_FILE))
        refused = service.http.post(f"{BUNDLES}/{second}/activate")
        assert (refused.status_code, refused.json()["code"]) == (409, "activation_refused")
        activate(root, second)
        wait_until(lambda: service.http.get(BUNDLES).json()["refused"] is not None, service)
        assert served(service) == third
        load.wait_for_answers(2 * N_CALLERS)

    alone[third] = [{**answer, "bundle": third} for answer in alone[first]]
    for asked in load.asked:
        assert asked.response is not None
        assert asked.status == 200, asked.response.text
        answer = content(asked.response.json())
        assert answer == alone[answer["bundle"]][asked.number]
    replies = [asked.response.json() for asked in load.asked if asked.response is not None]
    assert {reply["bundle"]["id"] for reply in replies} == {first, second, third}
    assert {reply["cache"] for reply in replies} == {"hit", "miss"}
    # What is not served any more is let go of.
    wait_until(lambda: len(service.encoders()) == 1, service)


def test_another_encoder_is_tried_in_the_shadow_and_then_activated(
    service: Service, root: Path, digits_bundle: Path, other_bundle: Path, pictures: list[bytes]
) -> None:
    alone = answers(service, pictures)
    with VouchClient(str(service.http.base_url)) as vouch:
        begun = vouch.manage.try_bundle("digits", other_bundle.name, share=1)
        assert (begun.state, begun.live_bundle_id) == ("running", digits_bundle.name)
        assert len(service.encoders()) == 2
        asked = [unseen(image) for image in pictures]
        beside = [content(service.answer(image, limit=5)) for image in asked]
        assert [one["results"] for one in beside] == [one["results"] for one in alone]
        wait_until(lambda: vouch.manage.shadow("digits").n_compared == len(pictures), service)
        report = vouch.manage.shadow("digits")
        assert (report.n_dropped, report.n_failed) == (0, 0)
        assert report.changed.n == len(report.recent) > 0
        assert report.probability_change.n == len(pictures)

        post(service, f"{other_bundle.name}/activate")
        really = [service.answer(unseen(image), limit=5) for image in pictures]
        ended = vouch.manage.shadow("digits")
        assert (ended.state, ended.n_compared) == ("ended", len(pictures))
        assert ended.reason is not None
        assert "was activated" in ended.reason
        assert ended.same_first.n == sum(
            was["results"][0]["id"] == is_now["results"][0]["id"]
            for was, is_now in zip(alone, really, strict=True)
        )
        wait_until(lambda: len(service.encoders()) == 1, service)
