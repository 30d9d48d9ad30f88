"""The client of the service, for Python.

::

    client      `VouchClient`: a method for each path
    management  create, describe, rename and drop galleries; the review queue of a gallery
    contract    the requests of the client, and its errors

and the integrations with other tools; an integration needs the library of its tool::

    mcp_server    ``vouch-mcp``, a server of the Model Context Protocol
    mcp_tools     the tools of this server, and answers in plain words
    langchain     a retriever of LangChain
    llama_index   a retriever of LlamaIndex
    fiftyone      a plugin of FiftyOne
    vouched       only results with the verdict `match`
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
