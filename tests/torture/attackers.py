"""All attackers by name, and how they share the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.torture import (
    archives,
    damage,
    flooded,
    forged,
    galleries,
    health,
    lying_redis,
    memory,
    nonsense_redis,
    rebinding,
    taken_over,
)
from tests.torture.outcome import Outcome, Place


@dataclass(frozen=True, slots=True)
class Attacker:
    """An attacker.

    Attributes
    ----------
    of : its attempts, in words.
    share : of the time, beside the others'.
    """

    attack: Callable[[Place, float, int], Outcome]
    of: str
    share: float


ATTACKERS = {
    "histories": Attacker(galleries.attack_histories, "operations, 2 replicas", 5),
    "killed while written to": Attacker(galleries.attack_writes, "kills", 1.5),
    "slow and endless": Attacker(health.attack, "requests", 4),
    "crowds before the proxy": Attacker(health.attack_proxy, "requests", 4),
    "held connections": Attacker(memory.attack, "connections", 2),
    "floods of one caller": Attacker(flooded.attack, "searches of another", 1.5),
    "nonsense for Redis": Attacker(nonsense_redis.attack, "requests", 1.5),
    "lying Redis": Attacker(lying_redis.attack, "searches", 1),
    "damaged logs": Attacker(damage.attack_logs, "logs", 0.75),
    "damaged bundles": Attacker(damage.attack_bundles, "bundles", 0.75),
    "malicious archives": Attacker(archives.attack, "archives", 0.75),
    "forged bundles": Attacker(forged.attack_bundles, "forged strings", 0.75),
    "forged sources": Attacker(forged.attack_sources, "forged tables", 0.75),
    "forged settings": Attacker(forged.attack_settings, "forged settings", 0.75),
    "rebinding": Attacker(rebinding.attack, "requests of pages", 0.5),
    "planted decoder": Attacker(taken_over.attack, "attempts", 0.5),
}
