"""Deciding a query is not split into threads: on a busy machine they would wait for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SERVED = """
import json, sys
from pathlib import Path
from starlette.testclient import TestClient
from threadpoolctl import threadpool_info
from model_store.bundles.bundle import open_bundle
from model_store.retriever import Retriever
from service.app import create_app
from service.settings import Settings

def blas_threads():
    libraries = [each for each in threadpool_info() if each["user_api"] == "blas"]
    return [each["num_threads"] for each in libraries if each["threading_layer"] == "pthreads"]

seen = []
find = Retriever.find
Retriever.find = lambda *args, **options: seen.extend(blas_threads()) or find(*args, **options)
bundle = open_bundle(Path(sys.argv[1]), "cpu", threads=1)
before = blas_threads()
with TestClient(create_app(Settings(decoders=0), [bundle])):
    pass  # its first search is its canary's
print(json.dumps({"before": before, "search": seen}))
"""


def test_a_served_search_has_one_blas_thread(digits_bundle: Path) -> None:
    variables = {name: os.environ[name] for name in os.environ if not name.startswith("VOUCH_")}
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(digits_bundle)],
        env={**variables, "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    threads = json.loads(done.stdout)
    assert set(threads["before"]) == {2}
    assert set(threads["search"]) == {1}
