"""What bounds and attacks leave open is decided by activation cells, and an audit says by what."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from r2et.attacks.ensemble import EnsembleBudget
from r2et.auditing import Audit, AuditSettings, Table, auditor, checking, replay
from r2et.auditing.decisions import Decision
from r2et.certification import Certificate
from r2et.certification.cells import Misread
from r2et.cli import main
from r2et.report.audit_page import DECIDED, audit_html, told
from refusals import refusal
from slopes import audit

WEAK = EnsembleBudget(rounds=1, starts=1, steps=1, points=1, moves=0, pairs=0, sharpness=(8.0,))
NAMES = [f"x{place}" for place in range(5)]
ASKED: dict[str, Any] = {
    "k": 2,
    "measured": 0,
    "budget": WEAK,
    "search": 60.0,  # however busy the machine is
    "tolerance": 0.3,
    "epsilons": (0.1, 0.3, 0.6),
}


def network(*activations: nn.Module) -> nn.Module:
    """A network of 5 numbers, 8 units a layer, two classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for place, each in enumerate(activations):
            layers += [nn.Linear(8 if place else 5, 8), each]
        return nn.Sequential(*layers, nn.Linear(8, 2)).double()


def table(count: int = 24) -> Table:
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Table(x=x, names=NAMES, name="made")


def known_of(found: Audit) -> dict[int, Decision]:
    return {each.row: each for each in found.decisions}


@pytest.fixture(scope="module")
def searched() -> Audit:
    return audit(network(nn.ReLU(), nn.ReLU()), table(), **ASKED)


def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bounds prove next to nothing, and attacks find nothing."""
    real = auditor.certify

    def less(*given: Any, **named: Any) -> Certificate:
        found = real(*given, **named)
        return replace(
            found, radius=1e-3 * found.radius, precision=torch.zeros_like(found.precision)
        )

    def nothing(model: nn.Module, x: Tensor, y: Tensor, **named: Any) -> Any:
        found = attack_curve(model, x, y, **named)
        return replace(found, nearest=x, x=tuple(x for _ in found.x))

    attack_curve = auditor.attack_curve
    monkeypatch.setattr(auditor, "certify", less)
    monkeypatch.setattr(auditor, "attack_curve", nothing)


def test_cells_decide_what_bounds_and_attacks_leave_open(
    searched: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    alone = audit(network(nn.ReLU(), nn.ReLU()), table(), **ASKED)
    assert alone.models[0].decided == {"cells": 24}
    assert alone.models[0].counts == searched.models[0].counts
    assert min(alone.models[0].counts[name] for name in ("certified", "broken")) > 0
    for row, decision in known_of(searched).items():
        other = known_of(alone)[row]
        assert (other.verdict, other.decided) == (decision.verdict, "cells")
        if decision.verdict == "broken":
            assert other.smallest
            assert decision.smallest
            assert other.broken_radius == pytest.approx(decision.broken_radius, rel=1e-4)
            assert other.counter_example is not None


def test_a_smallest_change_is_one_that_no_shorter_breaks(searched: Audit) -> None:
    broken = [each for each in searched.decisions if each.verdict == "broken"]
    assert searched.models[0].smallest == len(broken) == sum(each.smallest for each in broken)
    for each in broken:
        assert each.certified_radius is not None
        assert each.broken_radius is not None
        assert each.certified_radius <= each.broken_radius <= 1.0001 * each.certified_radius
    assert not any(each.smallest for each in searched.decisions if each.broken_radius is None)


def test_curves_are_exact_where_cells_are_searched(
    searched: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = searched.models[0].curve
    assert curve.certified_precision == curve.attacked_precision
    assert curve.certified_precision[0] > curve.certified_precision[-1]
    assert curve.is_exact
    assert "exact (proved and found)" in audit_html(searched)
    short(monkeypatch)
    alone = audit(network(nn.ReLU(), nn.ReLU()), table(), **ASKED).models[0].curve
    assert alone.certified_precision == alone.attacked_precision == curve.attacked_precision
    found = audit(network(nn.ReLU(), nn.ReLU()), table(), **(ASKED | {"search": 0.0}))
    assert "at least (proved)" in audit_html(found)
    open_ones = found.models[0].curve
    assert open_ones.attacked_precision is not None
    for low, exact, high in zip(
        open_ones.certified_precision,
        curve.certified_precision,
        open_ones.attacked_precision,
        strict=True,
    ):
        assert low <= exact <= high
    assert not open_ones.is_exact


def test_it_is_told_what_decided(searched: Audit) -> None:
    counts = searched.models[0].decided
    assert sum(counts.values()) == len(searched.decisions)
    assert set(counts) <= {"bound", "cells", "attack"}
    for each in searched.decisions:
        says = told(searched, each)["says"]
        assert ("no shorter one does (proved)" in says) == (each.verdict == "broken")
    assert Audit.from_json(searched.to_json()) == replace(searched, folder=None)


@pytest.mark.parametrize(
    ("activation", "named", "why"),
    [
        (nn.Tanh(), {}, "unsearched"),
        (nn.ReLU(), {"search": 0.0}, "unsearched"),
        (nn.ReLU(), {"norm": "linf"}, "unsearched"),
        (nn.ReLU(), {"radii": "none"}, "unsearched"),
        (nn.ReLU(), {"attack": "none"}, "unsearched"),
        (nn.ReLU(), {"search": 1e-12}, "budget"),
    ],
)
def test_why_a_decision_is_open(
    activation: nn.Module, named: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(monkeypatch)
    found = audit(network(activation), table(6), **(ASKED | named))
    opened = [each for each in found.decisions if each.verdict == "undetermined"]
    assert opened
    assert {each.decided for each in opened} == {why}
    assert not any(each.smallest for each in opened)
    if "attack" not in named:
        assert DECIDED[why] in dict(told(found, opened[0])["facts"]).values()


def test_a_false_proof_by_cells_stops_the_audit_and_can_be_seen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = auditor.search_cells

    def wrong(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        return replace(found, lower=torch.full_like(found.lower, 0.3), upper=found.upper + 9)

    model = network(nn.ReLU())
    monkeypatch.setattr(auditor, "search_cells", wrong)
    with pytest.raises(checking.Contradiction):
        audit(model, table(), out=tmp_path, checked=1.0, **ASKED)
    shown = replay(tmp_path / "contradiction.json", model)
    assert shown.before != shown.after
    assert shown.holds
    monkeypatch.undo()
    # What is proved now by cells is no longer than the change that refutes the old proof.
    assert not replay(tmp_path / "contradiction.json", model).holds


def test_seconds_of_a_search_that_are_none_are_refused() -> None:
    assert "search is a number of seconds" in refusal(lambda: AuditSettings(search=-1.0))


def test_the_command_takes_seconds_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, mine, out = (tmp_path / name for name in ("made.csv", "mine.py", "out"))
    lines = [",".join(NAMES), *(",".join(map(str, row)) for row in table(6).x.tolist())]
    data.write_text("\n".join(lines) + "\n")
    mine.write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))\n"
    )
    given = f"r2et audit {data} --explain slopes --model mine:build --k 2 --rounds 1 --search 2"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", [*given.split(), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    header, *_ = (out / "decisions.csv").read_text().splitlines()
    assert "decided by" in header
    assert "smallest change proved" in header


def test_only_what_was_misread_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other fault of a search is one of r2et, and stops the audit instead of hiding in it."""
    short(monkeypatch)

    def failing(kind: type[ValueError]) -> None:
        def fails(*given: Any, **named: Any) -> None:
            raise kind("said by a search")

        monkeypatch.setattr(auditor, "search_cells", fails)

    failing(Misread)
    found = audit(network(nn.ReLU()), table(4), **ASKED)
    assert found.models[0].decided == {"unsearched": 4}
    failing(ValueError)
    assert "said by a search" in refusal(lambda: audit(network(nn.ReLU()), table(4), **ASKED))
