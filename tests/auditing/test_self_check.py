"""The self-check of an audit: a proof that is false is caught, told and can be seen again."""

import json
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from r2et.attacks.ensemble import EnsembleBudget
from r2et.auditing import (
    Audit,
    AuditSettings,
    Contradiction,
    Table,
    auditor,
    checking,
    replay,
    subject,
    to_json,
)
from r2et.certification import Certificate
from r2et.cli import main
from refusals import refusal
from slopes import audit

LIGHT = EnsembleBudget(rounds=1, starts=4, steps=6, points=8, moves=4, pairs=6, sharpness=(8.0,))
QUICK: dict[str, Any] = {"k": 2, "budget": LIGHT, "measured": 0}
NAMES = [f"x{place}" for place in range(5)]

NETWORK = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
"""


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def rows(count: int = 40) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def table(count: int = 40) -> Table:
    return Table(x=rows(count), names=NAMES, name="made")


def too_long(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every certificate promise too much: radii `by` times as long, or infinite ones."""
    real: Callable[..., Certificate] = auditor.certify

    def wrong(*given: Any, **named: Any) -> Certificate:
        found = real(*given, **named)
        return replace(found, radius=found.radius * by, precision=torch.ones_like(found.precision))

    monkeypatch.setattr(auditor, "certify", wrong)
    monkeypatch.setattr(checking, "certify", wrong)


def stopped(**named: Any) -> Contradiction:
    with pytest.raises(Contradiction) as caught:
        audit(network(), table(), **(QUICK | named))
    return caught.value


@pytest.mark.parametrize("attack", ["strong", "none"])
@pytest.mark.parametrize("by", [4.0, math.inf])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_radii_too_long_stop_the_audit(
    attack: str, by: float, norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_long(by, monkeypatch)
    found = stopped(attack=attack, norm=norm, out=tmp_path)
    assert "a fault of r2et, the audit stops" in str(found)
    assert found.path == tmp_path / "contradiction.json"
    record = json.loads(found.path.read_text())
    assert record == to_json(found.record)
    assert not (tmp_path / "audit.json").exists()

    # What the file says is so, by nothing but torch.
    model = network().double()
    x = torch.tensor([record["x"], record["changed"]], dtype=torch.float64)
    x.requires_grad_()
    odds = model(x).softmax(-1)[:, record["predicted"]].log()
    [slopes] = torch.autograd.grad(odds.sum(), x)
    tops = [{NAMES[i] for i in each.topk(2).indices.tolist()} for each in slopes.abs()]
    assert tops[0] == set(record["reasons_at_x"]) != tops[1] == set(record["reasons_at_changed"])
    assert model(x).argmax(-1).tolist() == [record["predicted"]] * 2
    moved = (x[1] - x[0]).detach()
    length = moved.norm() if norm == "l2" else moved.abs().max()
    assert record["distance"] == pytest.approx(float(length), rel=1e-12)
    assert record["proved_radius"] is None or length < record["proved_radius"]

    # By the version that gave the false proof it is there again, by one that does not it is gone.
    again = replay(found.path, network())
    assert again.holds
    assert set(again.before) == tops[0]
    assert again.distance == pytest.approx(record["distance"])
    monkeypatch.undo()
    assert not replay(found.path, network()).holds
    other = nn.Sequential(nn.Linear(5, 2))
    path = found.path
    assert "give the model that was audited" in refusal(lambda: replay(path, other))


def test_lengths_certified_one_by_one_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    too_long(1.0, monkeypatch)
    found = stopped(attack="none", radii="none", epsilons=(0.1, 1.0))
    assert found.record.proved_radius == 1.0
    assert found.path is None
    assert "out= would keep" in str(found)


def test_a_share_too_much_at_a_length_stops_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    real = auditor.certify

    def half(*given: Any, **named: Any) -> Certificate:
        found = real(*given, **named)
        return replace(found, precision=found.precision.clamp_min(0.5))

    # That one of two reasons stays is false where an attack takes both away.
    monkeypatch.setattr(auditor, "certify", half)
    both_gone = {"epsilons": (0.1, 3.0), "radii": "none"}
    found = stopped(**both_gone)
    assert len(found.record.left) == 2


def test_an_unbounded_proof_is_attacked_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kink 20 lengths away from every row: nothing breaks up to there.
    class Far(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            slow = 0.2 * x[:, 0] + 0.1 * x[:, 1]
            odds = 1 + slow + nn.functional.relu(x[:, 1] - 20)
            return torch.stack([torch.zeros_like(odds), odds], 1)

    def endless(model: nn.Module, x: Tensor, *_: Any, **named: Any) -> Certificate:
        far = torch.full_like(x[:, 0], torch.inf)
        places = torch.zeros(len(x), 2, dtype=torch.long)
        return Certificate(
            radius=far,
            order_radius=far,
            precision=torch.ones(len(x), len(named["epsilons"])).double(),
            epsilons=tuple(named["epsilons"]),
            top=places[:, :1],
            weakest=places,
            noise=0 * far.nan_to_num(posinf=0),
        )

    monkeypatch.setattr(auditor, "certify", endless)
    monkeypatch.setattr(subject, "certify", endless)
    near = Table(x=rows(20)[:, :2].abs() / 10, names=["a", "b"])
    with pytest.raises(Contradiction) as caught:
        audit(Far(), near, **(QUICK | {"k": 1}))
    assert caught.value.record.proved_radius is None
    assert caught.value.record.distance > 15
    assert "of any length" in str(caught.value)


def test_a_stated_share_is_checked_and_said_to_be(tmp_path: Path) -> None:
    settings = QUICK | {"attack": "none", "chunk": 20}
    found: Audit = audit(network(), table(60), checked=0.5, out=tmp_path, **settings)
    lines = (tmp_path / "decisions.csv").read_text().splitlines()
    at = lines[0].split(",").index("checked")
    assert at > 0
    proved = sum((each.certified_radius or 1) > 0 for each in found.decisions)
    note = next(each for each in found.models[0].notes if each.startswith("Self-check"))
    said = int(note.split()[1])
    assert f"of the {proved} decisions with a proved radius" in note
    assert "those proved furthest of each 20 rows first (50 %, at least 8)" in note
    assert proved / 2 <= said <= proved / 2 + 3
    checked = [line.count(",true") for line in lines]
    assert sum(checked) >= said
    none = audit(network(), table(20), checked=0, **settings)
    assert any("Self-check: none" in each for each in none.models[0].notes)
    assert "0 to 1, got 2" in refusal(lambda: AuditSettings(checked=2))


def test_those_proved_furthest_are_checked_first() -> None:
    radii = torch.tensor([0.1, 0.0, math.inf, 0.3, 0.2, 0.25, 0.15, 0.0, 0.12, 0.11, 0.05, 0.04])
    [chunk] = table(12).chunks(12)
    assert checking.chosen(radii, AuditSettings(checked=0.01), chunk, 8).tolist() == [
        *(2, 3, 5, 4, 6, 8, 9, 0)
    ]
    assert checking.chosen(radii, AuditSettings(checked=0.01), chunk, 0).tolist() == [2]
    everyone = checking.chosen(radii, AuditSettings(checked=1.0), chunk, 8).tolist()
    assert set(everyone) == set(range(12)) - {1, 7}  # what has no proof cannot be false
    assert not len(checking.chosen(radii, AuditSettings(checked=0.0), chunk, 8))


def test_the_command_ends_with_code_1_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("self_check_models.py").write_text(NETWORK)
    save_file(network().state_dict(), "net.safetensors")
    lines = [",".join(NAMES), *(",".join(map(repr, row)) for row in rows().tolist())]
    Path("made.csv").write_text("\n".join(lines))
    words = "r2et audit made.csv --model self_check_models:build --weights net.safetensors --k 2"
    words += " --explain slopes --attack none --out out"

    def called(*more: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", [*words.split(), *more])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code, " ".join((told.out + told.err).split())

    with monkeypatch.context() as broken:
        too_long(math.inf, broken)
        code, told = called()
        assert code == 1
        assert "a fault of r2et" in told
        assert "out/contradiction.json" in told
        assert not Path("out/audit.html").exists()
        # Another attempt in the same folder, where nothing was finished, ends alike.
        assert called()[0] == 1
        [*_, code] = shlex.split(told.split("To see it again: ", 1)[1])
        exec(code, {})
        assert "holds=True" in capsys.readouterr().out
    code, told = called()
    assert code == 0, told
    assert "Self-check: 8 of the 40 decisions" in told
    assert "Self-check: 8 of the 40 decisions" in Path("out/audit.html").read_text()
    assert not Path("out/contradiction.json").exists()
