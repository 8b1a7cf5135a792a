import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from r2et.attacks.ensemble import EnsembleBudget
from r2et.auditing import (
    DataSettings,
    ItemSource,
    Loaded,
    Progress,
    source_for,
    usual_settings,
)
from r2et.core.inputs import Inputs, Joined, Piece
from r2et.core.ranking import precision_at_k
from r2et.data import Dataset, ItemStructure
from r2et.explainers import Gradient, predicted
from r2et.report.audit_page import audit_html
from refusals import refusal
from slopes import audit

auditing = importlib.import_module("r2et.auditing.run")
QUICK = EnsembleBudget(rounds=1, starts=2, steps=6, points=4, moves=2, pairs=0, even=2, itself=True)
SHAPE = (2, 5, 4)


def net(inputs: int = 40, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 12), nn.Softplus(), nn.Linear(12, 3))


def shown(count: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def pictures(count: int = 6, **more: Any) -> ItemSource:
    return ItemSource(
        x=shown(count),
        y=torch.arange(count) % 3,
        classes=("a", "b", "c"),
        bounds=(0.0, 1.0),
        **more,
    )


class Alike(nn.Module):
    """Whether two matrices are alike."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        near = (self.inner(a.flatten(1)) * self.inner(b.flatten(1))).sum(-1)
        return torch.stack([torch.zeros_like(near), near], 1)


def test_the_reasons_of_pictures_are_audited() -> None:
    model, tolerance = net(), 0.2
    found = audit(model, pictures(), k=4, tolerance=tolerance, budget=QUICK)
    assert found.data.kind == "picture"
    assert found.settings.norm == "linf"
    assert len(found.data.features) == 20  # the channels of a pixel count together
    assert found.data.features[5].name == "row 2, column 2"
    assert found.counts["broken"] > 0
    assert found.counts["certified"] == 0
    assert any("No certificate could be given" in note for note in found.models[0].notes)
    inputs, exact = Inputs(pieces=(Piece(shape=SHAPE),)), net().double()
    x = shown().double()
    before = Gradient(groups=inputs.explained())(exact, x, predicted(exact, x))
    for told in found.decisions:
        assert len(told.reasons) == 4
        if told.verdict != "broken":
            continue
        at = torch.tensor(told.counter_example.input, dtype=torch.float64).view(1, *SHAPE)
        own = x[told.row][None]
        assert predicted(exact, at) == predicted(exact, own)
        after = Gradient(groups=inputs.explained())(exact, at, predicted(exact, own))
        assert precision_at_k(before[told.row][None], after, 4) < 1
        assert float((at - own).abs().max()) <= tolerance
        assert 0 <= float(at.min()) <= float(at.max()) <= 1
        drawing = told.drawing
        assert drawing.precision <= 1 - len(told.left) / 4
        assert drawing.cost <= tolerance
    page = audit_html(found)
    assert page.count('<figure class="drawing"') == found.counts["broken"]
    assert "Every input may change by 0.2" in page
    assert "style=" not in page


def test_drawings_are_few_and_an_audit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "MOST_DRAWN", 2)
    asked: dict[str, Any] = {"k": 4, "tolerance": 0.2, "budget": QUICK, "measured": 2, "chunk": 2}
    whole = audit(net(), pictures(), out=tmp_path / "whole", **asked)
    drawn = [each for each in whole.decisions if each.drawing]
    assert len(drawn) == 2 < whole.counts["broken"]
    others = [each for each in whole.decisions if not each.drawing]
    found = [each.counter_example for each in others if each.counter_example]
    assert found
    assert all(each.input is None for each in found)
    assert any("first 2 broken decisions are drawn" in note for note in whole.models[0].notes)

    def stop(progress: Progress) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(net(), pictures(), out=tmp_path / "cut", on_progress=stop, **asked)
    again = audit(net(), pictures(), out=tmp_path / "cut", **asked)
    assert again.decisions == whole.decisions
    with pytest.raises(ValueError, match="of other rows"):
        audit(net(), pictures(5), out=tmp_path / "cut", **asked)


def test_matrices_are_told_by_their_nodes_and_only_some_pieces_change() -> None:
    a, b = (torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    pair = [each + each.transpose(1, 2) for each in (a, b)]
    for each in pair:
        each.diagonal(dim1=1, dim2=2).zero_()
    matrix = Piece(shape=(4, 4), symmetric=True)
    items = ItemSource(
        x=pair,
        inputs=Inputs(pieces=(matrix, matrix)),
        changed=(1,),
        nodes=("<A>", "B", "C", "D"),
    )
    found = audit(Alike(), items, k=2, tolerance=0.5, budget=QUICK)
    assert found.data.features[0].name == "<A> \N{EN DASH} B"
    assert found.data.immutable == ("what is explained",)
    assert found.counts["broken"] > 0
    first = items.columns.reach == 0
    for told in found.decisions:
        if told.drawing:
            at = torch.tensor(told.counter_example.input)
            own = next(items.chunks(9)).x[told.row]
            assert torch.equal(at[first].double(), own[first])
            assert len(told.drawing.pieces) == 2
    page = audit_html(found)
    assert "<A>" not in page
    assert "Cells are edges" in page


def test_single_grey_pictures_can_be_certified() -> None:
    items = ItemSource(x=shown(shape=(1, 3, 3)), bounds=(0.0, 1.0))
    found = audit(net(9), items, k=2, tolerance=1e-4, budget=QUICK, measured=0)
    assert found.counts["certified"] > 0
    assert not any("No certificate" in note for note in found.models[0].notes)


def test_what_does_not_fit_is_refused() -> None:
    calls: dict[str, Callable[[], object]] = {
        "k must lie in 1..19": lambda: audit(net(), pictures(), k=20),
        "no piece may change": lambda: pictures(changed=()),
        "rows must hold one value": lambda: pictures(rows=[1]),
        "y must hold class numbers": lambda: ItemSource(
            x=shown(), y=torch.full((6,), 7), classes=("a", "b")
        ),
        "fails on a row of 40 inputs": lambda: audit(net(7), pictures(), k=2),
        "has no finite number for 'number 1'": lambda: audit(
            net(), ItemSource(x=shown() * torch.nan), k=2
        ),
    }
    for words, call in calls.items():
        assert words in refusal(call)


def collection(pairs: bool) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 2

    def divide(labels: Tensor, seed: int) -> dict[str, Tensor]:
        parts = torch.arange(24).view(3, 8)
        if not pairs:
            return dict(zip(("train", "valid", "test"), parts, strict=True))
        both = [torch.stack([part, part.roll(1 + seed % 2)], 1) for part in parts]
        both = [torch.cat([each, torch.stack([each[:, 0], each[:, 0]], 1)]) for each in both]
        return dict(zip(("train", "valid", "test"), both, strict=True))

    return Dataset(
        name="made",
        x=torch.rand(24, 1, 4, 4, generator=draw),
        y=labels,
        structure=ItemStructure(piece=Piece(shape=(1, 4, 4)), pairs=pairs, bounds=(0.0, 1.0)),
        classes=("x", "y"),
        divide=divide,
        target="t",
        source="",
        stand_in="squares instead of circles",
    )


@pytest.mark.parametrize("pairs", [True, False])
def test_the_test_part_of_a_collection_is_audited(pairs: bool) -> None:
    dataset = collection(pairs)
    model: nn.Module = nn.Sequential(net(16), nn.Linear(3, 2))
    if pairs:
        model = Joined(Alike(), dataset.structure.inputs)
    found = audit(model, dataset if pairs else dataset.split(0), tolerance=0.1, budget=QUICK)
    assert found.settings.k == 4  # a quarter of the pixels
    assert found.data.rows == (16 if pairs else 8)
    assert found.decisions[0].id == ("16 and 23" if pairs else None)
    assert any("squares instead of circles" in note for note in found.models[0].notes)


def test_a_folder_of_pictures_is_audited_by_its_path(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(3):
            image = Image.effect_noise((4, 4), 20 + number)
            image.save(tmp_path / "pets" / kind / f"{number}.png")
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Softplus(), nn.Linear(6, 2))
    loaded = [Loaded(name="mine", model=model)]
    source = source_for(str(tmp_path / "pets"), loaded, DataSettings())
    assert isinstance(source, ItemSource)
    assert source.length == 6
    assert source.classes == ("cat", "dog")
    assert usual_settings(source).tolerance == 0.02
    assert audit(model, source, budget=QUICK, measured=0).data.name == "pets"
    with pytest.raises(ValueError, match="no columns to speak of"):
        source_for(str(tmp_path / "pets"), loaded, DataSettings(target="kind"))


def test_a_browser_shows_the_drawings(browser: Any, tmp_path: Path) -> None:
    found = audit(net(), pictures(), k=14, tolerance=0.2, budget=QUICK, measured=0)
    (tmp_path / "audit.html").write_text(audit_html(found), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto((tmp_path / "audit.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#list summary").first.click()
    page.locator("#list .drawing").first.wait_for(state="visible")  # unfolded when it is toggled
    assert page.locator("#list .ranked.long").count() == 2
    assert not problems
    page.close()
