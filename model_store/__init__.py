"""The core of Vouch: what a trained model is and how to ask it. Arrays in, arrays out.

>>> from pathlib import Path
>>> from model_store import open_bundle
>>> bundle = open_bundle(Path("bundles/demo"))  # doctest: +SKIP
>>> bundle.retriever.search(Path("photo.png").read_bytes())  # doctest: +SKIP

The way of a query: `images` (bytes to pixels) → `encoder` (pixels to a Gaussian) → `predictive`
(onto the sphere, by `sphere`) → `search` (neighbours in a `gallery`) → `decision` (probabilities,
verdict); `retriever` ties them together, and a bundle
(`bundles`) keeps what they need. `gaussian` has the
algebra of uncertain distances, `errors` the whole error family.

::

    errors          the whole family
    files           files that survive a crash, and locks
    signing         keys and signatures of Ed25519
    feedback        what users said of matches, and queries to decide on, in SQLite
    drift_states    drift tests, kept across restarts
    share_states    the share of absent queries, counted by all replicas
    stores          vector databases of others
    identities      queries that matched nothing, grouped into new identities
    vector_queries  vectors in place of images, lists of other stores
    text_queries    texts in place of images
    one_encoder     parts that belong together
    notebook        answers as notebooks show them
    answers         what a query found, and the decision on it
    compared_answers  which answers change from one bundle to another
    matches         ranked neighbours with their probabilities
    pairs           the uncertainty of the similarity of query and item
    truth           whether an item is a true match of a query
    verdicts        the words of answers
    deadline        work for nobody is given up
    half_precision  rows of numbers that are kept small
    threads         threads of arithmetic
    processors      processors that may be used
    memory          settings of the allocator
    installation    the installed distribution and its extras
    addresses       addresses of servers in settings, which may hold a password
    paths           paths that a file names, each below its directory
    image_inputs    images as Python programs have them: paths, bytes, Pillow images, arrays
    item_ids        the rule of an item's id
    spreadsheets    cells of CSV files that are no formulas
    lists           lists in options and environment variables
    programs        what all programs have in common: --version, Ctrl+C, help
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_store.answers import Answer
    from model_store.bundles.bundle import Bundle, open_bundle
    from model_store.retriever import Retriever
    from model_store.text_queries import search_text
    from model_store.vector_queries import NeighbourList, VectorQuery, decide_list
else:
    _ROOMS = {
        "Answer": "model_store.answers",
        "Bundle": "model_store.bundles.bundle",
        "NeighbourList": "model_store.vector_queries",
        "Retriever": "model_store.retriever",
        "VectorQuery": "model_store.vector_queries",
        "decide_list": "model_store.vector_queries",
        "open_bundle": "model_store.bundles.bundle",
        "search_text": "model_store.text_queries",
    }

    def __getattr__(name: str) -> object:
        """Import on first use: decoding images needs neither FAISS nor ONNX Runtime."""
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_ROOMS[name]), name)


__all__ = [
    "Answer",
    "Bundle",
    "NeighbourList",
    "Retriever",
    "VectorQuery",
    "decide_list",
    "open_bundle",
    "search_text",
]
