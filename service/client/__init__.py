"""The client of the service, for Python.

::

    client      `VouchClient`: a method for each path
    management  galleries created, described, renamed and dropped
    contract    its requests, and the problems that it raises
    review      the review queue of a gallery
    unknown     queries that matched nothing, in groups

and, for tools of others, each of which needs that tool's library::

    mcp_server    ``vouch-mcp``, a server of the Model Context Protocol
    mcp_tools     its tools
    langchain     a retriever of LangChain
    llama_index   a retriever of LlamaIndex
    fiftyone      a plugin of FiftyOne
    vouched       only results with the verdict `match`
    images        images as a text names them
    words         answers in plain words
"""

from service.client.client import VouchClient
from service.client.contract import MAX_ATTEMPTS, MAX_WAIT_S, VouchProblem
from service.schemas.keywords import DecisionOptions, ListOptions, SearchOptions

__all__ = [
    "MAX_ATTEMPTS",
    "MAX_WAIT_S",
    "DecisionOptions",
    "ListOptions",
    "SearchOptions",
    "VouchClient",
    "VouchProblem",
]
