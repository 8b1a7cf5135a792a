import csv
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r2et.data import Dataset, Feature, TableStructure, from_frame, load, read_csv
from r2et.data.builtin import DATASETS
from r2et.data.features import fit_scale, plain, sum_of_parts, with_unit

ROOT = Path(__file__).parents[2]
RAW = Path(os.environ.get("R2ET_RAW_DATA", ROOT.parent / "shared" / "data"))
TABLES = [name for name, entry in DATASETS.items() if entry.kind == "table"]


def refusal(call: Callable[[], object]) -> str:
    """The one sentence with which a call refuses its input."""
    with pytest.raises(ValueError, match=r"\S") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__cause__ is None
    return message


@cache
def loaded(name: str) -> Dataset:
    return load(name)


def embedding_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed_data", ROOT / "tools" / "embed_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tiny(rows: int = 40, name: str = "tiny") -> Dataset:
    """Two numeric columns (the second with a gap), one binary, one of two categories."""
    number = torch.arange(rows, dtype=torch.float64)
    gappy = (number * 7) % 11
    gappy[3] = torch.nan
    binary, category = number % 2, (number // 2) % 2
    return Dataset(
        name=name,
        x=torch.stack([number, gappy, binary, category, 1 - category], dim=1),
        y=(number.long() // 3) % 2,
        structure=TableStructure(
            features=(
                Feature(name="number", group="number", kind="numeric", low=0, high=rows - 1),
                Feature(name="gappy", group="gappy", kind="numeric", low=0, high=10),
                Feature(name="b", group="b", kind="binary", low=0, high=1, words=("off", "on")),
                Feature(name="c: u", group="c", kind="category", low=0, high=1),
                Feature(name="c: v", group="c", kind="category", low=0, high=1),
            )
        ),
        classes=("no", "yes"),
        target="outcome",
        source="made up",
    )


@pytest.fixture(scope="module", params=TABLES)
def embedded(request: pytest.FixtureRequest) -> Dataset:
    return loaded(request.param)


# --- the embedded sets ---------------------------------------------------------------------------

SHAPES = {"adult": (48842, 28), "bank": (45211, 18), "compas": (6172, 16)}
CLASS_COUNTS = {"adult": [37155, 11687], "bank": [39922, 5289], "compas": [3421, 2751]}
GROUPS = {"adult": 8, "bank": 8, "compas": 11}


def test_shapes_and_classes(embedded: Dataset) -> None:
    assert embedded.x.shape == SHAPES[embedded.name]
    assert embedded.structure.kind == "table"
    assert embedded.n == SHAPES[embedded.name][1]
    assert embedded.x.dtype == torch.float64
    assert embedded.y.dtype == torch.int64
    assert embedded.y.bincount().tolist() == CLASS_COUNTS[embedded.name]
    assert len(embedded.group_names) == GROUPS[embedded.name]
    assert not embedded.x.isnan().any()
    assert "(19" in embedded.source or "(20" in embedded.source


def test_categories_are_one_hot_and_ranges_are_true(embedded: Dataset) -> None:
    torch.testing.assert_close(
        torch.tensor([f.low for f in embedded.features], dtype=torch.float64), embedded.x.amin(0)
    )
    torch.testing.assert_close(
        torch.tensor([f.high for f in embedded.features], dtype=torch.float64), embedded.x.amax(0)
    )
    assert isinstance(embedded.structure, TableStructure)
    numbers = embedded.structure.groups
    for place, group in enumerate(embedded.group_names):
        members = [i for i, f in enumerate(embedded.features) if f.group == group]
        assert members == [i for i, number in enumerate(numbers) if number == place]
        kinds = {embedded.features[i].kind for i in members}
        assert len(kinds) == 1
        if kinds == {"category"}:
            assert (embedded.x[:, members].sum(1) == 1).all()
            assert len(members) > 1
        else:
            assert embedded.features[members[0]].name == group
        if kinds != {"numeric"}:
            assert set(embedded.x[:, members].unique().tolist()) == {0.0, 1.0}


def counts(dataset: Dataset, group: str) -> dict[str, int]:
    return {
        feature.name.removeprefix(f"{group}: "): int(dataset.x[:, column].sum())
        for column, feature in enumerate(dataset.features)
        if feature.group == group
    }


def test_adult_counts_add_up_from_the_raw_categories() -> None:
    adult = loaded("adult")
    assert counts(adult, "work class") == {
        "Government": 1432 + 3136 + 1981,
        "Other/Unknown": 2799 + 10 + 21,
        "Private": 33906,
        "Self-Employed": 1695 + 3862,
    }
    assert counts(adult, "education") == {
        "Assoc": 1601 + 2061,
        "Bachelors": 8025,
        "Doctorate": 594,
        "HS-grad": 15784,
        "Masters": 2657,
        "Prof-school": 834,
        "School": 1389 + 1812 + 657 + 247 + 509 + 955 + 756 + 83,
        "Some-college": 10878,
    }
    assert counts(adult, "marital status") == {
        "Divorced": 6633,
        "Married": 37 + 22379 + 628,
        "Separated": 1530,
        "Single": 16117,
        "Widowed": 1518,
    }
    assert counts(adult, "occupation") == {
        "Blue-Collar": 6112 + 1490 + 2072 + 3022 + 2355,
        "Other/Unknown": 2809 + 15,
        "Professional": 6172,
        "Sales": 5504,
        "Service": 4923 + 242 + 983 + 1446,
        "White-Collar": 5611 + 6086,
    }
    assert counts(adult, "race") == {"White": 41762, "Other": 470 + 1519 + 4685 + 406}
    assert counts(adult, "gender") == {"gender": 32650}


def test_bank_counts_add_up_from_the_raw_categories() -> None:
    bank = loaded("bank")
    assert counts(bank, "job") == {
        "White-collar": 5171 + 9458,
        "Technician": 7597,
        "Blue-collar/service": 9732 + 4154 + 1240,
        "Self-employed": 1579 + 1487,
        "Retired/student": 2264 + 938,
        "Not working/unknown": 1303 + 288,
    }
    assert counts(bank, "marital status") == {"divorced": 5207, "married": 27214, "single": 12790}
    assert counts(bank, "education") == {
        "primary": 6851,
        "secondary": 23202,
        "tertiary": 13301,
        "unknown": 1857,
    }
    assert [counts(bank, g)[g] for g in ("default", "housing loan", "personal loan")] == [
        815,
        25130,
        7244,
    ]
    assert (bank.features[1].low, bank.features[1].high) == (-8019, 102127)


def test_compas_counts_add_up_from_the_raw_categories() -> None:
    compas = loaded("compas")
    assert counts(compas, "age group") == {"under 25": 1347, "25 to 45": 3532, "over 45": 1293}
    assert counts(compas, "race") == {
        "African-American": 3175,
        "Caucasian": 2103,
        "Hispanic": 509,
        "Other": 343 + 31 + 11,
    }
    singles = ("sex", "charge degree", "reoffended within two years", "violent reoffence")
    assert [counts(compas, g)[g] for g in singles] == [4997, 3970, 2809, 692]
    stay = compas.features[13]
    assert (stay.name, stay.low, stay.high) == ("length of stay", 0, 799)


FIRST_ROWS = {
    "adult": (
        {
            "age": "39 years",
            "hours per week": "40 hours",
            "work class": "Government",
            "education": "Bachelors",
            "marital status": "Single",
            "occupation": "White-Collar",
            "race": "White",
            "gender": "Male",
        },
        "<=50K",
    ),
    "bank": (
        {
            "age": "58 years",
            "balance": "2,143 euros",
            "job": "White-collar",
            "marital status": "married",
            "education": "tertiary",
            "default": "no",
            "housing loan": "yes",
            "personal loan": "no",
        },
        "no",
    ),
    "compas": (
        {
            "age group": "over 45",
            "race": "Other",
            "sex": "Male",
            "charge degree": "felony",
            "priors": "0",
            "juvenile felonies": "0",
            "juvenile misdemeanours": "0",
            "juvenile other offences": "0",
            "length of stay": "0 days",
            "reoffended within two years": "no",
            "violent reoffence": "no",
        },
        "low",
    ),
}


def test_first_row_in_words(embedded: Dataset) -> None:
    words, label = FIRST_ROWS[embedded.name]
    assert embedded.describe(embedded.x[0]) == words
    assert embedded.classes[embedded.y[0]] == label


def test_later_rows_in_words() -> None:
    # 52, Self-emp-not-inc, HS-grad, Married-civ-spouse, Exec-managerial, White, Male, 45, >50K
    adult = loaded("adult")
    assert list(adult.describe(adult.x[7]).values()) == [
        "52 years",
        "45 hours",
        "Self-Employed",
        "HS-grad",
        "Married",
        "White-Collar",
        "White",
        "Male",
    ]
    assert adult.y[7] == 1
    # The last line of the test file: 35, Self-emp-inc, Bachelors, Married-civ-spouse, ..., 60, >50K
    assert list(adult.describe(adult.x[-1]).values())[:4] == [
        "35 years",
        "60 hours",
        "Self-Employed",
        "Bachelors",
    ]
    assert adult.y[-1] == 1
    # Male,24,Less than 25,African-American, one other juvenile offence, 4 priors, 1 day, reoffended
    compas = loaded("compas")
    assert list(compas.describe(compas.x[2]).values()) == [
        "under 25",
        "African-American",
        "Male",
        "felony",
        "4",
        "0",
        "0",
        "1",
        "1 day",
        "yes",
        "no",
    ]


def test_embedded_files_are_small_and_licensed() -> None:
    files = resources.files("r2et.data") / "files"
    sizes = {name: len((files / f"{name}.npz").read_bytes()) for name in TABLES}
    assert sum(sizes.values()) < 600_000
    licences = (files / "LICENSES.md").read_text("utf-8")
    for name in TABLES:
        assert f"## {name}.npz" in licences
    assert "10.24432/C5XW20" in licences
    assert "10.24432/C5K306" in licences


@pytest.mark.skipif(
    not (RAW / "adult").is_dir(), reason="the raw files are not here: set R2ET_RAW_DATA"
)
def test_embedding_the_raw_files_gives_the_embedded_bytes(tmp_path: Path) -> None:
    embedding_script().embed(RAW, tmp_path)
    files = resources.files("r2et.data") / "files"
    for name in TABLES:
        assert (tmp_path / f"{name}.npz").read_bytes() == (files / f"{name}.npz").read_bytes()


def test_packing_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    script = embedding_script()
    arrays = {"a b": script.smallest([0, 255]), "c": script.smallest([-1, 70000])}
    assert [a.dtype for a in arrays.values()] == [np.uint8, np.int32]
    before = script.npz_bytes(arrays)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert script.npz_bytes(arrays) == before


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    message = refusal(lambda: load("Adutl"))
    assert "'Adutl'" in message
    assert "did you mean 'adult'" in message
    assert "adult, bank, compas" in message
    assert "Known: adult, bank, compas" in refusal(lambda: load("zzz"))


# --- splitting and scaling -----------------------------------------------------------------------


def test_parts_share_no_row_and_leave_none_out(embedded: Dataset) -> None:
    split = embedded.split(0)
    rows = torch.cat([split.train.rows, split.valid.rows, split.test.rows])
    assert rows.sort().values.tolist() == list(range(len(embedded.x)))
    total = len(embedded.x)
    assert len(split.train) == round(0.7 * total)
    assert len(split.valid) == round(0.15 * total)
    assert len(split.test) == total - len(split.train) - len(split.valid)
    for part in (split.train, split.valid, split.test):
        assert part.x.dtype == torch.float32
        assert torch.equal(part.y, embedded.y[part.rows])
        raw = split.scale.undo(part.x.double())
        torch.testing.assert_close(raw, embedded.x[part.rows], rtol=1e-6, atol=0.02)
    assert split.train.x.min() == 0
    assert split.train.x.max() == 1


def test_a_split_depends_on_seed_and_name_only() -> None:
    data = tiny()
    again = data.split(1)
    assert torch.equal(data.split(1).train.rows, again.train.rows)
    torch.manual_seed(5)
    assert torch.equal(data.split(1).train.rows, again.train.rows)
    assert torch.equal(data.split(1, scaling="standard").train.rows, again.train.rows)
    assert not torch.equal(data.split(2).train.rows, again.train.rows)
    assert not torch.equal(tiny(name="other").split(1).train.rows, again.train.rows)


@pytest.mark.parametrize("scaling", ["minmax", "standard"])
def test_the_scale_sees_the_training_part_only(scaling: Any) -> None:
    data = tiny()
    split = data.split(1, scaling=scaling)
    changed = data.x.clone()
    for part in (split.valid, split.test):
        changed[part.rows, 0] = 1e6
        changed[part.rows, 1] = torch.nan
    other = replace(data, x=changed).split(1, scaling=scaling)
    for name in ("fill", "shift", "width"):
        assert torch.equal(getattr(split.scale, name), getattr(other.scale, name))
    assert torch.equal(split.train.x, other.train.x)
    assert (other.test.x[:, 0] > 1).all()


def test_scales_by_hand() -> None:
    # Column 0: 0, 2, 4; column 1: 1, missing, 3, of which 1 is the lower median.
    raw = torch.tensor([[0.0, 1.0, 0.0], [2.0, torch.nan, 1.0], [4.0, 3.0, 1.0]]).double()
    features = [
        Feature(name="a", group="a", kind="numeric", low=0, high=4),
        Feature(name="b", group="b", kind="numeric", low=1, high=3),
        Feature(name="c", group="c", kind="binary", low=0, high=1),
    ]
    minmax = fit_scale(raw, features)
    assert minmax.apply(raw).tolist() == [[0, 0, 0], [0.5, 0, 1], [1, 1, 1]]
    assert minmax.fill.tolist() == [2, 1, 1]
    standard = fit_scale(raw, features, "standard")
    assert standard.shift.tolist() == pytest.approx([2, 5 / 3, 0])
    assert standard.width.tolist() == pytest.approx([(8 / 3) ** 0.5, (8 / 9) ** 0.5, 1])


@pytest.mark.parametrize("scaling", ["minmax", "standard"])
def test_undo_reverses_apply(embedded: Dataset, scaling: Any) -> None:
    scale = embedded.split(3, scaling=scaling).scale
    torch.testing.assert_close(scale.undo(scale.apply(embedded.x)), embedded.x)
    assert scale.apply(embedded.x[:2].float()).dtype == torch.float32


def test_missing_values_are_filled() -> None:
    split = tiny().split(0)
    for part in (split.train, split.valid, split.test):
        assert part.x.isfinite().all()


def test_the_digest_follows_values_and_names() -> None:
    data = tiny()
    assert re.fullmatch("[0-9a-f]{12}", data.digest)
    assert data.digest == tiny().digest
    other = data.x.clone()
    other[0, 0] += 1
    assert replace(data, x=other).digest != data.digest
    assert replace(data, y=1 - data.y).digest != data.digest
    assert replace(data, classes=("no", "oui")).digest != data.digest
    renamed = (replace(data.features[0], name="z"), *data.features[1:])
    assert replace(data, structure=TableStructure(features=renamed)).digest != data.digest


def test_groups() -> None:
    assert tiny().group_names == ("number", "gappy", "b", "c")


def test_describing_mixtures() -> None:
    adult = loaded("adult")
    row = adult.x[0].clone()
    row[0], row[-1] = 39.456, 0.25
    row[6 + 1], row[6 + 4] = 0.7, 0.3
    words = adult.describe(row)
    assert words["age"] == "39.46 years"
    assert words["education"] == "0.7 Bachelors + 0.3 Masters"
    assert words["gender"] == "0.75 Female + 0.25 Male"
    row[6 + 1], row[6 + 4] = 1.2, -0.2
    assert adult.describe(row)["education"] == "1.2 Bachelors - 0.2 Masters"
    assert adult.describe(adult.x[0] * 0)["race"] == "none"
    assert tiny().describe(tiny().x[3])["gappy"] == "missing"
    message = refusal(lambda: adult.describe(adult.x[:2]))
    assert "28 values" in message


def test_numbers_for_readers() -> None:
    assert [plain(v) for v in (-0.0, -3.0, 1234567.0, 1234.56, 0.00001, 1e20)] == [
        "0",
        "-3",
        "1,234,567",
        "1,235",
        "1e-05",
        "1e+20",
    ]
    assert with_unit(1.0, "days") == "1 day"
    assert with_unit(1.0, "celsius") == "1 celsius"
    assert with_unit(2.0, "") == "2"
    assert sum_of_parts([(-0.2, "a")]) == "- 0.2 a"


def test_refused_splits() -> None:
    data = tiny()
    constant = data.x.clone()
    constant[:, 3] = 1.0
    message = refusal(lambda: replace(data, x=constant).split(0))
    assert "'c: u' has only 1 in its 28 rows: drop it" in message
    test_only = data.x.clone()
    test_only[:, 2] = 0.0
    test_only[data.split(0).test.rows, 2] = 1.0
    assert "'b' has only 0" in refusal(lambda: replace(data, x=test_only).split(0))
    empty = data.x.clone()
    empty[:, 1] = torch.nan
    assert "'gappy' has no value" in refusal(lambda: replace(data, x=empty).split(0))
    assert "the valid part of tiny is empty" in refusal(lambda: data.split(0, (0.98, 0.01, 0.01)))
    few = torch.zeros(40, dtype=torch.int64)
    few[data.split(0).train.rows[:5]] = 1
    message = refusal(lambda: replace(data, y=few).split(0))
    assert "the 6 rows of the valid part are all 'no'" in message
    assert "add up to 1" in refusal(lambda: data.split(0, (0.5, 0.2, 0.2)))
    wrong: Any = "max"
    assert "'minmax' or 'standard'" in refusal(lambda: data.split(0, scaling=wrong))


def test_refused_datasets() -> None:
    data = tiny()
    infinite = data.x.clone()
    infinite[7, 1] = -torch.inf
    message = refusal(lambda: replace(data, x=infinite))
    assert "-inf in row 7, column 'gappy'" in message
    missing = data.y.double()
    missing[4] = torch.nan
    assert "'outcome' is missing (NaN) in row 4" in refusal(lambda: replace(data, y=missing))
    message = refusal(lambda: replace(data, y=data.y * 0))
    assert "at least two classes, got only 'no'" in message
    assert "int64" in refusal(lambda: replace(data, y=data.y.double()))
    assert "0..1, got 0..2" in refusal(lambda: replace(data, y=data.y * 2))
    assert "one class for each" in refusal(lambda: replace(data, y=data.y[1:]))
    assert "float64" in refusal(lambda: replace(data, x=data.x.float()))
    twice = (*data.features[:4], data.features[0])
    assert "called 'number'" in refusal(
        lambda: replace(data, structure=TableStructure(features=twice))
    )


# --- the user's own table ------------------------------------------------------------------------


def people(rows: int = 40) -> pd.DataFrame:
    place = np.arange(rows)
    return pd.DataFrame(
        {
            "age": 20 + place,
            "income": np.where(place == 5, np.nan, 1000.5 + 3 * place),
            "member": place % 2 == 0,
            "flag": place % 3 == 1,
            "colour": np.array(["red", "green", "blue"])[place % 3],
            "rank": np.where(place % 7 == 0, np.nan, place % 2 + 1.0),
            "bought": np.array(["yes", "no"])[place // 2 % 2],
        }
    ).astype({"flag": int})


def test_a_frame_by_the_rules() -> None:
    data = from_frame(people(), target="bought", units={"age": "years"}, name="people")
    assert [(f.name, f.group, f.kind, f.words) for f in data.features] == [
        ("age", "age", "numeric", None),
        ("income", "income", "numeric", None),
        ("income: missing", "income", "binary", ("given", "missing")),
        ("member", "member", "binary", ("False", "True")),
        ("flag", "flag", "binary", ("0", "1")),
        ("colour: blue", "colour", "category", None),
        ("colour: green", "colour", "category", None),
        ("colour: red", "colour", "category", None),
        ("rank: 1", "rank", "category", None),
        ("rank: 2", "rank", "category", None),
        ("rank: missing", "rank", "category", None),
    ]
    assert data.classes == ("no", "yes")
    assert data.y[:4].tolist() == [1, 1, 0, 0]
    assert data.x[5, 1].isnan()
    assert data.x[:, 2].nonzero().flatten().tolist() == [5]
    assert (data.features[0].low, data.features[0].high) == (20, 59)
    assert data.describe(data.x[5]) == {
        "age": "25 years",
        "income": "missing",
        "member": "False",
        "flag": "0",
        "colour": "blue",
        "rank": "2",
    }
    # Filled by the training median the row is still known to lack the value.
    scale = fit_scale(data.x, data.features)
    x = scale.apply(data.x[5])
    assert data.describe(scale.undo(x))["income"] == "missing"
    x[2] = 0.5
    assert data.describe(scale.undo(x))["income"] == "1,060, 0.5 missing"


def test_wishes_about_columns() -> None:
    frame = people()
    data = from_frame(
        frame,
        target="bought",
        categories=["member", "age"],
        numeric=["flag", "rank"],
        drop=["colour", "income"],
    )
    kinds = {f.group: f.kind for f in reversed(data.features)}
    assert kinds == {"age": "category", "member": "category", "flag": "numeric", "rank": "numeric"}
    assert len([f for f in data.features if f.group == "age"]) == 40
    with_zeros = frame.assign(zip=["01234", "1234"] * 20)
    names = [f.name for f in from_frame(with_zeros, target="bought", categories=["zip"]).features]
    assert names[-2:] == ["zip: 01234", "zip: 1234"]


def test_every_spelling_of_missing() -> None:
    cells = ["", "NA", "NaN", "?", "null", None, " na ", "1", "2", "3"]
    data = from_frame(pd.DataFrame({"v": cells, "y": [0, 1] * 5}), target="y")
    assert data.x[:, 0].isnan().tolist() == [True] * 7 + [False] * 3
    assert data.x[:, 1].tolist() == [1.0] * 7 + [0.0] * 3
    words = ["missing", None, "a", "a", "a", "b", "b", "b", "a", "missing"]
    data = from_frame(pd.DataFrame({"v": words, "y": [0, 1] * 5}), target="y")
    assert [f.name for f in data.features] == ["v: a", "v: b", "v: missing"]
    assert data.x[:, 2].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([10, 9, 2, 9], ("2", "9", "10")),
        ([0.0, 1.0, 1.0, 0.0], ("0", "1")),
        ([True, False, True, True], ("False", "True")),
        (["b", "a", "10", "9"], ("10", "9", "a", "b")),
        (pd.Categorical(["x", "y", "x", "y"]), ("x", "y")),
    ],
)
def test_classes_are_sorted(values: Any, classes: tuple[str, ...]) -> None:
    data = from_frame(pd.DataFrame({"v": [1, 2, 3, 4], "y": values}), target="y")
    assert data.classes == classes
    assert [classes[i] for i in data.y] == [str(v).removesuffix(".0") for v in values]


def test_refused_frames() -> None:
    frame = people()

    def said(table: pd.DataFrame, **wishes: Any) -> str:
        return refusal(lambda: from_frame(table, **{"target": "bought", **wishes}))

    assert "no 'bougth': did you mean 'bought'?" in said(frame, target="bougth")
    assert "no 'aeg': did you mean 'age'?" in said(frame, drop=["aeg"])
    assert "units must name a column" in said(frame, units={"agee": "years"})
    assert "list of names, got 'age'" in said(frame, drop="age")
    assert "in categories and in numeric" in said(frame, categories=["age"], numeric=["age"])
    assert "named in drop" in said(frame, drop=["bought"])
    assert "row 3, column 'bought': every row needs" in said(
        frame.assign(bought=["" if i == 3 else str(i % 2) for i in range(40)])
    )
    assert "got only 'yes'" in said(frame.assign(bought="yes"))
    assert "40 different numbers" in said(frame, target="age")
    assert "row 4, column 'age': expected a finite number, got '-inf'" in said(
        frame.assign(age=[-np.inf if i == 4 else i for i in range(40)])
    )
    odd = frame.assign(age=["old" if i == 6 else str(i) for i in range(40)])
    assert "row 6, column 'age': expected a number" in said(odd)
    assert "row 0, column 'colour': expected a number" in said(frame, numeric=["colour"])
    from_frame(odd, target="bought", categories=["age"])
    ids = frame.assign(id=[f"p{i}" for i in range(40)])
    assert "'id' has 40 different words in 40 rows" in said(ids)
    from_frame(ids, target="bought", categories=["id"])
    many = pd.concat([ids] * 3)
    assert len(from_frame(many, target="bought").features) == 11 + 40
    many = pd.concat([frame.assign(id=[f"p{i}" for i in range(k, k + 40)]) for k in (0, 20, 0)])
    assert "'id' has 60 different words" in said(many)
    assert "'age' appears twice" in said(frame.rename(columns={"income": "age"}))
    assert "column number 1 has an empty name" in said(frame.rename(columns={"age": " "}))
    assert "add rows" in said(frame.iloc[:0])
    assert "besides the target" in said(frame[["bought"]])


def test_few_numbers_do_not_make_a_word_a_misprint() -> None:
    # 19 numbers among 20 values tell too little; 9 of 10 would be enough from 20 numbers on.
    for count, refused in ((19, False), (20, True)):
        values = [*(str(i % 3) for i in range(count)), "x"]
        frame = pd.DataFrame({"v": values, "y": [i % 2 for i in range(len(values))]})
        if refused:
            assert "got 'x'" in refusal(partial(from_frame, frame, target="y"))
        else:
            assert len(from_frame(frame, target="y").features) == 4
    mixed = [*(str(i % 3) for i in range(80)), *("xyz"[i % 3] for i in range(20))]
    frame = pd.DataFrame({"v": mixed, "y": [i % 2 for i in range(100)]})
    assert len(from_frame(frame, target="y").features) == 6


# --- CSV files -----------------------------------------------------------------------------------


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*head: str) -> str:
    """A table of a number, a word and a class with `head` as its first lines below the header."""
    return "\n".join(["num,word,y", *head, *(f"{i},w{i % 3},{i % 2}" for i in range(30))]) + "\n"


REFUSED_FILES: dict[str, tuple[str | bytes, str]] = {
    "too few": (lines("1,a,0", "", "2,b"), "line 4: expected 3 cells as in the header, got 2, "),
    "names the lack": (lines("2,b"), "nothing for column 'y'"),
    "too many": (lines("1,a,0,7"), "line 2: expected 3 cells as in the header, got 4"),
    "word": (lines("1,a,0", "1o,a,0"), "line 3, column 'num': expected a number"),
    "word after a multi-line cell": (
        lines('1,"a\nb",0', "1o,w1,0"),
        "line 4, column 'num': expected a number as in the rest of the column, got '1o'",
    ),
    "infinite": (lines("inf,w1,0"), "line 2, column 'num': expected a finite number, got 'inf'"),
    "overflow": (lines("1e999,w1,0"), "column 'num': expected a finite number, got '1e999'"),
    "missing target": (lines("1,w1,0", "1,w1,?"), "line 3, column 'y': every row needs a value"),
    "bytes": (lines("1,caf\u00e9,0").encode("latin-1"), "line 2, column 'word': byte 0xe9"),
    "bytes in a multi-line cell": (
        lines('1,"a\n\u00e9",0').encode("latin-1"),
        "line 3, column 'word': byte 0xe9 is not UTF-8",
    ),
    "bytes in the header": (b"a,\xff\n1,2\n", "line 1, column number 2: byte 0xff is not UTF-8"),
    "utf-16": (lines().encode("utf-16"), "line 1, column number 1: byte 0xff is not UTF-8"),
    "open quote": (lines("1,w1,0", '2,"w1,0'), "line 3, column 'word': a quote opens this cell"),
    "open quote after a space": (lines('2, "w1,0'), "line 2, column 'word': a quote opens"),
    "open quote closed later": (
        lines("1,w1,0", '2,"w1,0', '3,"w2",0'),
        "line 3, column 'word': a quote opens this cell and is not closed",
    ),
    "open quote in a multi-line record": (
        lines('1,"a\r\nb","0'),
        "line 3, column 'y': a quote opens this cell",
    ),
    "open quote in the header": ('a,"b\n1,2\n', "line 1, column number 2: a quote opens"),
    "long cell": (lines(f"1,{'w' * 140_000},0"), "line 2: field larger than field limit"),
    "empty": ("", "is empty: expected a header line"),
    "blank": ("\n \n", "is empty"),
    "header only": ("num,y\n", "has a header but no rows"),
    "same names": ("num,num,y\n1,2,0\n", "line 1: column names must differ, but 'num' appears"),
    "no name": ("\nnum,,y\n1,2,0\n", "line 2: column number 2 has an empty name"),
    "no target": ("num,Y\n1,0\n2,1\n", "there is no 'y': did you mean"),
    "one class": ("num,y\n1,0\n2,0\n3,0\n", "the target 'y' must show at least two classes"),
    "regression": (
        "num,y\n" + "".join(f"{i},{i}.5\n" for i in range(21)),
        "the target 'y' has 21 different numbers",
    ),
    "identifier": (
        "id,y\n" + "".join(f"p{i},{i % 2}\n" for i in range(9)),
        "column 'id' has 9 different words in 9 rows",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED_FILES.values(), ids=REFUSED_FILES)
def test_refused_files(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    said = refusal(lambda: read_csv(path, target="y", delimiter=","))
    assert message in said
    if ", line " in said:
        assert said.startswith(f"{path}, ")


def test_unreadable_paths(tmp_path: Path) -> None:
    message = refusal(lambda: read_csv(tmp_path / "none.csv", target="y"))
    assert message.startswith(f"cannot read {tmp_path / 'none.csv'}: No such file")
    assert "cannot read" in refusal(lambda: read_csv(tmp_path, target="y"))
    path = write(tmp_path, lines())
    assert "one character" in refusal(lambda: read_csv(path, target="y", delimiter="::"))


@pytest.mark.parametrize("delimiter", list(",;\t|"))
def test_the_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    expected = read_csv(write(tmp_path, lines()), target="y", delimiter=",")
    quoted = lines('"1","w1","0"').replace(",", delimiter)
    path = write(tmp_path, b"\xef\xbb\xbf" + quoted.replace("\n", "\r\n").encode())
    data = read_csv(path, target="y")
    assert data.features == expected.features
    assert len(data.x) == 31


def test_a_header_that_contains_another_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path, '"size, in cm";"weight, in kg";y\n1,5;2;0\n2,5;3;1\n1,5;2;0\n2,5;4;1\n')
    data = read_csv(path, target="y")
    assert data.group_names == ("size, in cm", "weight, in kg")


def test_quoted_cells(tmp_path: Path) -> None:
    body = '"a ""b"", c\nd",0\n"a ""b"", c\nd",1\n x ,0\nx,1\nz,0\nz,1\n'
    data = read_csv(write(tmp_path, 'word, "y"\n' + body), target="y")
    assert [f.name for f in data.features] == ['word: a "b", c\nd', "word: x", "word: z"]
    assert data.x[:, 0].tolist() == [1, 1, 0, 0, 0, 0]


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
FLOATS = st.floats(allow_infinity=False)
POOLS = st.one_of(
    st.lists(WORDS, min_size=1, max_size=4),
    st.lists(FLOATS, min_size=1, max_size=8),
    st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=8),
    st.just([True, False]),
    st.just([0, 1]),
)


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    rows = draw(st.integers(8, 24))
    names = draw(st.lists(WORDS.map(str.strip).filter(bool), min_size=2, max_size=4, unique=True))
    table = {}
    for name in names[1:]:
        pool = draw(POOLS)
        table[name] = [draw(st.sampled_from(pool)) for _ in range(rows)]
    table[names[0]] = [f"class {i % 2}" for i in range(rows)]
    return pd.DataFrame(table)


@given(frame=frames())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_frame_survives_the_way_through_a_file(
    frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "frame.csv"
    frame.to_csv(path, index=False, quoting=csv.QUOTE_ALL)
    wishes: dict[str, Any] = {"target": frame.columns[-1]}
    try:
        data = from_frame(frame, **wishes)
    except ValueError:
        refusal(lambda: read_csv(path, delimiter=",", **wishes))
        wishes["categories"] = list(frame.columns[:-1])
        data = from_frame(frame, **wishes)
    again = read_csv(path, delimiter=",", **wishes)
    assert again.features == data.features
    assert again.classes == data.classes
    assert again.digest == data.digest
