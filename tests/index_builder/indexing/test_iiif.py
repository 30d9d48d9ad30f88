"""Manifests of IIIF, of both versions of its Presentation API: each canvas an image."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.collection import Indexing, index_collection
from index_builder.indexing.sources import open_source
from index_builder.indexing.sources.documents import image_url
from model_store import open_bundle
from model_store.errors import DatasetError
from tests.support.web_server import Handler, WebServer, web_server

CANVAS = {"width": 3000, "height": 2000}
LEVEL_2 = {"id": "https://i.org/1", "type": "ImageService3", "profile": "level2"}
OLD = {
    "@id": "https://i.org/1/",
    "@context": "http://iiif.io/api/image/2/context.json",
    "profile": ["http://iiif.io/api/image/2/level1.json", {"qualities": ["gray"]}],
}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "served").mkdir()
    with web_server(tmp_path / "served") as server:
        yield server


def entries(path: Path, *, labelled: bool = True) -> list[Entry]:
    return list(open_source(path, labelled=labelled).entries(path.parent, LeftOut()))


def manifest_3(url: str, n: int) -> dict[str, Any]:
    """The third version's: a service, a plain image as a source, and a choice, in turns."""

    def body(number: int) -> dict[str, Any]:
        service = {**LEVEL_2, "id": f"{url}/service/{number}"}
        plain = {"id": f"{url}/plain/{number}.png", "type": "Image"}
        served = {**plain, "service": [service], "width": 3000, "height": 2000}
        choice = {"type": "Choice", "items": [{"type": "Video"}, served, plain]}
        source = {"type": "SpecificResource", "source": plain}
        return (served, source, choice)[number % 3]

    return {
        "@context": ["http://www.w3.org/ns/anno.jsonld", "http://iiif.io/api/presentation/3/context.json"],
        "id": f"{url}/manifest",
        "type": "Manifest",
        "label": {"de": ["Ein Buch"], "en": ["A book"]},
        "rights": "http://creativecommons.org/publicdomain/zero/1.0/",
        "metadata": [
            {"label": {"en": ["Author"]}, "value": {"none": ["Anne", "Brontë"]}},
            {"label": {"en": ["Place"]}, "value": {"fr": ["Lyon"]}},
            {"label": {"en": ["Nothing"]}, "value": {}},
            {"label": {}, "value": {"en": ["of nothing"]}},
        ],
        "items": [
            {
                "id": f"{url}/canvas/{number}",
                "type": "Canvas",
                **CANVAS,
                "label": {"none": [f"p. {number}"]},
                "metadata": [{"label": {"en": ["Place"]}, "value": {"en": [f"shelf {number}"]}}],
                "items": [
                    {
                        "type": "AnnotationPage",
                        "items": [
                            {"type": "Annotation", "motivation": "commenting", "body": {"id": "x"}},
                            {"type": "Annotation", "motivation": "painting", "body": body(number)},
                        ],
                    }
                ],
            }
            for number in range(n)
        ],
    }  # fmt: skip


def manifest_2() -> dict[str, Any]:
    resource = {"@id": "https://i.org/1.jpg", "@type": "dctypes:Image", "service": OLD, **CANVAS}
    choice = {"@type": "oa:Choice", "default": resource, "item": []}
    part = {"@type": "oa:SpecificResource", "full": resource}
    return {
        "@context": "http://iiif.io/api/presentation/2/context.json",
        "@id": "https://m.org/manifest.json",
        "@type": "sc:Manifest",
        "label": [{"@value": "Livre", "@language": "fr"}, {"@value": "Book", "@language": "en"}],
        "license": "https://example.org/licence",
        "metadata": [
            {"label": "Author", "value": "Anne"},
            {"label": "Author", "value": [{"@value": "Emily", "@language": "en"}]},
        ],
        "sequences": [
            {
                "canvases": [
                    {"@id": "https://m.org/c/1", "label": "1r", "images": [{"resource": part}]},
                    {"@id": "https://m.org/c/2", "label": "1v", "images": [{"resource": choice}]},
                    {"@id": "https://m.org/c/3", "label": "empty", "images": []},
                ]
            }
        ],
    }  # fmt: skip


def test_the_third_version(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest_3("https://m.org", 3)), encoding="utf-8")
    found = entries(path)
    assert [(one.id, one.label) for one in found] == [
        (f"https://m.org/canvas/{number}", f"p. {number}") for number in range(3)
    ]
    assert [one.place.path for one in found] == [
        "https://m.org/service/0/full/1024,/0/default.jpg",
        "https://m.org/plain/1.png",
        "https://m.org/service/2/full/1024,/0/default.jpg",
    ]
    assert dict(found[1].metadata) == {
        "Author": "Anne; Brontë",
        "Place": "shelf 1",
        "manifest": "A book",
        "rights": "http://creativecommons.org/publicdomain/zero/1.0/",
    }
    (unlabelled, *_) = entries(path, labelled=False)
    assert (unlabelled.label, unlabelled.metadata["label"]) == (None, "p. 0")


def test_the_second_version(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest_2()), encoding="utf-8")
    found = entries(path)
    assert [(one.id, one.label) for one in found] == [
        ("https://m.org/c/1", "1r"),
        ("https://m.org/c/2", "1v"),
    ]
    assert {one.place for one in found} == {
        Place("https://i.org/1/full/1024,/0/default.jpg", None, 0, 0)
    }
    assert dict(found[0].metadata) == {
        "Author": ["Anne", "Emily"],
        "manifest": "Book",
        "rights": "https://example.org/licence",
    }


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ([{"@value": "Buch", "@language": "de"}, {"@value": "Book"}], "Buch"),
        ([{"@value": "Buch"}, {"@value": "Book", "@language": "en-GB"}], "Book"),
        ([{"@value": "one"}, "two", 3, True, " "], "one; two; 3"),
        ({"none": ["a"], "en": ["b"]}, "a"),
        ({"fr": ["a"], "en": ["b"]}, "b"),
        ({"fr": ["a"], "de": ["b"]}, "a"),
        ({"@language": "de", "@value": "Buch"}, "Buch"),
        ([{"@value": "one"}, {"@value": "two"}], "one; two"),
        ({}, None),
        ([], None),
    ],
)
def test_a_label_is_in_one_language(tmp_path: Path, label: object, wanted: str | None) -> None:
    content = manifest_3("https://m.org", 1)
    content["items"][0]["label"] = label
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert [one.label for one in entries(path)] == [wanted]


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ({"service": LEVEL_2, "width": 800, "height": 1024}, "https://i.org/1/full/max/0/default.jpg"),
        ({"service": OLD, "width": 800, "height": 600}, "https://i.org/1/full/full/0/default.jpg"),
        ({"service": [OLD], "width": 800, "height": 6000}, "https://i.org/1/full/,1024/0/default.jpg"),
        ({"service": LEVEL_2, "width": 800}, "https://i.org/1/full/1024,/0/default.jpg"),
        ({"service": [LEVEL_2]}, "https://i.org/1/full/1024,/0/default.jpg"),
        ({"service": LEVEL_2, "width": 3000, "height": 3000}, "https://i.org/1/full/1024,/0/default.jpg"),
        ({"service": {**LEVEL_2, "profile": "level0"}}, "https://i.org/1.jpg"),
        ({"service": {"@id": "https://i.org/search", "profile": "http://iiif.io/api/search/1"}}, "https://i.org/1.jpg"),
        ({"service": {"id": "https://i.org/1", "profile": "level2"}}, "https://i.org/1.jpg"),
        ({"service": {"id": "https://i.org/1", "type": "ImageService3"}}, "https://i.org/1.jpg"),
        ({}, "https://i.org/1.jpg"),
    ],
)  # fmt: skip
def test_a_service_is_asked_for_a_bounded_size(image: dict[str, Any], wanted: str) -> None:
    assert image_url({"id": "https://i.org/1.jpg", **image}, CANVAS) == wanted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"type": "Collection"}, "is an IIIF Collection; wanted a Manifest"),
        ({"items": [{"items": 3}]}, "does not follow the IIIF Presentation API"),
        ({"items": None}, "does not follow the IIIF Presentation API"),
        ({"items": [None]}, r"API: items\[0\] of https://m.org/manifest is null; wanted an object"),
        ({"items": [{"id": "c", "items": [7]}]}, r"items\[0\] of c is 7; wanted an object"),
        (
            {"items": [{"items": []}, {"images": [{"resource": {"service": "x"}}]}]},
            r"manifest.json, canvas 1 does not follow the IIIF Presentation API \(Attr",
        ),
        ({"items": [{"images": [{"resource": {}}]}]}, "canvas 0: the image is at ''; wanted http"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**manifest_3("https://m.org", 1), **change}), encoding="utf-8")
    with pytest.raises(DatasetError, match=said):
        entries(path)


def test_manifest_without_canvases_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for field in ("sequences", "structures"):
        content = {name: manifest_2()[name] for name in ("@context", "@type")} | {field: []}
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(DatasetError, match="neither `items` nor `sequences`"):
            entries(path)


def painted(*bodies: object, motivation: object = "painting") -> list[dict[str, Any]]:
    """The annotation pages of a canvas."""
    return [{"items": [{"motivation": motivation, "body": body} for body in bodies]}]


def test_canvases_that_are_left_out_are_named(tmp_path: Path) -> None:
    plain = {"id": "https://m.org/1.png", "type": "Image"}
    part = {"type": "SpecificResource", "source": plain, "selector": {"region": "0,0,9,9"}}
    content = manifest_3("https://m.org", 7)
    pages = (
        painted(plain, motivation=["painting"]),
        painted({"id": "https://m.org/1.png"}),
        painted({"id": "https://m.org/1.mp4", "type": "Video"}),
        painted(None),
        painted(plain, plain),
        painted(part),
        painted([plain, {"type": "TextualBody"}, plain]),
    )
    for canvas, page in zip(content["items"], pages, strict=True):
        canvas["items"] = page
    (tmp_path / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    left_out = LeftOut()
    found = list(open_source(tmp_path / "manifest.json").entries(tmp_path, left_out))
    assert [one.id[-1] for one in found] == ["0", "1", "4", "6"]
    assert [(one.name[-1], one.reason) for one in left_out.files] == [
        ("2", Reason.no_painting),
        ("3", Reason.no_painting),
        ("4", Reason.further_image),
        ("5", Reason.no_painting),
        ("6", Reason.further_image),
    ]
    assert "https://m.org/canvas/2, https://m.org/canvas/3" in " ".join(left_out.sentences)


def test_canvases_of_a_second_sequence_are_named(tmp_path: Path) -> None:
    content = manifest_2()
    first = content["sequences"][0]["canvases"][0]
    more = {**first, "@id": "https://m.org/c/9"}
    content["sequences"] += [{"canvases": [first, more]}, {"@id": "https://m.org/s/3"}]
    (tmp_path / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    left_out = LeftOut()
    assert len(list(open_source(tmp_path / "manifest.json").entries(tmp_path, left_out))) == 2
    assert [(one.name, one.reason) for one in left_out.files] == [
        ("https://m.org/c/9", Reason.further_sequence),
        ("https://m.org/c/3", Reason.no_painting),
    ]


def test_a_manifest_names_no_file_of_its_reader(tmp_path: Path) -> None:
    content = json.dumps(manifest_3("file://", 2))
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=r"canvas 0: the image is at 'file://.*wanted http"):
        entries(tmp_path / "manifest.json")


@pytest.mark.process
def test_a_manifest_becomes_a_gallery(indexing: Indexing, web: WebServer) -> None:
    """Also one that is not called .json, whose images a service makes smaller."""
    generator = np.random.default_rng(0)
    pictures = {}
    for number in range(6):
        file = io.BytesIO()
        pixels = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
        pictures[number] = file.getvalue()
        path = (
            f"/plain/{number}.png"
            if number % 3 == 1
            else f"/service/{number}/full/1024,/0/default.jpg"
        )

        def answer(request: Handler, data: bytes = pictures[number]) -> None:
            request.send(data)

        web.answers[path] = answer
    (web.folder / "manifest").write_text(json.dumps(manifest_3(web.url, 6)), encoding="utf-8")
    source = open_source(f"{web.url}/manifest", storage=indexing.storage)
    outcome = index_collection(replace(indexing, source=source, n_workers=1))
    assert (outcome.n_items, outcome.n_quarantined) == (6, 0)
    match = open_bundle(outcome.bundle, "cpu").retriever.search(pictures[4], limit=1).matches[0]
    assert (match.id, match.label) == (f"{web.url}/canvas/4", "p. 4")
    assert match.metadata["manifest"] == "A book"
