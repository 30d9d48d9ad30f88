"""The retrievers of LangChain and LlamaIndex, of their own libraries, at a running service."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model_store.bundles.bundle import Bundle
from model_store.errors import InvalidRequest
from service.client import VouchClient, VouchProblem
from tests.end_to_end.processes import Service

Found = list[tuple[str, str, float]]
"""Id, text and match probability of each document."""

Retrieve = Callable[..., Found]


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[VouchClient]:
    with VouchClient(str(service.http.base_url)) as client:
        yield client


@pytest.fixture(params=["langchain", "llama_index"])
def retrieve(request: pytest.FixtureRequest, client: VouchClient) -> Retrieve:
    """A query to its documents, through either library."""

    def langchain(query: str, gallery: str = "digits", **options: Any) -> Found:
        from service.client.langchain import VouchRetriever

        retriever = VouchRetriever(client=client, gallery=gallery, **options)
        documents = retriever.invoke(query)
        assert all(one.metadata["vouch"]["gallery"] == gallery for one in documents)
        return [
            (str(one.id), one.page_content, one.metadata["vouch"]["match_probability"])
            for one in documents
        ]

    def llama_index(query: str, gallery: str = "digits", **options: Any) -> Found:
        from service.client.llama_index import VouchRetriever

        nodes = VouchRetriever(client, gallery, **options).retrieve(query)
        return [(one.node.node_id, one.text, float(one.score or 0)) for one in nodes]

    return langchain if request.param == "langchain" else llama_index


def test_nothing_is_returned_unless_vouch_vouches(library: Bundle, retrieve: Retrieve) -> None:
    verdicts = set()
    for one in library.manifest.samples:
        path = library.directory / one.file
        expected = library.retriever.search(path.read_bytes(), limit=10)
        verdict = expected.decision.verdict
        verdicts.add(verdict)
        found = retrieve(str(path))
        if verdict != "match":
            assert found == []
            continue
        sure = [match for match in expected.matches if (match.match_probability or 0) >= 0.5]
        assert [(item_id, text) for item_id, text, _ in found] == [
            (match.id, match.label) for match in sure
        ]
        assert [probability for _, _, probability in found] == pytest.approx(
            [match.match_probability for match in sure]
        )
    assert {"match", "out_of_distribution"} <= verdicts


def test_the_rest_behind_the_first_is_a_choice(library: Bundle, retrieve: Retrieve) -> None:
    path = str(library.directory / library.manifest.samples[0].file)
    assert len(retrieve(path, limit=100, min_match_probability=1)) == 1
    assert len(retrieve(path, limit=100, min_match_probability=0)) == 100
    assert len(retrieve(path, limit=3)) == 3


def test_images_come_as_data_uris_too(library: Bundle, retrieve: Retrieve) -> None:
    path = library.directory / library.manifest.samples[0].file
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    assert retrieve(uri) == retrieve(str(path)) != []


def test_what_cannot_be_asked_is_an_error_and_not_an_empty_list(
    library: Bundle, retrieve: Retrieve, tmp_path: Path
) -> None:
    path = str(library.directory / library.manifest.samples[0].file)
    with pytest.raises(VouchProblem, match="gallery_not_found"):
        retrieve(path, "nobody")
    with pytest.raises(InvalidRequest, match="no file"):
        retrieve(str(tmp_path / "a red shoe"))
    (tmp_path / "broken.png").write_bytes(b"broken")
    with pytest.raises(VouchProblem, match="unsupported_image"):
        retrieve(str(tmp_path / "broken.png"))


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 101}, {"min_match_probability": 2}])
def test_retriever_of_llama_index_names_a_wrong_option(
    client: VouchClient, wrong: dict[str, Any]
) -> None:
    from service.client.llama_index import VouchRetriever

    with pytest.raises(ValueError, match=next(iter(wrong))):
        VouchRetriever(client, "digits", **wrong)


def test_retriever_of_langchain_takes_a_path(library: Bundle, client: VouchClient) -> None:
    from service.client.langchain import VouchRetriever

    path = library.directory / library.manifest.samples[0].file
    retriever = VouchRetriever(client=client, gallery="digits")
    assert retriever.invoke(path) == retriever.invoke(str(path)) != []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"limt": 3}, {"limit": 0}, {"limit": 101}, {"min_match_probability": 2}],
    ids=lambda one: next(iter(one)),
)
def test_retriever_of_langchain_names_a_wrong_option(
    client: VouchClient, wrong: dict[str, Any]
) -> None:
    from service.client.langchain import VouchRetriever

    with pytest.raises(ValueError, match=next(iter(wrong))):
        VouchRetriever(client=client, gallery="digits", **wrong)


def test_retriever_of_langchain_keeps_the_fields_of_langchain(
    library: Bundle, client: VouchClient
) -> None:
    from langchain_core.callbacks import BaseCallbackHandler

    from service.client.langchain import VouchRetriever

    seen: list[dict[str, Any]] = []

    class Handler(BaseCallbackHandler):
        def on_retriever_start(self, *_: Any, **started: Any) -> None:
            seen.append(started)

    retriever = VouchRetriever(
        client=client, gallery="digits", name="digits", tags=["a"], metadata={"b": 1}
    )
    path = str(library.directory / library.manifest.samples[0].file)
    retriever.with_config(callbacks=[Handler()], tags=["c"]).invoke(path)
    [started] = seen
    assert started["name"] == "digits"
    assert {"a", "c"} <= {*started["tags"]}
    assert started["metadata"]["b"] == 1


def test_they_fit_into_their_frameworks(library: Bundle, client: VouchClient) -> None:
    from langchain_core.runnables import RunnableLambda
    from llama_index.core.schema import QueryBundle

    from service.client.langchain import VouchRetriever as LangChainRetriever
    from service.client.llama_index import VouchRetriever as LlamaIndexRetriever

    path = str(library.directory / library.manifest.samples[0].file)
    chain = LangChainRetriever(client=client, gallery="digits", limit=2) | RunnableLambda(len)
    assert chain.batch([path, path]) == [2, 2]
    nodes = LlamaIndexRetriever(client, "digits", limit=2).retrieve(
        QueryBundle("which digit is this?", image_path=path)
    )
    assert len(nodes) == 2
