"""The audit as a user meets it: verdicts, words, totals, files, refusals."""

import copy
import csv
import importlib.util
import json
import math
import random
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from test_run_page import Outline
from torch import Tensor, nn

from closed_form import tiny_mlp
from r2et import __version__
from r2et.attacks.ensemble import EnsembleBudget
from r2et.auditing import (
    Audit,
    AuditSettings,
    CsvTable,
    Decision,
    Progress,
    Table,
    load_model,
    read_settings,
    settings_of,
)
from r2et.auditing.classifiers import table_for
from r2et.auditing.decisions import MEASURES, VERDICTS, Change, verdict
from r2et.auditing.formatting import changes_in_words, value_in_words
from r2et.auditing.sources import source_for
from r2et.auditing.store import FILE
from r2et.auditing.summary import quotas
from r2et.cli import main
from r2et.core.ranking import top_k_mask
from r2et.core.rng import stream
from r2et.data import from_frame, load, read_csv
from r2et.data.features import Feature, fit_scale
from r2et.experiments.config import recipe_from
from r2et.experiments.runner import Work, code_digest, train_unit
from r2et.explainers import predicted
from r2et.models import MODELS
from r2et.perturbations import PERTURBATIONS
from r2et.report.audit_page import audit_html
from r2et.sklearn import NetworkClassifier
from r2et.training.checkpoint import save
from refusals import refusal
from slopes import audit

LIGHT = EnsembleBudget(rounds=1, starts=4, steps=6, points=8, moves=4, pairs=6, sharpness=(8.0,))
QUICK: dict[str, Any] = {"budget": LIGHT, "measured": 20}


def trained(x: Tensor, y: Tensor, layers: list[nn.Module], steps: int = 60) -> nn.Sequential:
    """A network trained by a plain loop of torch, nothing of this package in it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(*layers)
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x.float()), y).backward()
        optimizer.step()
    return net


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- breast cancer, a network trained outside ---------------------------------------------------

NAMES = [str(name) for name in load_breast_cancer().feature_names]


def cancer_table(rows: int = 60, **named: Any) -> Table:
    data = load_breast_cancer()
    x = torch.tensor(data.data)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    given = {
        "x": x[:rows],
        "names": NAMES,
        "y": torch.tensor(data.target)[:rows],
        "classes": ("malignant", "benign"),
        "target": "diagnosis",
        "name": "breast cancer",
    }
    return Table(**(given | named))


@pytest.fixture(scope="module")
def cancer_net() -> nn.Sequential:
    whole = cancer_table(569)
    assert isinstance(whole.x, Tensor)
    assert isinstance(whole.y, Tensor)
    return trained(whole.x, whole.y, [nn.Linear(30, 12), nn.ReLU(), nn.Linear(12, 2)])


@pytest.fixture(scope="module")
def cancer(cancer_net: nn.Sequential) -> Audit:
    table = cancer_table(immutable=["mean radius", "mean texture"])
    return audit(cancer_net, table, k=5, **QUICK)


@pytest.mark.parametrize(
    ("certified", "broken", "tolerance", "expected"),
    [
        (0.1, math.inf, 0.1, "certified"),
        (0.0999, math.inf, 0.1, "undetermined"),
        (0.05, 0.1, 0.1, "broken"),
        (0.05, 0.1001, 0.1, "undetermined"),
        (0.0, 0.0, 0.1, "broken"),
        (math.inf, math.inf, 5.0, "certified"),
    ],
)
def test_a_verdict_is_what_the_radii_say(
    certified: float, broken: float, tolerance: float, expected: str
) -> None:
    assert verdict(certified, broken, tolerance) == expected


def radii(decision: Decision) -> tuple[float, float]:
    proved = math.inf if decision.unbounded else decision.certified_radius or 0.0
    broken = decision.broken_radius
    return proved, math.inf if broken is None else broken


def check_decisions(found: Audit) -> None:
    """Everything that must hold for each decision by itself."""
    settings = found.settings
    lengths, k = settings.epsilons, settings.k
    assert settings.tolerance in lengths
    for decision in found.decisions:
        proved, broken = radii(decision)
        assert proved <= broken
        assert decision.verdict == verdict(proved, broken, settings.tolerance)
        order = decision.certified_order_radius
        assert order is None or 0 <= order <= proved
        kept, left = decision.certified_precision, decision.attacked_precision
        assert [*kept] == sorted(kept, reverse=True)
        assert [share == 1 for share in kept] == [proved >= length for length in lengths]
        if left is not None:
            assert [*left] == sorted(left, reverse=True)
            assert all(least <= most for least, most in zip(kept, left, strict=True))
            assert [share < 1 for share in left] == [broken <= length for length in lengths]
        assert len(decision.reasons) == k
        names = [each.feature for each in decision.reasons]
        assert decision.weakest[0] in names
        assert decision.weakest[1] not in names
        assert (decision.counter_example is None) == (broken == math.inf)


def check_counter_examples(found: Audit, model: nn.Module, table: Table | CsvTable) -> int:
    """How many counter-examples there are, each tried again from its numbers."""
    [chunk] = table.chunks(10**6)
    settings, columns = found.settings, table.columns
    region = PERTURBATIONS[settings.norm](scale=columns.reach)
    names = [feature.name for feature in columns.features]
    exact = copy.deepcopy(model).double().eval()
    count = 0
    for decision in found.decisions:
        if (example := decision.counter_example) is None:
            continue
        count += 1
        x = chunk.x[decision.row][None]
        other = torch.tensor(example.input, dtype=torch.float64)[None]
        assert float(region.cost(other, x)) == pytest.approx(decision.broken_radius, rel=1e-9)
        assert torch.equal(other[:, columns.reach == 0], x[:, columns.reach == 0])
        y = predicted(exact, x)
        assert torch.equal(predicted(exact, other), y)
        sets = []
        for place in (x, other):
            place = place.clone().requires_grad_()
            probability = exact(place).log_softmax(-1)[0, int(y)]
            slope = torch.autograd.grad(probability, place)[0].abs()
            shown = top_k_mask(slope, settings.k)[0].tolist()
            sets.append({name for name, here in zip(names, shown, strict=True) if here})
        assert sets[0] == {each.feature for each in decision.reasons}
        assert sets[1] == {each.feature for each in example.reasons}
        assert set(decision.left) == sets[0] - sets[1] != set()
        assert set(decision.entered) == sets[1] - sets[0]
        assert 0 < len(example.changes) <= min(40, example.changed)
        for change in example.changes:
            assert change.before != change.after
            assert change.feature not in columns.immutable
    return count


def test_the_radii_of_a_decision_agree_with_all_else(cancer: Audit) -> None:
    check_decisions(cancer)
    assert {each.verdict for each in cancer.decisions} >= {"certified", "broken"}


def test_counter_examples_break_what_they_say(cancer: Audit, cancer_net: nn.Sequential) -> None:
    table = cancer_table(immutable=["mean radius", "mean texture"])
    assert check_counter_examples(cancer, cancer_net, table) > 10
    assert cancer.data.immutable == ("mean radius", "mean texture")


def check_totals(found: Audit) -> None:
    """Every total of a model, added up again from the decisions told in full."""
    settings = found.settings
    lengths, attacked = settings.epsilons, settings.attack != "none"
    at = lengths.index(settings.tolerance)
    for number, model in enumerate(found.models):
        told = [each for each in found.decisions if each.model == number]
        rows = len(told)
        assert rows == found.data.rows
        counts = Counter(each.verdict for each in told)
        assert model.counts == {name: counts[name] for name in VERDICTS}

        def mean(what: str, place: int, some: list[Decision]) -> float:
            return sum(float(getattr(each, what)[place]) for each in some) / len(some)

        curve = model.curve
        both = [radii(each) for each in told]
        for place, length in enumerate(lengths):
            proved = sum(certified >= length for certified, _ in both) / rows
            assert curve.certified_share[place] == pytest.approx(proved)
            kept = mean("certified_precision", place, told)
            assert curve.certified_precision[place] == pytest.approx(kept)
            if attacked:
                standing = sum(broken > length for _, broken in both) / rows
                assert curve.unbroken_share[place] == pytest.approx(standing)
                left = mean("attacked_precision", place, told)
                assert curve.attacked_precision[place] == pytest.approx(left)
        middle = median(certified for certified, _ in both)
        expected = None if middle == math.inf else pytest.approx(middle)
        assert model.median_certified_radius == expected
        found_radii = [broken for _, broken in both if broken < math.inf]
        assert model.median_broken_radius == (
            pytest.approx(median(found_radii)) if found_radii else None
        )
        sets = {frozenset(reason.feature for reason in each.reasons) for each in told}
        assert model.distinct_sets == len(sets)
        swaps: Counter[tuple[str, str]] = Counter()
        for each in told:
            swaps.update(zip(each.left, each.entered, strict=True))
        said = {(each.left, each.entered): each.count for each in model.swaps}
        assert len(said) == min(20, len(swaps))
        assert said == {pair: swaps[pair] for pair in said}
        assert sorted(said.values()) == sorted(swaps.values())[-len(said) :] if said else not swaps
        for each in model.subgroups:
            some = [one for one in told if one.subgroup[each.group] == each.value]
            assert each.rows == len(some)
            for name in VERDICTS:
                assert getattr(each, name) == sum(one.verdict == name for one in some)
            kept = mean("certified_precision", at, some)
            assert each.certified_precision == pytest.approx(kept)
        if found.data.target is not None and told[0].label is not None:
            right = sum(each.label == each.prediction for each in told) / rows
            assert model.accuracy == pytest.approx(right)
            second = found.data.classes[1]
            scores = [
                each.probability if each.prediction == second else 1 - each.probability
                for each in told
            ]
            labels = [each.label == second for each in told]
            area = pytest.approx(roc_auc_score(labels, scores), abs=1e-3) if any(labels) else None
            assert model.auc == area


def test_totals_are_those_of_the_decisions(cancer: Audit) -> None:
    check_totals(cancer)


KEYS = {
    "": "schema|created|version|hashes|settings|data|models|decisions",
    "hashes": "model|data|settings",
    "settings": "k|tolerance|epsilons|norm|explained|attack|seed|project_one_hot|budget|radii",
    "data": "name|rows|features|classes|target|kind|immutable|unit_of_eps",
    "features": "name|unit|group|immutable",
    "models": "name|auc|accuracy|counts|decided|smallest|curve|"
    "median_certified_radius|median_broken_radius|"
    "thickness|faithfulness|distinct_sets|ties|flippable|off_data_share|swaps|subgroups|preflight|"
    "notes|exchange_agreement|exchange_size|without_exchanges",
    "counts": "certified|broken|undetermined",
    "curve": "epsilons|certified_precision|attacked_precision|certified_share|unbroken_share",
    "preflight": "problem|effect|repair",
    "swaps": "left|entered|count",
    "subgroups": "group|value|rows|certified|broken|undetermined|certified_precision|"
    "attacked_precision",
    "decisions": "row|id|model|label|prediction|probability|verdict|decided|smallest|"
    "certified_radius|"
    "unbounded|"
    "certified_order_radius|broken_radius|certified_precision|attacked_precision|weakest|reasons|"
    "left|entered|subgroup|counter_example",
    "reasons": "feature|value|score|direction",
    "counter_example": "changes|changed|probability|reasons|input",
    "changes": "feature|before|after",
}
"""The names of schema r2et-audit/2, by the part that has them."""


def check_schema(value: Any, part: str = "") -> None:
    if isinstance(value, list):
        for each in value:
            check_schema(each, part)
    elif isinstance(value, dict):
        if part in KEYS:
            assert {*KEYS[part].split("|")} <= value.keys(), part
        for key, inner in value.items():
            check_schema(inner, key)
    elif isinstance(value, float):
        assert math.isfinite(value)


def test_the_record_has_the_names_of_the_schema(cancer: Audit) -> None:
    check_schema(cancer.to_json())
    text = json.dumps(cancer.to_json(), allow_nan=False)
    assert Audit.from_json(json.loads(text)) == cancer
    assert all(len(each) == 12 for each in cancer.hashes.model.values())
    assert audit_html(cancer).startswith("<!DOCTYPE html>")


def test_with_a_folder_an_audit_leaves_its_page(
    cancer: Audit, cancer_net: nn.Sequential, tmp_path: Path
) -> None:
    assert cancer.folder is cancer.page is None, "nothing was asked to be kept"
    found = audit(cancer_net, cancer_table(6), k=3, attack="none", out=tmp_path / "out")
    assert found.page == tmp_path / "out" / "audit.html"
    assert found.page.read_text(encoding="utf-8") == audit_html(found)
    found.page.unlink()
    audit(cancer_net, cancer_table(6), k=3, attack="none", out=tmp_path / "out")
    assert found.page.exists(), "also where the audit was finished before"


def test_measures_are_of_the_first_rows_and_said_to_be(cancer: Audit) -> None:
    [model] = cancer.models
    assert model.thickness is not None
    assert 0.5 < model.thickness.least <= model.thickness.mean <= 1
    assert model.faithfulness is not None
    assert model.flippable is not None
    assert 0 <= model.flippable <= 1
    assert model.off_data_share is None  # no one-hot group
    assert model.exchange_agreement is model.exchange_size is None
    assert "exchange" not in " ".join(model.notes)
    assert any("first 20 decisions" in note for note in model.notes)
    assert model.preflight == ()  # the attack follows smooth copies of its kinks


def test_reasons_point_the_way_of_the_slope() -> None:
    # Logits [0, w'x]: for the class with w'x > 0 a feature speaks "for" where its weight is > 0.
    net = nn.Sequential(nn.Linear(4, 2, bias=False)).double()
    weights = torch.tensor([3.0, -2.0, 1.0, -0.5])
    with torch.no_grad():
        net[0].weight.copy_(torch.stack([torch.zeros(4), weights]))
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]])
    found = audit(net, Table(x=x, names=list("abcd")), k=2, **QUICK)
    above, below = found.decisions
    for decision, signs in ((above, ["for", "against"]), (below, ["against", "for"])):
        assert [each.feature for each in decision.reasons] == ["a", "b"]
        assert [each.direction for each in decision.reasons] == signs
        assert [each.score for each in decision.reasons] == pytest.approx([3 / 6.5, 2 / 6.5])
        assert decision.unbounded, "the slope of a linear model is the same everywhere"
        assert decision.certified_radius is None
        assert decision.verdict == "certified"
        assert decision.label is None
    assert found.models[0].median_certified_radius is None
    assert found.data.classes == ("0", "1")


# --- regions ------------------------------------------------------------------------------------


def test_a_box_and_lengths_of_ones_own(cancer_net: nn.Sequential) -> None:
    lengths = torch.linspace(0.5, 2.0, 30)
    table = cancer_table(20, lengths=lengths, immutable=["worst area"])
    found = audit(cancer_net, table, k=5, norm="linf", tolerance=0.02, epsilons=(0.1,), **QUICK)
    check_decisions(found)
    check_totals(found)
    assert check_counter_examples(found, cancer_net, table) > 3


# --- tables of text -----------------------------------------------------------------------------

HOUSING = ("own", "rent", "free")
PURPOSES = ("car", "repairs", "education", "business")


def heloc(path: Path, rows: int = 300, seed: int = 0) -> Path:
    """A table like that of a credit scoring: special codes, empty cells, categories, an id."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["applicant", "risk", "months", "used", "purpose", "housing", "gender", "decision"]
        )
        for row in range(rows):
            risk, months, used = draw.randint(40, 90), draw.uniform(1, 300), draw.uniform(0, 120)
            purpose, housing = draw.choice(PURPOSES), draw.choice(HOUSING)
            good = 0.08 * (risk - 62) + 0.004 * months - 0.015 * used + (housing == "own")
            writer.writerow(
                [
                    f"A-{1000 + row}",
                    -9 if draw.random() < 0.08 else risk,
                    "" if draw.random() < 0.05 else f"{months:.1f}",
                    f"{used:.2f}",
                    "NA" if draw.random() < 0.1 else purpose,
                    housing,
                    draw.choice(("female", "male")),
                    "good" if good + draw.gauss(0, 0.7) > 0 else "bad",
                ]
            )
    return path


HELOC = """
target = "decision"
id = "applicant"
scale = "standard"
missing_values = [-9]
subgroups = ["gender", "months"]
drop = ["gender"]

[features.risk]
name = "External risk"
unit = "points"

[features.months]
unit = "months"
immutable = true
"""


@pytest.fixture(scope="module")
def heloc_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table, its settings, and a network that somebody trained elsewhere."""
    folder = tmp_path_factory.mktemp("heloc")
    heloc(folder / "heloc.csv")
    (folder / "audit.toml").write_text(HELOC)
    table = CsvTable.at(folder / "heloc.csv", read_settings(folder / "audit.toml"))
    [chunk] = table.chunks(1000)
    y = torch.tensor([["bad", "good"].index(str(label)) for label in chunk.labels])
    layers = [nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 2)]
    save_file(trained(chunk.x, y, layers).state_dict(), folder / "net.safetensors")
    (folder / "heloc_models.py").write_text(
        "from torch import nn\n\n\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 2))\n\n\n"
        "def other():\n"
        "    return nn.Sequential(nn.Linear(13, 4), nn.Tanh(), nn.Linear(4, 2))\n\n\n"
        "def text():\n"
        "    return 'no model'\n"
    )
    return folder


def test_a_table_with_categories_and_gaps_is_told_in_words(
    heloc_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(heloc_files)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    loaded = load_model("heloc_models:build", Path("net.safetensors"))
    found = audit(
        loaded.model, "heloc.csv", k=4, tolerance=0.05, config="audit.toml", rows=60, **QUICK
    )
    check_decisions(found)
    check_totals(found)
    data, [model] = found.data, found.models
    assert data.immutable == ("months",)
    assert data.unit_of_eps.startswith("one standard deviation of a number")
    assert data.rows == 60
    assert data.classes == ("bad", "good")
    names = [each.name for each in data.features]
    assert names == [
        *("External risk", "External risk: missing", "months", "months: missing", "used"),
        *(f"purpose: {each}" for each in (*sorted(PURPOSES), "missing")),
        *(f"housing: {each}" for each in sorted(HOUSING)),
    ]
    assert model.off_data_share is not None
    assert {each.group for each in model.subgroups} == {"gender", "months"}
    quarters = [each.value for each in model.subgroups if each.group == "months"]
    assert [value.split()[0] for value in quarters[:4]] == ["up", "above", "above", "above"]
    lengths = [float(value.split()[-1]) for value in quarters[:4]]
    assert lengths == sorted(lengths)
    assert quarters[4:] in ([], ["missing"])
    rows = rows_of(heloc_files / "heloc.csv")
    units = {"External risk": "points", "months": "months"}
    for decision, row in zip(found.decisions, rows, strict=False):
        assert decision.id == row["applicant"]
        assert decision.label == row["decision"]
        assert decision.subgroup["gender"] == row["gender"]
        for each in decision.reasons:
            group, _, category = each.feature.partition(": ")
            if category == "missing" and group in units:
                assert each.value in ("given", "missing")
            elif category:
                cell = {"NA": "missing"}.get(row[group], row[group])
                assert each.value == ("yes" if cell == category else "no")
            elif group in units and row[{"External risk": "risk"}.get(group, group)] != "-9":
                assert each.value.endswith(units[group])
    table = CsvTable.at("heloc.csv", read_settings("audit.toml"))
    assert check_counter_examples(found, loaded.model, table) > 5
    assert any("fitted on the audited rows" in note for note in model.notes)


@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_a_file_is_read_in_blocks_as_it_is_read_as_a_whole(scale: Any, tmp_path: Path) -> None:
    path = heloc(tmp_path / "heloc.csv")
    whole = read_csv(path, target="decision", drop=["applicant"], name="heloc")
    settings = settings_of({"target": "decision", "id": "applicant", "scale": scale}, "here")
    for table in (CsvTable.at(path, settings), CsvTable.at(pd.read_csv(path), settings)):
        chunks = list(table.chunks(7))
        x = torch.cat([chunk.x for chunk in chunks])
        expected = fit_scale(whole.x, whole.features, scale).apply(whole.x)
        torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)
        assert [each.name for each in table.columns.features] == [f.name for f in whole.features]
        assert table.columns.one_hot == whole.structure.one_hot
        assert table.classes == whole.classes
        labels = [label for chunk in chunks for label in chunk.labels]
        assert labels == [whole.classes[each] for each in whole.y.tolist()]
        assert table.length == len(whole.x) == sum(len(chunk.rows) for chunk in chunks)


def test_scales_and_lengths_as_stated(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,10,0\n3,20,1\n5,60,0\n")

    def table(**said: Any) -> CsvTable:
        return CsvTable.at(path, settings_of(said, "here"))

    stated = table(scale={"a": [1, 2]}, features={"b": {"per_eps": 5}})
    [chunk] = stated.chunks(10)
    assert chunk.x.tolist() == [[0, 10, 0], [1, 20, 1], [2, 60, 0]]
    assert stated.columns.reach.tolist() == [1, 5, 1]
    assert "5 of b" in stated.columns.unit_of_eps
    plain = table()
    assert next(plain.chunks(10)).x.tolist() == [[1, 10, 0], [3, 20, 1], [5, 60, 0]]
    deviation = torch.tensor([[1.0, 10], [3, 20], [5, 60]]).double().std(0, correction=0)
    torch.testing.assert_close(plain.columns.reach[:2], deviation)
    assert table(eps="range").columns.reach.tolist() == [4, 50, 1]
    assert table(eps="scaled").columns.reach.tolist() == [1, 1, 1]
    assert table(scale="minmax", eps="scaled").columns.reach.tolist() == [1, 1, 1]


def test_encodings_of_the_training_table_are_used(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,y\n" + "0,x,no\n10,z,yes\n4,y,no\n4,,yes\n" * 3)
    (tmp_path / "now.csv").write_text("y,b,a\nyes,y,5\n")
    settings = settings_of(
        {"target": "y", "scale": "minmax", "fit_on": str(tmp_path / "train.csv")}, "here"
    )
    table = CsvTable.at(tmp_path / "now.csv", settings)
    [chunk] = table.chunks(5)
    names = [feature.name for feature in table.columns.features]
    assert names == ["a", "b: x", "b: y", "b: z", "b: missing"]
    assert chunk.x.tolist() == [[0.5, 0, 1, 0, 0]]
    assert (table.classes, list(chunk.labels)) == (("no", "yes"), ["yes"])
    [note] = table.notes
    assert "the columns of train.csv stand in the order it was trained on is assumed" in note
    for content, said in (
        ("y,b,a\nyes,w,5\n", "line 2, column 'b': got 'w'"),
        ("y,b,a\nyes,x,\n", "column 'a': the value is missing"),
        ("y,b,a\nyes,x,five\n", "column 'a': expected a number"),
        ("y,b,a\nmaybe,x,5\n", "'maybe' is none of the classes"),
        ("y,b\nyes,x\n", "has no column 'a'"),
    ):
        (tmp_path / "now.csv").write_text(content)
        assert said in refusal(lambda: CsvTable.at(tmp_path / "now.csv", settings))


def test_one_hot_columns_of_the_file_are_one_group(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,edu_hs,edu_ba,edu_ma\n30,1,0,0\n40,0,1,0\n50,0,1,0\n")
    settings = settings_of(
        {
            "groups": {"education": ["edu_hs", "edu_ba", "edu_ma"]},
            "features": {"edu_ba": {"name": "Bachelor"}},
        },
        "here",
    )
    table = CsvTable.at(path, settings)
    assert table.columns.one_hot == ((1, 2, 3),)
    assert next(table.chunks(5)).x[:, 3].tolist() == [0, 0, 0], "a constant column is what it is"
    x, other = torch.tensor([[30.0, 1, 0, 0], [30.0, 0.97, 0.03, 0]], dtype=torch.float64)
    [change] = changes_in_words(table.columns, x, other)
    assert change == Change(
        feature="education", before="edu_hs", after="0.97 edu_hs + 0.03 Bachelor"
    )


def test_two_numbers_read_as_0_and_1_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,5\n2,6\n1,9\n")
    assert "say kind = 'numeric'" in CsvTable.at(path).notes[0]
    table = CsvTable.at(path, settings_of({"features": {"a": {"kind": "numeric"}}}, "here"))
    assert next(table.chunks(5)).x[:, 0].tolist() == [1, 2, 1]
    [note] = table.notes
    assert "is assumed" in note


def test_changes_too_small_for_words_are_shown_in_digits() -> None:
    columns = Table(x=torch.tensor([[123456.0, 1.0]]), names=["income", "age"]).columns
    x = torch.tensor([123456.0, 1.0], dtype=torch.float64)
    near = x + torch.tensor([0.001, 0.5], dtype=torch.float64)
    assert changes_in_words(columns, x, near) == [Change(feature="age", before="1", after="1.5")]
    near = x + torch.tensor([0.001, 0.0], dtype=torch.float64)
    assert changes_in_words(columns, x, near) == [
        Change(feature="income", before="123456", after="123456.001")
    ]


def test_values_in_words() -> None:
    number = Feature(name="age", group="age", kind="numeric", low=0, high=9, unit="years")
    part = Feature(name="job: clerk", group="job", kind="category", low=0, high=1)
    assert [value_in_words(number, each) for each in (37, 1)] == ["37 years", "1 year"]
    assert [value_in_words(part, each) for each in (1, 0, 0.25)] == ["yes", "no", "0.25"]


# --- models -------------------------------------------------------------------------------------


def test_without_certificates_the_attack_goes_on(cancer_net: nn.Sequential) -> None:
    net = nn.Sequential(cancer_net[0], nn.LayerNorm(12), *cancer_net[1:])
    found = audit(net, cancer_table(16), k=5, **QUICK)
    check_decisions(found)
    check_totals(found)
    [model] = found.models
    assert model.counts["certified"] == 0
    assert model.counts["broken"] > 0
    assert model.median_certified_radius == 0
    assert model.curve.certified_precision == (0, 0, 0, 0)
    [note] = [each for each in model.notes if "certificate" in each]
    assert "native_layer_norm" in note


def test_without_an_attack_nothing_is_broken(cancer_net: nn.Sequential) -> None:
    found = audit(cancer_net, cancer_table(40), k=5, attack="none")
    check_decisions(found)
    check_totals(found)
    [model] = found.models
    assert model.counts["broken"] == 0
    assert model.curve.attacked_precision is None
    assert "nobody searched" in Outline(audit_html(found)).words


def test_without_radii_lengths_are_certified_one_by_one(
    cancer_net: nn.Sequential, cancer: Audit
) -> None:
    lengths = cancer.settings.epsilons
    table = cancer_table(immutable=["mean radius", "mean texture"])
    found = audit(cancer_net, table, k=5, attack="none", radii="none")
    check_decisions(found)
    assert any("Radii were not sought" in note for note in found.models[0].notes)
    for plain, full in zip(found.decisions, cancer.decisions, strict=True):
        assert plain.certified_radius in (0.0, *lengths)
        assert plain.certified_order_radius is None
        # Where radii are sought cells are searched, too.
        pairs = zip(plain.certified_precision, full.certified_precision, strict=True)
        assert all(one <= other for one, other in pairs)


@pytest.mark.slow
def test_several_models_stand_side_by_side(cancer_net: nn.Sequential) -> None:
    linear = nn.Sequential(nn.Linear(30, 2))
    single = nn.Sequential(*cancer_net[:2], nn.Linear(12, 1), nn.Sigmoid())
    soft = nn.Sequential(*cancer_net, nn.Softmax(-1))
    models = {"net": cancer_net, "linear": linear, "one output": single, "soft": soft}
    found = audit(models, cancer_table(12), k=5, **QUICK)
    check_decisions(found)
    check_totals(found)
    assert [each.name for each in found.models] == list(models)
    assert [each.row for each in found.decisions] == [*range(12)] * 4
    assert [each.model for each in found.decisions] == sorted([*range(4)] * 12)
    first, control, one, same = found.models
    assert control.counts == {"certified": 12, "broken": 0, "undetermined": 0}
    assert control.distinct_sets == 1
    assert one.preflight[0].repair is not None
    assert same.preflight[0].repair is not None
    assert replace(first, name=same.name, preflight=same.preflight) == same
    page = Outline(audit_html(found)).words
    assert all(name in page for name in models)


class Tent(nn.Module):
    """A network that gains steep slopes between 0 and 1 of some columns, and no other answer."""

    def __init__(self, heights: torch.Tensor) -> None:
        super().__init__()
        self.inner = tiny_mlp(d=7, activation=nn.Softplus)
        self.heights = nn.Parameter(heights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = torch.minimum(x, 1 - x) @ self.heights
        logits: torch.Tensor = self.inner(x) + torch.stack([torch.zeros_like(extra), extra], dim=-1)
        return logits


def jobs(count: int) -> Table:
    draw = torch.Generator().manual_seed(1)
    job = torch.eye(5)[torch.randint(5, (count,), generator=draw)]
    names = ["a", "b", *(f"job: {each}" for each in "vwxyz")]
    return Table(
        x=torch.cat([torch.rand(count, 2, generator=draw), job], dim=1),
        names=names,
        groups={"job": names[2:]},
    )


def test_an_audit_says_when_slopes_say_nothing_about_exchanges(tmp_path: Path) -> None:
    heights = torch.tensor([0.0, 0.0, 40.0, -10.0, 20.0, -30.0, 35.0]).double()
    table = jobs(30)
    models = {"honest": Tent(0 * heights), "tent": Tent(heights)}
    found = audit(models, table, k=2, attack="none", measured=20, out=tmp_path / "out")
    honest, tent = found.models
    assert honest.exchange_agreement > 0.8
    assert not any("exchanges of categories" in note for note in honest.notes)
    assert abs(tent.exchange_agreement) < 0.5
    assert tent.exchange_size < 0.2
    [said] = [note for note in tent.notes if "exchanges of categories" in note]
    assert said.startswith("These gradients say nothing")
    assert said in Outline(audit_html(found)).words
    rows = rows_of(tmp_path / "out" / "decisions.csv")
    measured = [row["exchange agreement"] for row in rows if row["model"] == "1"]
    assert [bool(each) for each in measured] == [True] * 20 + [False] * 10
    mean = sum(map(float, measured[:20])) / 20
    assert tent.exchange_agreement == pytest.approx(mean)
    assert tent.without_exchanges == 0


def test_each_measure_is_a_column_costly_ones_of_the_first_rows(tmp_path: Path) -> None:
    tent = Tent(torch.zeros(7).double())
    found = audit(tent, jobs(6), k=2, attack="none", measured=4, out=tmp_path)
    columns = [{*row.values()} for row in rows_of(tmp_path / "decisions.csv")]
    for name, measure in MEASURES.items():
        values = [getattr(each, name) for each in found.decisions]
        assert [value is not None for value in values] == [True] * 4 + [not measure.costly] * 2
        assert all(
            value is None or repr(value) in row for value, row in zip(values, columns, strict=True)
        )


def test_decisions_without_exchanges_are_left_out_and_counted() -> None:
    table = jobs(30)
    table.x[:4, 2:] = 0.0  # of no job
    [model] = audit(Tent(torch.zeros(7).double()), table, k=2, attack="none").models
    assert model.without_exchanges == 4
    assert any("4 of the decisions measured offer too few" in note for note in model.notes)
    table.x[:, 2:] = 0.0
    [model] = audit(Tent(torch.zeros(7).double()), table, k=2, attack="none").models
    assert model.exchange_agreement is model.without_exchanges is None


def test_three_classes_and_projected_reasons() -> None:
    net = tiny_mlp(d=6, classes=3, activation=nn.Softplus)
    draw = torch.Generator().manual_seed(1)
    x = torch.cat([torch.randn(24, 3, generator=draw), torch.eye(3).repeat(8, 1)], dim=1)
    table = Table(
        x=x,
        names=["a", "b", "c", "job: x", "job: y", "job: z"],
        groups={"job": ["job: x", "job: y", "job: z"]},
        y=torch.arange(24) % 3,
        classes=("no", "perhaps", "yes"),
        subgroups={"side": pd.Categorical(["left", "right"] * 12, categories=["right", "left"])},
    )
    found = audit(net, table, k=3, project_one_hot=True, **QUICK)
    check_decisions(found)
    check_totals(found)
    [model] = found.models
    assert 0 < model.off_data_share < 1
    assert [each.value for each in model.subgroups] == ["right", "left"]
    assert model.auc is not None


def exported(model: nn.Module, path: Path, d: int) -> Path:
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (torch.randn(4, d),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


class Scaled(nn.Module):
    """A network that scales its inputs itself, as many are shipped."""

    def __init__(self, net: nn.Module, d: int) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.linspace(-1, 1, d))
        self.width = torch.linspace(1, 2, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(((x - self.mean) / self.width).view(x.shape[0], -1))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    layers = (nn.Linear(5, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.2), nn.Dropout(), nn.Linear(6, 2))
    model = Scaled(nn.Sequential(*layers), 5).eval()
    return model, exported(model, tmp_path_factory.mktemp("exported") / "net.pt2", 5)


def test_an_exported_program_is_the_model_it_was(program: tuple[nn.Module, Path]) -> None:
    model, path = program
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    read = load_model(str(path)).model
    torch.testing.assert_close(read(x), model(x), rtol=0, atol=0)
    table = Table(x=x, names=list("abcde"))
    mine, theirs = (audit(each, table, k=2, **QUICK) for each in (model, read))
    for one, other in zip(mine.decisions, theirs.decisions, strict=True):
        assert one.certified_radius == pytest.approx(other.certified_radius)
        assert one.reasons == other.reasons
    assert mine.counts == theirs.counts


def test_models_of_this_package_come_with_their_scale(tmp_path: Path) -> None:
    dataset = load("compas")
    net = MODELS["mlp"].build(dataset.n, 2, generator=stream(0, "test"))
    plan = {"name": "mlp", "inputs": dataset.n, "classes": 2}
    recipe = {"model": plan, "dataset": "compas", "data": dataset.digest, "seed": 3}
    path = save(tmp_path / "own.safetensors", net, recipe)
    loaded = load_model(str(path))
    settings = settings_of(
        {"subgroups": ["sex"], "features": {"race": {"immutable": True}}}, "here"
    )
    table = source_for("compas", [loaded], settings)
    split = dataset.split(3)
    assert torch.equal(next(table.chunks(20)).x, split.test.x[:20].double())
    priors = source_for("compas", [loaded], settings_of({"subgroups": ["priors"]}, "here"))
    counts = [int(each) for each in priors.subgroup_values["priors"]]
    assert counts == sorted(counts)
    found = audit(loaded.model, table, k=4, rows=10, **QUICK)
    check_decisions(found)
    assert found.data.immutable == ("race",)
    assert [each.row for each in found.decisions] == split.test.rows[:10].tolist()
    assert "was not trained on adult" in refusal(lambda: source_for("adult", [loaded], settings))


def test_a_csv_file_for_a_model_of_a_run(tmp_path: Path) -> None:
    path = heloc(tmp_path / "heloc.csv")
    dataset = read_csv(path, target="decision", drop=["applicant"], name="heloc")
    methods = [{"name": "vanilla"}]
    recipe = recipe_from("tiny", {"line": "x", "fit": {"epochs": 1}, "methods": methods})
    work = Work(
        source=lambda: dataset, data=dataset.digest, recipe=recipe, seed=1, code=code_digest()
    )
    (outcome,) = train_unit(work, recipe.methods[0], None)
    own = tmp_path / "own.safetensors"
    own.write_bytes(outcome.model)
    loaded = load_model(str(own))
    settings = settings_of({"target": "decision", "id": "applicant"}, "here")
    table = source_for(str(path), [loaded], settings)
    expected = dataset.split(1).scale.apply(dataset.x)
    torch.testing.assert_close(torch.cat([each.x for each in table.chunks(64)]), expected)
    assert table.classes == dataset.classes
    # Other rows take the schema of the training, whether or not they have a target.
    later = heloc(tmp_path / "later.csv", rows=60)
    unlabelled = pd.read_csv(later).drop(columns=["decision", "applicant"])
    for data, said in ((str(later), settings), (unlabelled, None)):
        x = torch.cat([each.x for each in source_for(data, [loaded], said).chunks(64)])
        torch.testing.assert_close(x, expected[:60])
    check_decisions(audit(loaded.model, source_for(str(later), [loaded], settings), k=4, **QUICK))
    assert "leave out fit_on" in refusal(
        lambda: source_for(str(later), [loaded], replace(settings, fit_on=str(path)))
    )
    other = replace(loaded, recipe={**loaded.recipe, "classes": ["a", "b"]})
    assert "encode rows differently" in refusal(
        lambda: source_for(str(later), [loaded, other], settings)
    )
    bare = replace(loaded, recipe={"data": dataset.digest})
    assert "train it again" in refusal(lambda: source_for(str(later), [bare], settings))


# --- classifiers of scikit-learn's kind ---------------------------------------------------------


def people(count: int = 80) -> pd.DataFrame:
    """A table with numbers, words, truth values, gaps and an outcome."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        age, income = draw.randint(18, 80), round(draw.gauss(30, 10), 2)
        job, owner = draw.choice(("clerk", "smith", "pilot", None)), draw.random() < 0.5
        yes = age / 20 + income / 10 + 2 * (job == "pilot") - owner > 5.5
        rows.append(
            (age, None if draw.random() < 0.1 else income, job, owner, "yes" if yes else "no")
        )
    return pd.DataFrame(rows, columns=["age", "income", "job", "owner", "outcome"])


@pytest.fixture(scope="module")
def classifier() -> NetworkClassifier:
    frame = people()
    fitted: NetworkClassifier = NetworkClassifier(
        method="steadfast-quick", k=3, epochs=4, random_state=0
    ).fit(frame.drop(columns="outcome"), frame["outcome"])
    return fitted


PEOPLE: dict[str, Any] = {
    "target": "outcome",
    "subgroups": ["owner"],
    "features": {"age": {"unit": "years", "immutable": True, "per_eps": 31}},
}


def test_a_classifier_brings_its_encoding(classifier: NetworkClassifier, tmp_path: Path) -> None:
    frame, settings = people(), settings_of(PEOPLE, "here")
    expected = classifier.encode(frame.drop(columns="outcome"))
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    saved = load_model(str(classifier.save(tmp_path / "clf.safetensors")))
    for table in (
        table_for([classifier], frame, settings),
        source_for(str(path), [saved], settings),
    ):
        assert torch.equal(torch.cat([each.x for each in table.chunks(9)]), expected)
        assert table.classes == ("no", "yes")
        names = [feature.name for feature in table.columns.features]
        assert names == classifier.get_feature_names_out().tolist()
        assert table.columns.reach[0] == 0
        assert table.columns.one_hot == ((3, 4, 5, 6),)
    found = audit(classifier, frame, k=3, config=settings, rows=12, **QUICK)
    check_decisions(found)
    check_totals(found)
    assert [each.label for each in found.decisions] == list(frame["outcome"][:12])
    assert [each.subgroup["owner"] for each in found.decisions] == [
        str(each) for each in frame["owner"][:12]
    ]
    told = {each.feature: each.value for one in found.decisions for each in one.reasons}
    assert told.get("age", "0 years").endswith("years")
    whole = settings_of({**PEOPLE, "scale": "standard"}, "here")
    assert "leave out scale" in refusal(lambda: table_for([classifier], frame, whole))
    lacking = frame.drop(columns="job")
    assert "'job' is missing" in refusal(lambda: table_for([classifier], lacking, settings))
    wrong = frame.assign(age=["old"] * len(frame))
    assert "row 0, column 'age': expected a number" in refusal(
        lambda: next(table_for([classifier], wrong, settings).chunks(5))
    )
    with pytest.raises(ValueError, match="not fitted yet"):
        audit(NetworkClassifier(), frame, k=3)


def test_a_pipeline_is_audited_in_original_units(classifier: NetworkClassifier) -> None:
    frame = people().fillna({"income": 30.0, "job": "none"})
    numbers, outcome = frame[["age", "income"]], frame["outcome"]
    brief = NetworkClassifier(method="steadfast-quick", k=1, epochs=2, random_state=0)
    scaled = make_pipeline(StandardScaler(), brief).fit(numbers, outcome)
    settings = settings_of({"target": "outcome", "features": {"age": {"unit": "years"}}}, "here")
    table = table_for([scaled], frame[["age", "income", "outcome"]], settings)
    [chunk] = table.chunks(1000)
    assert torch.equal(chunk.x, scaled[-1].encode(scaled[:-1].transform(numbers)))
    raw = table.columns.scale.undo(chunk.x)
    torch.testing.assert_close(raw, torch.tensor(numbers.to_numpy(), dtype=torch.float64))
    assert [feature.name for feature in table.columns.features] == ["age", "income"]

    one_hot = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["job"]),
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    worded = make_pipeline(one_hot, clone(brief)).fit(frame[["age", "job"]], outcome)
    jobs = ["job_clerk", "job_none", "job_pilot", "job_smith"]
    settings = settings_of({"target": "outcome", "groups": {"job": jobs}}, "here")
    found = audit(worded, frame, k=2, config=settings, rows=8, **QUICK)
    check_decisions(found)
    check_totals(found)
    assert [each.name for each in found.data.features] == [*jobs, "age"]
    assert {each.group for each in found.data.features} == {"job", "age"}
    assert found.models[0].off_data_share is not None
    two = {"a": scaled, "b": classifier}
    assert "one at a time" in refusal(lambda: audit(two, frame, k=1))
    other = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, outcome)
    assert "slopes are gradients of networks" in refusal(lambda: audit(other, frame, k=1))


# --- streams, kills, files ----------------------------------------------------------------------


def blocks(rows: int = 14, size: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    table = cancer_table(rows)
    assert isinstance(table.x, Tensor)
    assert isinstance(table.y, Tensor)
    yield from zip(table.x.split(size), table.y.split(size), strict=True)


def test_rows_from_an_iterator(cancer_net: nn.Sequential, tmp_path: Path) -> None:
    named = {"names": NAMES, "classes": ("malignant", "benign"), "name": "breast cancer"}

    def run(rows: Iterator[Any], out: Path | None) -> Audit:
        streamed = Table(x=rows, **named)
        return audit(cancer_net, streamed, k=5, radii="all", out=out, chunk=5, attack="none")

    found = run(blocks(), tmp_path / "out")
    whole = audit(cancer_net, cancer_table(14), k=5, attack="none")
    assert found.counts == whole.counts
    assert found.data.rows == 14
    assert [each.row for each in found.decisions] == [*range(14)]
    for one, other in zip(found.decisions, whole.decisions, strict=True):
        assert one.certified_radius == pytest.approx(other.certified_radius, rel=1e-6)
    again = run(blocks(), tmp_path / "out")
    assert again == found

    # Interrupted rows must be the same ones when they come again.
    def short() -> Iterator[Any]:
        yield from list(blocks())[:1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(short(), tmp_path / "begun")
    other = [(x.index_fill(0, torch.tensor([5 % len(x)]), 7.0), y) for x, y in blocks()]
    assert "are not the ones" in refusal(lambda: run(iter(other), tmp_path / "begun"))
    other = [(x + 1, y) for x, y in blocks()]
    assert "of other rows" in refusal(lambda: run(iter(other), tmp_path / "begun"))
    assert run(blocks(), tmp_path / "begun").counts == whole.counts


KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn
torch.set_num_threads(1)
from r2et.attacks import EnsembleBudget
from functools import partial
import r2et
from r2et.auditing import Table

audit = partial(r2et.audit, explain="slopes")
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
models = {name: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)) for name in "ab"}
x = torch.randn(48, 6)
draw = random.Random(seed)

def run(out):
    table = Table(x=x, names=list("uvwxyz"), y=(x[:, 0] > 0).long(), classes=("no", "yes"))
    audit(models, table, k=2, attack="none", radii="none", epsilons=(0.1,), chunk=4, measured=10,
          budget=EnsembleBudget(rounds=1, starts=1, steps=1, points=1, moves=0, pairs=0), out=out)

def child(out):
    pid = os.fork()
    if pid == 0:
        try:
            run(out)
            os._exit(0)
        except BaseException as problem:
            sys.stderr.write(f"{type(problem).__name__}: {problem}")
            os._exit(1)
    return pid

def ended(pid):
    return os.WIFEXITED(status := os.waitpid(pid, 0)[1]) and os.WEXITSTATUS(status) == 0

run(folder / "before")  # what is imported on the way is then there in every child
begun = time.monotonic()
assert ended(child(folder / "whole"))
whole = time.monotonic() - begun
kills = []
for attempt in range(4):
    out = folder / f"killed {attempt}"
    for _ in range(draw.randint(1, 3)):
        pid = child(out)
        time.sleep(draw.uniform(0.05, 0.6) * whole)
        os.kill(pid, signal.SIGKILL)
        kills.append(not ended(pid))
        if not kills[-1]:
            break
    assert ended(child(out))
print(json.dumps(kills))
"""


@pytest.mark.slow
def test_a_killed_audit_goes_on_without_a_lost_or_doubled_row(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "0"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout.splitlines()[-1])) >= 3, "real kills before the end"
    whole = (tmp_path / "whole" / "decisions.csv").read_bytes()
    rows = rows_of(tmp_path / "whole" / "decisions.csv")
    assert sorted((int(row["model"]), int(row["row"])) for row in rows) == [
        (model, row) for model in range(2) for row in range(48)
    ]
    record = json.loads((tmp_path / "whole" / "audit.json").read_text())
    for attempt in range(4):
        folder = tmp_path / f"killed {attempt}"
        assert (folder / "decisions.csv").read_bytes() == whole
        again = json.loads((folder / "audit.json").read_text())
        assert {**again, "created": ""} == {**record, "created": ""}
        assert {each.name for each in folder.iterdir()} == {
            *("audit.html", "audit.json", "decisions.csv", "audit.sqlite", ".lock")
        }


def stopped(folder: Path, chunks: int, run: Callable[..., Audit]) -> None:
    """An audit in a folder, stopped after some chunks."""

    def stop(progress: Progress) -> None:
        if progress.what == "auditing decisions" and progress.done == 10 * chunks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=folder, on_progress=stop)


BRIEF: dict[str, Any] = {"k": 5, "attack": "none", "chunk": 10, "measured": 0}
BRIEF |= {"radii": "none", "epsilons": (0.1,)}


def test_half_written_chunks_are_cut_off(cancer_net: nn.Sequential, tmp_path: Path) -> None:
    run = partial(audit, cancer_net, cancer_table(40), **BRIEF)
    whole = run(out=tmp_path / "whole")
    folder = tmp_path / "cut"
    stopped(folder, 2, run)
    # As if it had been killed in the middle of writing the third chunk.
    writing = """
import os, sqlite3, sys
opened = sqlite3.connect(sys.argv[1])
opened.execute("PRAGMA cache_spill = 1")
opened.execute("PRAGMA cache_size = 1")
text = "x" * 10_000
opened.executemany("INSERT INTO decisions VALUES (2, ?, 1, ?)", [(at, text) for at in range(500)])
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", writing, str(folder / FILE)], check=False)
    assert (folder / f"{FILE}-journal").exists()
    found = run(out=folder)
    rows = (tmp_path / "whole" / "decisions.csv").read_bytes()
    assert (folder / "decisions.csv").read_bytes() == rows
    assert found.decisions == whole.decisions
    assert not (folder / f"{FILE}-journal").exists()


def test_a_folder_belongs_to_one_audit(cancer_net: nn.Sequential, tmp_path: Path) -> None:
    run: Callable[..., Audit] = lambda net, rows=12, **named: audit(  # noqa: E731
        net, cancer_table(rows), attack="none", out=tmp_path, **({"k": 5} | named)
    )
    found = run(cancer_net)
    assert found.folder == tmp_path
    assert run(cancer_net) == found
    assert "with other settings" in refusal(lambda: run(cancer_net, k=4))
    assert "of other rows" in refusal(lambda: run(cancer_net, rows=13))
    other = nn.Sequential(nn.Linear(30, 2))
    assert "of another model" in refusal(lambda: run(other))
    weights_alone = nn.Sequential(*cancer_net[:1], nn.Tanh(), *cancer_net[2:])
    assert "of another model" in refusal(lambda: run(weights_alone))
    (tmp_path / "audit.json").write_text("{")
    assert "audit.json" in refusal(lambda: run(cancer_net))
    for content in (b"no store", b"x" * 10_000):
        (tmp_path / FILE).write_bytes(content)
        assert "something else" in refusal(lambda: run(cancer_net))
    (tmp_path / FILE).unlink()
    (tmp_path / "journal.jsonl").write_text("{}")
    assert "an audit by r2et an earlier version" in refusal(lambda: run(cancer_net))


class Steep(nn.Module):
    """A network whose answer depends on a number that is neither weight nor buffer."""

    def __init__(self, steepness: float) -> None:
        super().__init__()
        self.layer, self.steepness = nn.Linear(30, 2), steepness

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.steepness


def test_another_version_or_model_does_not_go_on(
    cancer_net: nn.Sequential, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BRIEF
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    audit(cancer_net, cancer_table(30), out=whole, **settings)
    stopped(killed, 1, partial(audit, cancer_net, cancer_table(30), **settings))
    with monkeypatch.context() as later:
        later.setattr(sys.modules["r2et.auditing.run"], "__version__", "99.0")
        for folder in (whole, killed):
            said = refusal(lambda: audit(cancer_net, cancer_table(30), out=folder, **settings))  # noqa: B023
            assert f"by r2et {__version__}, and this is 99.0" in said
            assert "choose another folder, or go on with" in said
    other = copy.deepcopy(cancer_net)
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3  # type: ignore[operator, index]
    before = (killed / FILE).read_bytes()
    said = refusal(lambda: audit(other, cancer_table(30), out=killed, **settings))
    assert "of another model" in said
    assert (killed / FILE).read_bytes() == before
    # From before versions were kept.
    with closing(sqlite3.connect(killed / FILE)) as opened, opened:
        opened.execute("DELETE FROM plan WHERE name = 'version'")
    said = refusal(lambda: audit(cancer_net, cancer_table(30), out=killed, **settings))
    assert "an earlier version" in said

    steep = Steep(1.0)
    audit(steep, cancer_table(30), out=tmp_path / "steep", **settings)
    steep.steepness = 2.0
    said = refusal(lambda: audit(steep, cancer_table(30), out=tmp_path / "steep", **settings))
    assert "the same weights but other answers" in said


def test_of_many_decisions_the_first_of_each_verdict_are_told(
    cancer_net: nn.Sequential, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules["r2et.auditing.run"], "MOST_IN_FULL", 12)
    quick: dict[str, Any] = {"attack": "none", "radii": "none", "epsilons": (0.1,), "measured": 0}
    found = audit(cancer_net, cancer_table(80), k=5, chunk=16, out=tmp_path, **quick)
    told, counts = found.decisions, found.counts
    assert len(told) == 12
    expected = quotas(counts, 12)
    rows = rows_of(tmp_path / "decisions.csv")
    assert len(rows) == 80
    for name in VERDICTS:
        mine = [each.row for each in told if each.verdict == name]
        firsts = [int(row["row"]) for row in rows if row["verdict"] == name][: expected[name]]
        assert mine == firsts
    assert "This page tells 12 of the 80 decisions" in Outline(audit_html(found)).words


@pytest.mark.parametrize(
    ("counts", "most"),
    [({"a": 5, "b": 3, "c": 0}, 100), ({"a": 10**6, "b": 1, "c": 7}, 5000), ({"a": 9, "b": 9}, 3)],
)
def test_quotas_are_in_proportion_and_leave_nobody_out(counts: dict[str, int], most: int) -> None:
    found = quotas(counts, most)
    assert sum(found.values()) == min(most, sum(counts.values()))
    for name, count in counts.items():
        assert min(count, 1) <= found[name] <= count
        assert abs(found[name] - most * count / sum(counts.values())) <= 2 or found == counts


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_rows_as_parquet(cancer_net: nn.Sequential, tmp_path: Path) -> None:
    parquet, plain = tmp_path / "parquet", tmp_path / "csv"
    for folder, form in ((parquet, "parquet"), (plain, "csv")):
        audit(cancer_net, cancer_table(6), k=5, out=folder, format=form, chunk=4, **QUICK)
    assert not (parquet / "decisions.csv").exists()
    one, other = (
        pd.read_parquet(parquet / "decisions.parquet"),
        pd.read_csv(plain / "decisions.csv"),
    )
    assert list(one.columns) == list(other.columns)
    for name in ("row", "probability", "certified radius", "broken radius"):
        pd.testing.assert_series_equal(one[name], other[name], check_dtype=False)


HOSTILE = "<script>alert(1)</script>"


def test_hostile_names_are_only_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = [HOSTILE, "</script><b>", "=cmd|' /C calc'!A0", 'a "quoted", comma', "line\nbreak", "t"]
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for _ in range(30):
            words = [draw.gauss(0, 1) for _ in range(4)]
            writer.writerow(
                [*words, draw.choice([HOSTILE, "b&b", "c"]), draw.choice(["<i>", "no"])]
            )
    settings = settings_of(
        {"target": "t", "subgroups": ["line\nbreak"], "features": {HOSTILE: {"unit": "<u>"}}},
        "here",
    )
    table = CsvTable.at(path, settings)
    net = tiny_mlp(d=len(table.columns.features))
    found = audit({HOSTILE: net}, table, k=3, out=tmp_path / "out", **QUICK)
    check_decisions(found)
    check_totals(found)
    text = audit_html(found)
    outline = Outline(text)
    assert outline.tags.count("script") == 2, "the page's own, and its data"
    assert not {"i", "u"} & {*outline.tags}
    assert HOSTILE in outline.words
    assert "</script><b>" not in text
    assert HOSTILE not in text
    rows = rows_of(tmp_path / "out" / "decisions.csv")
    for row, decision in zip(rows, found.decisions, strict=True):
        assert json.loads(row["reasons"]) == [each.feature for each in decision.reasons]


# --- refusals -----------------------------------------------------------------------------------


def test_settings_that_mean_nothing_are_refused(cancer_net: nn.Sequential) -> None:
    def said(**named: Any) -> str:
        return refusal(lambda: audit(cancer_net, cancer_table(10), **({"k": 5} | named)))

    assert "unknown attack 'storng': did you mean 'strong'" in said(attack="storng")
    assert "unknown norm" in said(norm="l1")
    assert "unknown radii" in said(radii="some")
    assert "must be positive, got 0" in said(tolerance=0.0)
    assert "must be positive, got -0.5" in said(epsilons=(0.1, -0.5))
    assert "rows >= 1" in said(rows=0)
    assert "k must lie in 1..29 for 30 features, got 30" in said(k=30)
    assert "unknown format 'xls'" in said(format="xls")
    assert "unknown explained quantity" in said(explained="odds")
    assert "one model or more" in refusal(lambda: audit({}, cancer_table(10)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert "need pyarrow" in said(format="parquet")


def test_models_that_cannot_be_audited_are_refused() -> None:
    def said(model: nn.Module, **named: Any) -> str:
        return refusal(lambda: audit(model, cancer_table(10, **named), k=5))

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(30, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.float())

    assert "expected 31 inputs, got 30" in said(nn.Sequential(nn.Linear(31, 2)))
    assert "answers for 3 classes, but 2 are known" in said(nn.Sequential(nn.Linear(30, 3)))
    assert "cannot be explained" in said(nn.Sequential(nn.Linear(30, 2), nn.Threshold(1e9, 0.0)))
    assert "cannot compute in float64" in said(Cast())
    two = {"a": nn.Linear(30, 2), "b": nn.Linear(30, 3)}
    table = cancer_table(10, classes=None)
    assert "the same classes" in refusal(lambda: audit(two, table, k=5))


def test_tables_that_do_not_fit_are_refused(cancer_net: nn.Sequential) -> None:
    assert "one column for each of the 3 names" in refusal(
        lambda: cancer_table(names=["a", "b", "c"])
    )
    assert "needs the names" in refusal(lambda: cancer_table(names=[]))
    assert "two input columns are called" in refusal(lambda: cancer_table(names=["a"] * 30))
    assert "one value for each of the 60 rows" in refusal(lambda: cancer_table(ids=["a"]))
    assert "class numbers 0..0" in refusal(lambda: cancer_table(classes=("only",)))
    assert "did you mean 'mean area'" in refusal(lambda: cancer_table(immutable=["mean aera"]))
    assert "names no column" in refusal(lambda: cancer_table(groups={"g": ["x"]}))
    assert "every input is immutable" in refusal(lambda: cancer_table(immutable=NAMES))
    assert "pairs (x, y)" in refusal(lambda: cancer_table(x=iter([]), y=[1]))
    empty = refusal(lambda: audit(cancer_net, cancer_table(0), k=5))
    assert "no rows" in empty
    wrong = cancer_table(10)
    assert isinstance(wrong.x, Tensor)
    x = wrong.x.clone()
    x[3, 2] = math.nan
    assert "row 3 of breast cancer has no finite number for 'mean perimeter'" in refusal(
        lambda: audit(cancer_net, cancer_table(10, x=x), k=5)
    )
    blocks_of_two = Table(x=iter([torch.zeros(2, 2)]), names=["a", "b", "c"])
    assert "must have 3 columns" in refusal(lambda: audit(cancer_net, blocks_of_two, k=2))
    assert "say it in the Table itself" in refusal(
        lambda: audit(cancer_net, cancer_table(10), config=settings_of({}, "here"))
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('targt = "y"', "has no setting 'targt': did you mean 'target'"),
        ("[features.a]\nunti = 'x'", "has no setting 'unti': did you mean 'unit'"),
        ('target = "z"', "names a column 'z'"),
        ("[features.c]\nunit = 'x'", "[features] names a column 'c'"),
        ('missing = "drop"', "missing is one of mark, median, refuse"),
        ('scale = "std"', "scale is one of none, standard, minmax"),
        ("[scale]\na = 3", "must be [shift, width]"),
        ("[groups]\ng = ['a', 'q']", "[groups] g names a column 'q'"),
        ("[groups]\ng = ['a']\nh = ['a']", "'a' is in two"),
        ("drop = ['a', 'b']", "no column left"),
        ("subgroups = 3", "'subgroups' must be a list of which each is a text, got 3"),
        ("= 3", "not valid TOML"),
        ('fit_on = "nowhere.csv"', "cannot read nowhere.csv"),
    ],
)
def test_a_file_of_settings_is_read_strictly(said: str, expected: str, tmp_path: Path) -> None:
    path, config = tmp_path / "t.csv", tmp_path / "audit.toml"
    path.write_text("a,b\n1,2\n3,4\n5,6\n")
    config.write_text(said)
    assert expected in refusal(lambda: CsvTable.at(path, read_settings(config)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"a,b\n", "a header but no rows"),
        (b"a,a\n1,2\n", "'a' appears twice"),
        (b"a,b\n1,2,3\n", "line 2: expected 2 cells"),
        (b"a,b\n1\n", "nothing for column 'b'"),
        (b'a,b\n"1,2\n3,4\n', "line 2, column 'a': a quote opens this cell and is not closed"),
        (b"a,b\n1,\xff\n", "line 2, column 'b': byte 0xff is not UTF-8"),
        (b"a,b\n1,2\n1,inf\n3,5\n", "line 3, column 'b': expected a finite number"),
        (b"a,b\n" + b"1,2\n3,4\n5,6\n" * 10 + b"1,x\n", "line 32, column 'b': expected a number"),
        (b"a,b\n" + b"\n".join(b"1,w%d" % i for i in range(60)), "60 different words"),
    ],
)
def test_a_file_that_is_no_table_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert expected in refusal(lambda: CsvTable.at(path))


def test_model_files_are_refused_in_one_sentence(
    heloc_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(heloc_files)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    net = Path("net.safetensors")

    def said(spec: str, weights: Path | None = None) -> str:
        return refusal(lambda: load_model(spec, weights))

    assert "there is no model file nowhere.pt2" in said("nowhere.pt2")
    assert "ModuleNotFoundError" in said("no_such:build")
    assert "AttributeError" in said("heloc_models:biuld")
    assert "returned str" in said("heloc_models:text")
    assert "0.bias is (8,) in the file, but the network has (4,)" in said("heloc_models:other", net)
    assert "0.bias is (8,)" in said(f"heloc_models:other@{net}")
    assert "given twice" in said(f"heloc_models:other@{net}", net)
    assert "there is no checkpoint" in said("heloc_models:build", Path("gone.safetensors"))
    assert "without the network they belong to" in said(str(net))
    assert "need the network" in said(str(net), net)
    for name in ("a.pt", "a.pkl", "a.joblib"):
        (tmp_path / name).write_bytes(b"x")
        assert "can run code when it is opened" in said(str(tmp_path / name))
        assert "can run code" in said("heloc_models:build", tmp_path / name)
    (tmp_path / "a.safetensors").write_bytes(b"x" * 20)
    assert "no model that can be read" in said(str(tmp_path / "a.safetensors"))
    assert "not a whole checkpoint" in said("heloc_models:build", tmp_path / "a.safetensors")
    (tmp_path / "a.pt2").write_bytes(b"x")
    assert "not a whole exported program" in said(str(tmp_path / "a.pt2"))


# --- the command line ---------------------------------------------------------------------------


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str | Path
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    monkeypatch.setattr(sys, "argv", ["r2et", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return (ended.value.code if isinstance(ended.value.code, int) else 0), out, err


def test_the_command_writes_a_report(
    heloc_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(heloc_files)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    words = (
        *("audit", "heloc.csv", "--model", "heloc_models:build", "--weights", "net.safetensors"),
        *("--explain", "slopes"),
        *("--config", "audit.toml", "--k", "4", "--tolerance", "0.05", "--epsilons", "0.1,0.3"),
        *("--rows", "20", "--rounds", "1", "--compare", "heloc_models:build@net.safetensors"),
    )
    code, out, err = call(monkeypatch, capsys, *words, "--out", tmp_path / "out")
    assert code == 0, err
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert record["settings"]["epsilons"] == [0.05, 0.1, 0.3]
    assert [each["name"] for each in record["models"]] == ["net", "net (2)"]
    counts = record["models"][0]["counts"]
    assert record["models"][1]["counts"] == counts
    assert sum(counts.values()) == record["data"]["rows"] == 20
    line = next(line for line in out.splitlines() if line.split()[:1] == ["net"])
    agreement = record["models"][0]["exchange_agreement"]
    assert line.split()[1:] == [*(str(counts[name]) for name in VERDICTS), f"{agreement:.2f}"]
    assert 0.5 < agreement <= 1
    assert "Exchanges agree: how far the gradients order" in out
    assert str(tmp_path / "out" / "audit.html") in out
    page = (tmp_path / "out" / "audit.html").read_text(encoding="utf-8")
    assert Outline(page).tags.count("script") == 2
    assert len((tmp_path / "out" / "decisions.csv").read_text().splitlines()) == 41
    code, out, _ = call(monkeypatch, capsys, *words, "--out", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out) == record["models"]
    for wrong, said in (
        (("--attack", "storng"), "did you mean 'strong'"),
        (("--epsilons", "a,b"), "takes numbers"),
        (("--config", "nowhere.toml"), "there is no file of settings nowhere.toml"),
        (("--target", "nothing"), "names a column 'nothing'"),
        (("--model", "gone.pt2"), "need the network"),
    ):
        code, _, err = call(monkeypatch, capsys, *words, *wrong, "--out", tmp_path / "other")
        assert code == 2
        assert said in " ".join(err.split())
        assert not (tmp_path / "other" / "audit.html").exists()


def test_settings_look_at_the_tolerance_too() -> None:
    assert AuditSettings(tolerance=0.2, epsilons=(0.5, 0.1)).epsilons == (0.1, 0.2, 0.5)
    assert AuditSettings().chunk == 256
    assert AuditSettings(attack="none").chunk == 2048


def test_a_pandas_table_is_audited_as_its_file_would_be(heloc_files: Path) -> None:
    frame = pd.read_csv(heloc_files / "heloc.csv", keep_default_na=False, na_values=[""])
    settings = settings_of({"target": "decision", "id": "applicant"}, "here")
    dataset = from_frame(frame, target="decision", drop=["applicant"])
    net = tiny_mlp(d=dataset.n)
    found = audit(net, frame, k=3, rows=8, config=settings, **QUICK)
    check_decisions(found)
    assert [each.id for each in found.decisions] == list(frame["applicant"][:8])


GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def blocks_of(language: str, page: str = "audit.md") -> list[str]:
    text = (GUIDES / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")
def test_everything_on_the_pages_works(
    heloc_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    models, train, in_python = blocks_of("python")
    (of_slopes,) = blocks_of("python", "audit-slopes.md")
    Path("my_models.py").write_text(models)
    Path("train.py").write_text(train)
    for name, content in zip(("audit.toml", "heloc.toml"), blocks_of("toml"), strict=True):
        Path(name).write_text(content, encoding="utf-8")
    runpy.run_path("train.py")
    heloc(Path("train.csv"), seed=1)
    heloc(Path("heloc.csv"))
    shutil.copy(heloc_files / "net.safetensors", "heloc.safetensors")
    shutil.copy(heloc_files / "heloc_models.py", ".")
    commands = [
        shlex.split(line)
        for page in ("audit.md", "audit-slopes.md")
        for block in blocks_of("sh", page)
        for line in block.splitlines()
        if line.startswith("r2et ")
    ]
    assert len(commands) == 4
    for number, words in enumerate(commands):
        quick = ["--rows", "12" if "slopes" in words else "3", "--out", f"out {number}"]
        quick += ["--rounds", "1"] if "slopes" in words else []
        code, out, err = call(monkeypatch, capsys, *words[1:], *quick)
        assert code == 0, err
        assert "audit.html" in out
    exec(compile(in_python, "audit.md", "exec"), {})
    exec(compile(of_slopes, "audit-slopes.md", "exec"), {})
    assert "certified" in capsys.readouterr().out
    assert Path("side-by-side/audit.html").exists()
