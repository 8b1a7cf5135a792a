"""Whether what is certified can be broken: `make soundness`.

Certifies random networks of every operation that has a bound, and every model of tests/traps.py
that is not what it looks like; attacks all of them inside what was certified; prints what came of
it by operation and by trap. Ends with 1 if anything was broken, or raised where it should refuse.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from breaking import VERDICTS, Case, Outcome, counted, judge
from certified import NETWORKS
from programs import OPERATIONS, program, small_relu, whole
from traps import BEYOND, TRAPS, trap

Cases = Iterable[tuple[str, Callable[[], Case]]]


def asked(seed: int) -> dict[str, Any]:
    """What is asked of a trap: in the first round the usual, then anything."""
    if not seed:
        return {}
    draw = random.Random(seed)
    return {
        "k": draw.randint(1, 5),
        "norm": draw.choice(("l2", "linf")),
        "of": draw.choice(("probability", "logit", "margin")),
    }


def of_traps(seed: int) -> Cases:
    """Every trap once."""
    for name in TRAPS:
        yield f"trap {seed} {name}", lambda name=name: trap(name, seed, **asked(seed))


def of_operations(seed: int) -> Cases:
    """Every operation in a short network of its own, and networks whose radii are known."""
    for name in OPERATIONS:
        yield f"operation {seed} {name}", lambda name=name: program(seed, name)
    for name in NETWORKS:
        yield f"network {seed} {name}", lambda name=name: whole(name, seed)
    for number in range(10 * seed, 10 * seed + 10):
        yield f"cells {number}", lambda number=number: small_relu(number)


def of_programs(seed: int, without: frozenset[str]) -> Cases:
    """Random networks without an end."""
    number = 1_000_000 * seed
    while True:
        number += 1
        yield f"program {number}", lambda number=number: program(number, without=without)


def of_limits() -> Iterator[Outcome]:
    """What comes of models that no call can tell from honest ones."""
    for name in BEYOND:
        yield judge(trap(name), points=100)


def judged(cases: Cases, points: int, only: str) -> Iterator[Outcome]:
    """What came of each case whose name holds `only`; faults are printed at once."""
    for name, build in cases:
        if only not in name:
            continue
        outcome = judge(build(), points=points)
        if outcome.fault:
            told = " ".join(outcome.told.split())
            steps = f" ({', '.join(outcome.parts)})" if name.startswith("program") else ""
            print(f"{outcome.verdict}: {name}{steps}: {told[:300]}", flush=True)
        yield outcome


def table(title: str, outcomes: list[Outcome], names: Iterable[str]) -> None:
    """Print how often each verdict was reached, by name."""
    print(f"\n{title:<52}" + "".join(f"{verdict:>10}" for verdict in VERDICTS) + f"{'points':>10}")
    for name in names:
        own = [each for each in outcomes if name in each.parts]
        if own:
            numbers = "".join(f"{count:>10}" for count in counted(own).values())
            print(f"{name[:51]:<52}{numbers}{sum(each.points for each in own):>10,}")


def main() -> int:
    """Certify and attack until so many points have been attacked; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=50_000, help="attacked points in all")
    parser.add_argument("--seed", type=int, default=0, help="draws other networks and places")
    parser.add_argument("--only", default="", help="cases with this in their names, as printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, each = time.perf_counter(), max(200, options.points // 2500)
    trapped: list[Outcome] = []
    grown: list[Outcome] = []
    for number in range(max(1, options.points // 100_000)):
        seed = 1000 * options.seed + number
        trapped += judged(of_traps(seed), each, options.only)
        grown += judged(of_operations(seed), each, options.only)
    # What is refused alone would have whole networks refused, which then teach nothing.
    refused = [each.parts for each in grown if each.verdict == "refused"]
    without = frozenset(part for parts in refused for part in parts)
    if not options.only or "program" in options.only:
        number = options.only.removeprefix("program ")
        endless: Cases = of_programs(options.seed, without)
        if number.isdecimal():
            endless = [(options.only, lambda: program(int(number), without=without))]
        for outcome in judged(endless, each, options.only):
            grown.append(outcome)
            if sum(one.points for one in (*trapped, *grown)) >= options.points:
                break
    table("operation", grown, [*OPERATIONS, *NETWORKS, "cells of a small network"])
    table("trap", trapped, TRAPS)
    if not options.only:
        table("beyond what calls can tell (not counted)", list(of_limits()), BEYOND)
    return summary([*trapped, *grown], time.perf_counter() - start)


def summary(outcomes: list[Outcome], seconds: float) -> int:
    """Print the totals; 1 if there was a fault."""
    ratios = torch.tensor([one.ratio for one in outcomes if one.ratio == one.ratio])
    if len(ratios):
        print(f"\ncertified radius / exact one, {len(ratios)} small networks: ", end="")
        print(f"median {float(ratios.median()):.4f}, largest {float(ratios.max()):.4f}")
    told = ", ".join(f"{count} {verdict}" for verdict, count in counted(outcomes).items())
    points = sum(one.points for one in outcomes)
    print(f"\n{len(outcomes)} models: {told}; {points:,} points attacked in {seconds:.0f} s")
    return 1 if any(one.fault for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
