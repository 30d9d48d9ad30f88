"""What routes work on: the application's state, and the gallery in the path."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from model_store.errors import GalleryNotFound
from service.engine import SearchEngine
from service.state import State


async def state_of(request: Request) -> State:
    """What the application was created with."""
    state: State = request.app.state.vouch
    return state


async def engine_of(gallery: str, state: Annotated[State, Depends(state_of)]) -> SearchEngine:
    """The engine of the gallery in the path."""
    engine = state.engines.get(gallery)
    if engine is None:
        raise GalleryNotFound(
            f"There is no gallery {gallery!r} here. Served: {', '.join(sorted(state.engines))}."
        )
    return engine


StateOf = Annotated[State, Depends(state_of)]
EngineOf = Annotated[SearchEngine, Depends(engine_of)]
