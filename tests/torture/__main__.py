"""``make torture``: all attackers, one after the other, for a quarter of an hour.

Each attacker gets its share of the time and a seed, which is printed, and attacks real processes
where it attacks a service. A line says what was attacked, how often, and how often something was
violated that is promised; the violations follow.

    python -m tests.torture BUNDLES [--minutes 15] [--seed N] [--only NAME ...]

Writes build/torture.json; exits with 1 where anything was violated.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from model_store.bundles.directory import locate
from tests.torture.attackers import ATTACKERS, Attacker
from tests.torture.outcome import Outcome, Place

BUILD = Path("build")
MOST_SHOWN = 20


def main() -> None:
    """Attack, print, write."""
    options = _options()
    bundle = locate(options.bundles)
    BUILD.mkdir(exist_ok=True)
    chosen = {name: ATTACKERS[name] for name in options.only or ATTACKERS}
    for_a_share = 60 * options.minutes / sum(attacker.share for attacker in chosen.values())
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    report = {}
    for name, attacker in chosen.items():
        began = time.monotonic()
        outcome = _attack(attacker, bundle, for_a_share * attacker.share, options.seed)
        taken = time.monotonic() - began
        print(f"{name:22} {outcome.n:8,} {attacker.of:24} {taken:5.0f} s  ", end="")
        print(f"violations {len(outcome.violations)}", flush=True)
        for violation in outcome.violations[:MOST_SHOWN]:
            print(f"    {violation[:500]}")
        report[name] = {"seconds": round(taken, 1), **asdict(outcome)}
    written = {"seed": options.seed, "minutes": options.minutes, "attackers": report}
    (BUILD / "torture.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(one["violations"] for one in report.values()))


def _attack(attacker: Attacker, bundle: Path, seconds: float, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return attacker.attack(Place(bundle, Path(folder)), seconds, seed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--only", nargs="+", choices=[*ATTACKERS], metavar="NAME")
    return parser.parse_args()


if __name__ == "__main__":
    main()
