"""Vouch: image search that reports its own uncertainty.

>>> import vouch_search as vouch
>>> gallery = vouch.open("bundles/demo")  # doctest: +SKIP
>>> answer = gallery.search("photo.png", k=5)  # doctest: +SKIP
>>> answer.verdict, answer.results[0].match_probability  # doctest: +SKIP
('match', 0.999)

Each name is imported on first use, so `import vouch_search` takes milliseconds.

::

    gallery     `open` and `Gallery`: a gallery in a local folder
    remote      `Client` and `AsyncClient`: galleries of a running service
    building    `build` and `index`: make a gallery from a folder of images
    protocol    what local and remote galleries share: methods, checks of arguments, searches with
                many images
    command     ``vouch-search``: searches a folder of images, writes a table
    answers     `Answer` to one query, `Answers` to many; pandas and Arrow tables
    plots       matplotlib plots of answers, galleries and evaluations
    core        vector queries, and decisions on neighbours from other stores
    langchain, llama_index   retrievers for these libraries
    programs    the programs that are installed
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from model_store.errors import VouchError
    from service.client.contract import VouchProblem
    from vouch_search import plots
    from vouch_search.answers import Answer, Answers, Failure, to_arrow, to_pandas
    from vouch_search.building import build, index
    from vouch_search.gallery import Gallery
    from vouch_search.gallery import open_gallery as open  # noqa: A004 - read as vouch.open
    from vouch_search.protocol import AsyncSearchableGallery, SearchableGallery
    from vouch_search.remote import AsyncClient, AsyncGallery, Client, RemoteGallery
else:
    _PLACES = {
        "Answer": "answers",
        "Answers": "answers",
        "AsyncClient": "remote",
        "AsyncGallery": "remote",
        "AsyncSearchableGallery": "protocol",
        "Client": "remote",
        "Failure": "answers",
        "Gallery": "gallery",
        "RemoteGallery": "remote",
        "SearchableGallery": "protocol",
        "VouchError": "model_store.errors",
        "VouchProblem": "service.client.contract",
        "build": "building",
        "index": "building",
        "open": "gallery:open_gallery",
        "plots": "plots",
        "to_arrow": "answers",
        "to_pandas": "answers",
    }

    _EXTRAS = {"httpx2": "client", "typer": "build", "torch": "build", "matplotlib": "plots"}

    def __getattr__(name: str) -> object:
        """Import on first use: `import vouch_search` needs neither NumPy nor pydantic."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, there = _PLACES[name].partition(":")
        try:
            found = import_module(module if "." in module else f"{__name__}.{module}")
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "")
            if extra is None:
                raise
            how = import_module("model_store.installation").how_to_install(extra)
            raise ImportError(f"vouch_search.{name} needs {error.name}. {how}") from error
        return found if module == name else getattr(found, there or name)

    def __dir__() -> list[str]:
        return sorted(__all__)


__all__ = [
    "Answer",
    "Answers",
    "AsyncClient",
    "AsyncGallery",
    "AsyncSearchableGallery",
    "Client",
    "Failure",
    "Gallery",
    "RemoteGallery",
    "SearchableGallery",
    "VouchError",
    "VouchProblem",
    "build",
    "index",
    "open",
    "plots",
    "to_arrow",
    "to_pandas",
]
