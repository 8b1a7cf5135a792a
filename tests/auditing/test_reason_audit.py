"""Audits of reasons as a user meets them: verdicts, words, changes to type, files, refusals."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_people import people
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn
from typer.testing import CliRunner

import r2et
from r2et import NetworkClassifier, StableBinner, StableClassifier, from_frame
from r2et.actionable.tables import TableMoves
from r2et.auditing.config import DataSettings, FeatureSettings, settings_of
from r2et.auditing.csvs import CsvTable
from r2et.auditing.reason_models import NetworkTable, TableCode
from r2et.auditing.reason_records import ReasonAudit, ReasonedDecision
from r2et.auditing.reason_summary import ReasonTally
from r2et.auditing.tables import Table
from r2et.cli import app
from r2et.core.reasons import Question, Reason
from r2et.evaluation.reasons import reason_verdicts
from r2et.explainers import Shapley, predicted
from r2et.metrics.individuality import overlap
from r2et.report.reason_page import reason_html
from refusals import refusal

WIDTH = {"age": 2.0, "hours": 1.0}
pytestmark = pytest.mark.filterwarnings("ignore::r2et.bands.classifier.LostAccuracy")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Made-up people with an outcome in words, a missing number and words of two kinds."""
    table, y = people(400, seed=5)
    table = table.assign(age=table.age.astype(float))
    return table.assign(granted=np.where(y == 1, "yes", "no"))


@pytest.fixture(scope="module")
def split(frame: pd.DataFrame) -> Any:
    return from_frame(frame, target="granted").split(seed=0)


@pytest.fixture(scope="module")
def net(split: Any) -> nn.Module:
    """A network of the encoded rows, trained a little."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = nn.Sequential(nn.Linear(split.train.x.shape[1], 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(found.parameters(), 0.05)
        for _ in range(80):
            optimizer.zero_grad()
            nn.functional.cross_entropy(found(split.train.x), split.train.y).backward()
            optimizer.step()
    return found


def audited(*given: Any, **settings: Any) -> ReasonAudit:
    found = r2et.audit(*given, **{"k": 2, "tolerance": WIDTH, "reference_rows": 10, **settings})
    assert isinstance(found, ReasonAudit)
    return found


def table_of(net: nn.Module, split: Any, **settings: Any) -> NetworkTable:
    """The network and its rows, told against the first of its training rows."""
    code = TableCode(columns=Table.of_split(split).columns)
    exact = net.double()
    reference = split.train.x[:7].double()
    classes = split.dataset.classes
    return NetworkTable(model=exact, code=code, reference=reference, classes=classes, **settings)


# --- a network and its attributes ---------------------------------------------------------------


def test_rows_of_inputs_are_rows_of_attributes_and_back(split: Any, net: nn.Module) -> None:
    code = TableCode(columns=Table.of_split(split).columns)
    x = split.test.x.double()
    rows = code.frame(x)
    assert list(rows) == ["age", "hours", "job", "home", "debts"]
    assert set(rows.job) == {"clerk", "cook", "smith"}
    assert (rows.age == rows.age.round()).all()
    torch.testing.assert_close(code.inputs(rows), x, rtol=0, atol=1e-6)
    assert set(code.words("job")) == {"clerk", "cook", "smith"}
    assert "cannot be 'king'" in refusal(lambda: code.inputs(rows.assign(job="king")))


def test_missing_numbers_stay_missing(frame: pd.DataFrame) -> None:
    gaps = frame.assign(hours=frame.hours.where(frame.index % 4 > 0))
    config = settings_of({"target": "granted", "scale": "standard"}, "here")
    source = CsvTable.at(gaps, config)
    code = TableCode(columns=source.columns)
    x = next(iter(source.chunks(40))).x
    rows = code.frame(x)
    assert rows.hours.isna().tolist() == gaps.hours[:40].isna().tolist()
    torch.testing.assert_close(code.inputs(rows), x, rtol=0, atol=1e-9)
    model = nn.Linear(x.shape[1], 2)
    found = audited(model, gaps, config=config, rows=12)
    for each in found.decisions:
        if pd.isna(gaps.hours[each.row]):
            assert "hours" not in (each.change or {})
            assert each.moves == 5


def test_contributions_are_those_of_the_explainer(split: Any, net: nn.Module) -> None:
    table = table_of(net, split)
    rows = table.code.frame(split.test.x[:6].double())
    x = table.code.inputs(rows)
    for label in (0, 1):
        explain = Shapley(form="signed", reference=table.reference, groups=table.code.groups)
        expected = explain(table.model, x, torch.full((6,), label)).detach().numpy()
        np.testing.assert_allclose(table.contributions(rows)[:, :, label], expected, atol=1e-12)


def test_all_combinations_at_once_are_each_by_itself(split: Any, net: nn.Module) -> None:
    table = table_of(net, split, threshold=0.3)
    row = table.code.frame(split.test.x[:1].double())
    axes = {"hours": [40.0, 41.0, 43.0], "job": ["cook", "smith"]}
    scores, phi = table.product(row, axes)
    rows = pd.concat(
        [row.assign(hours=h, job=j) for h in axes["hours"] for j in axes["job"]], ignore_index=True
    )
    np.testing.assert_allclose(scores, table.scores(rows), atol=1e-12)
    np.testing.assert_allclose(phi, table.contributions(rows), atol=1e-12)
    scores, phi = table.product(row, {})
    np.testing.assert_allclose(phi, table.contributions(row), atol=1e-12)
    assert scores.shape == (1, 2)


def test_slopes_of_contributions_are_differences(split: Any, net: nn.Module) -> None:
    table = table_of(net, split)
    rows = table.code.frame(split.test.x[:2].double())
    weights = np.array([[1.0, -1.0, 0.0, 0.5, 0.0], [0.0, 1.0, -1.0, 0.0, 0.0]])
    slopes = table.slopes(rows, weights, [1, 0])

    def weighed(moved: pd.DataFrame) -> Any:
        phi = table.contributions(moved)
        return (phi[np.arange(2), :, [1, 0]] * weights).sum(1)

    for name in ("age", "hours"):
        up, down = (rows.assign(**{name: rows[name] + by}) for by in (1e-4, -1e-4))
        expected = (weighed(up) - weighed(down)) / 2e-4
        np.testing.assert_allclose(slopes[name], expected, rtol=1e-5, atol=1e-9)


def test_of_many_attributes_orders_are_told_with_their_error() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(14, 6), nn.Tanh(), nn.Linear(6, 2))
        x = torch.randn(12, 14).round(decimals=1)
    rows = Table(x=x, names=[f"x{i}" for i in range(14)])
    found = audited(model, rows, tolerance=0.0, rows=2)
    assert "means over 16 orders" in " ".join(found.models[0].notes)
    assert "Nothing moves" in " ".join(found.models[0].notes)


class Crowd(nn.Module):
    """A network that looks at everybody."""

    def forward(self, x: Tensor) -> Tensor:
        """Each row less the mean of all."""
        return (x - x.mean(0))[:, :2]


def test_a_network_that_mixes_rows_is_refused() -> None:
    rows = Table(x=torch.randn(5, 4), names=list("abcd"))
    assert "alone than in company" in refusal(lambda: audited(Crowd(), rows))


class Logarithm(nn.Module):
    """A network that has no answer for some rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of two numbers."""
        return x[:, :2].log()


def test_a_network_without_an_answer_is_refused() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [2.0, 1.0, 1.0], [1.0, -1.0, 2.0]])
    rows = Table(x=x, names=["a", "b", "c"], reference=x[:2])
    assert "NaN or infinite" in refusal(lambda: audited(Logarithm(), rows, tolerance=0.0))


# --- verdicts and words -------------------------------------------------------------------------


def test_changes_typed_back_give_the_printed_reasons(split: Any, net: nn.Module) -> None:
    found = audited(net, split, rows=40, exchange={"job": 1.0}, reference=split.train.x[:7])
    table = table_of(net, split)
    table = NetworkTable(**{**vars(table), "reference": _drawn(found, split)})
    broken = [each for each in found.decisions if each.verdict == "broken"]
    assert len(broken) > 3
    chunk = {row: at for at, row in enumerate(split.test.rows.tolist())}
    moved = 0
    for each in broken:
        row = table.code.frame(split.test.x[[chunk[each.row]]].double())
        assert each.change is not None
        typed = row.assign(**each.change)
        for name, value in each.change.items():
            if isinstance(value, float):
                assert value == round(value)
                assert abs(value - row[name].iloc[0]) <= WIDTH[name]
        (again,) = reason_verdicts(table, typed, TableMoves(), Question(k=2))
        assert (again.decision, again.reasons) == (each.prediction, each.then)
        assert set(again.reasons) != {reason.code for reason in each.reasons}
        moved += "job" in each.change
    assert moved > 0


def _drawn(found: ReasonAudit, split: Any) -> Tensor:
    assert found.data.reference.startswith("7 rows")
    return split.train.x[:7].double()


def test_a_decision_is_told_in_words_and_units(split: Any, net: nn.Module, tmp_path: Path) -> None:
    found = audited(
        net,
        split,
        rows=12,
        out=tmp_path,
        codes={"job": "work", "hours": "work"},
        protected=["job", "home"],
    )
    assert found.settings.codes == {"job": "work", "hours": "work"}
    for each in found.decisions:
        told = [reason.code for reason in each.reasons]
        assert len(set(told)) == 2
        assert not {"job", "hours"} & set(told)
        assert ("job" in each.protected) == ("work" in told)
        assert ("home" in each.protected) == ("home" in told)
        assert each.core is not None
        assert set(each.core) <= set(told)
        assert sum(each.subgroup == {} for _ in (0,)) == 1
    with (tmp_path / "decisions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    first = rows[0]
    assert json.loads(first["reasons"]) == [each.code for each in found.decisions[0].reasons]
    assert set(first) >= {"values", "usual", "contributions", "core", "change", "by", "protected"}
    assert ReasonAudit.from_json(json.loads((tmp_path / "audit.json").read_text())).counts == (
        found.counts
    )
    page = (tmp_path / "audit.html").read_text()
    assert "⚑ protected" in page
    assert "Do the reasons hold?" in page


def test_only_the_declined_are_told_what_speaks_for_it(split: Any, net: nn.Module) -> None:
    everybody = audited(net, split, rows=40, threshold=0.7)
    with torch.no_grad():
        second = net.double()(split.test.x[:40].double()).softmax(-1)[:, 1]
    for each, share in zip(everybody.decisions, second.tolist(), strict=True):
        assert each.prediction == ("yes" if share >= 0.7 else "no")
        expected = share if each.prediction == "yes" else 1 - share
        assert each.probability == pytest.approx(expected, abs=1e-6)
    found = audited(net, split, rows=40, threshold=0.7, only="declined")
    assert {each.prediction for each in found.decisions} == {"no"}
    assert [each.row for each in found.decisions] == [
        each.row for each in everybody.decisions if each.prediction == "no"
    ]
    assert all(each.log_odds[1] < np.log(0.7 / 0.3) for each in found.decisions)
    assert any(each.probability < 0.5 for each in found.decisions)  # declined below .7, not .5
    assert found.settings.side == "for"
    assert found.models[0].passed_over == 40 - len(found.decisions)
    contributions = [each.reasons[0].contribution for each in found.decisions]
    assert min(contributions) > 0
    other = audited(net, split, rows=40, only="declined", favourable="no")
    assert {each.prediction for each in other.decisions} == {"yes"}


def test_groups_come_with_intervals(split: Any, net: nn.Module) -> None:
    frame = table_of(net, split).code.frame(split.test.x[:30].double())
    rows = Table(
        x=split.test.x[:30].double(),
        features=split.dataset.features,
        scale=split.scale,
        subgroups={"home": frame.home.tolist()},
        reference=split.train.x,
    )
    found = audited(net, rows).models[0]
    assert [each.value for each in found.subgroups] == ["owned", "rented"]
    owned, rented = (each.broken / each.rows for each in found.subgroups)
    assert found.subgroups[0].difference == pytest.approx(owned - rented)
    assert found.subgroups[1].difference == pytest.approx(rented - owned)
    for each in found.subgroups:
        assert each.rows == each.certified + each.broken + each.undetermined
        assert 0 <= each.low <= each.broken / each.rows <= each.high <= 1
        assert each.least is not None
        assert each.most is not None
        assert each.difference is not None
        assert each.least <= each.difference <= each.most
        assert each.stands_out == (not each.least <= 0 <= each.most)


def test_totals_are_those_of_the_decisions(split: Any, net: nn.Module) -> None:
    found = audited(net, split, rows=30)
    one, told = found.models[0], found.decisions
    names = list(found.data.attributes)
    mask = torch.tensor([[n in [r.code for r in each.reasons] for n in names] for each in told])
    classes = torch.tensor([each.prediction == "yes" for each in told]).long()
    assert one.overlap == pytest.approx(overlap(mask.double(), 2, classes))
    assert one.overlap_of_all == pytest.approx(overlap(mask.double(), 2))
    assert one.kept == pytest.approx(np.mean([each.kept for each in told]))
    assert one.core == pytest.approx(np.mean([len(each.core or ()) for each in told]))
    assert one.within[-1] == one.counts["broken"] == sum(e.verdict == "broken" for e in told)
    assert one.by == {"enumerated": 30}
    assert one.kappa == pytest.approx((one.kept - one.overlap) / (1 - one.overlap))


def test_bounds_and_search_say_what_every_move_does(split: Any, net: nn.Module) -> None:
    for settings in ({}, {"exchange": {"home": 0.5}}, {"side": "both"}, {"threshold": 0.35}):
        every = audited(net, split, rows=25, **settings)
        found = audited(net, split, rows=25, most_moves=1, **settings)
        assert every.models[0].by == {"enumerated": 25}
        for known, each in zip(every.decisions, found.decisions, strict=True):
            assert each.verdict == known.verdict or each.verdict == "undetermined"
            assert each.by in ("bound", "attack", None)
            if each.core is not None and known.core is not None:
                assert set(each.core) <= set(known.core)
            if each.kept is not None and known.kept is not None:
                assert each.kept <= known.kept + 1e-9
        counts = found.counts
        assert counts["broken"] == every.counts["broken"]
        assert (
            counts["certified"]
            >= (0.8 if "exchange" not in settings else 0.2) * (every.counts["certified"])
        )


def test_numbers_that_move_continuously_are_proved_or_broken(split: Any, net: nn.Module) -> None:
    x = split.test.x[:20].double() + 1e-3 * torch.randn(
        20, split.test.x.shape[1], generator=torch.Generator().manual_seed(0)
    ) * torch.tensor([each.kind == "numeric" for each in split.dataset.features])
    rows = Table(x=x, features=split.dataset.features, scale=split.scale, reference=split.train.x)
    found = audited(net, rows)
    assert set(found.models[0].by) <= {"bound", "attack"}
    assert found.counts["certified"] + found.counts["broken"] >= 18
    assert found.counts["certified"] > 3


def test_a_search_decides_what_proof_and_attack_leave_open(split: Any, net: nn.Module) -> None:
    x = split.test.x[:12].double()
    numeric = torch.tensor([each.kind == "numeric" for each in split.dataset.features])
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) * numeric
    rows = Table(
        x=x + 1e-3 * noise,
        features=split.dataset.features,
        scale=split.scale,
        reference=split.train.x,
    )
    wide = {"tolerance": 0.7, "attack": "none"}
    before, after = (audited(net, rows, search=search, **wide) for search in (0.0, 5.0))
    assert before.counts["broken"] == 0
    assert before.counts["undetermined"] > 0
    assert after.counts["undetermined"] < before.counts["undetermined"]
    assert after.counts["broken"] > 0
    for one, other in zip(before.decisions, after.decisions, strict=True):
        assert one.verdict in (other.verdict, "undetermined")
        assert other.kept is None or one.kept is None or other.kept >= one.kept
    with pytest.raises(ValueError, match="search is a number of seconds"):
        audited(net, rows, search=-1.0)


class Rounded(nn.Module):
    """A network with a step for which no bounds are known."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Logits to one digit."""
        return (10 * self.net(x)).round() / 10


def test_where_no_bounds_are_known_nothing_is_certified_by_them(split: Any, net: nn.Module) -> None:
    found = audited(Rounded(net), split, rows=4, most_moves=1)
    assert "Nothing can be proved by bounds" in " ".join(found.models[0].notes)
    assert found.counts["certified"] == 0
    assert sum(audited(Rounded(net), split, rows=4).models[0].by.values()) == 4  # enumerated


# --- files --------------------------------------------------------------------------------------


def test_a_stopped_audit_goes_on_where_it_was(split: Any, net: nn.Module, tmp_path: Path) -> None:
    whole = audited(net, split, rows=20, chunk=5)

    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.done == 10:
            raise Stop

    with pytest.raises(Stop):
        audited(net, split, rows=20, chunk=5, out=tmp_path, on_progress=stop)
    found = audited(net, split, rows=20, chunk=5, out=tmp_path)
    assert found.decisions == whole.decisions
    assert found.models == whole.models
    again = audited(net, split, rows=20, chunk=5, out=tmp_path)
    assert again.created == found.created
    for other in ({"threshold": 0.6}, {"tolerance": {"age": 1.0}}, {"reference_rows": 9}):
        assert "with other settings" in refusal(
            lambda other=other: audited(net, split, rows=20, out=tmp_path, **{"chunk": 5, **other})
        )


# --- behind bands -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stable(frame: pd.DataFrame) -> StableClassifier:
    model = StableClassifier({"age": 2, "hours": 1}, k=2, units={"age": "years"})
    return model.fit(frame.drop(columns="granted"), frame.granted)


def test_a_stable_classifier_is_audited_as_it_certifies(
    stable: StableClassifier, frame: pd.DataFrame
) -> None:
    rows = frame[:40]
    found = r2et.audit(stable, rows, config=DataSettings(target="granted"))
    assert isinstance(found, ReasonAudit)
    assert found.data.moves[:2] == (
        "age: up or down by 2 years, in whole steps",
        "hours: up or down by 1, in whole steps",
    )
    certified = stable.certify(rows.drop(columns="granted"))
    told = stable.reasons(rows.drop(columns="granted"))
    for each, verdict, reasons in zip(found.decisions, certified, told, strict=True):
        assert each.verdict == verdict.verdict
        assert each.core == verdict.core
        assert each.reasons == tuple(reasons)
        assert each.prediction == verdict.decision
        assert each.change == (dict(verdict.breaking.values) if verdict.breaking else None)
    auc = found.models[0].auc
    assert auc is not None
    assert auc > 0.6
    again = stable.audit(rows.drop(columns="granted"))
    assert again.counts == found.counts
    assert found.data.reference == f"{len(stable.reference_)} rows that are part of the model"


def test_words_are_exchanged_behind_bands(stable: StableClassifier, frame: pd.DataFrame) -> None:
    rows = frame[:25].drop(columns="granted")
    words = {"job": ("clerk", "cook", "smith")}
    moves = TableMoves(width={"age": 2}, exchange={"job": 1.0}, words=words, only={"age": "down"})
    for at, each in enumerate(stable.certify(rows, moves)):
        row = rows.iloc[at]
        cells = [
            rows[at : at + 1].assign(age=row.age + by, job=job)
            for by in (0, -1, -2)
            for job in words["job"]
        ]
        every = pd.concat(cells, ignore_index=True)
        verdicts = stable.certify(every, {})
        reasons = [set(other.reasons) for other in verdicts if other.decision == each.decision]
        broken = any(other != set(each.reasons) for other in reasons)
        assert each.verdict == ("broken" if broken else "certified")
        assert set(each.core or ()) == set(each.reasons).intersection(*reasons)


def test_any_model_behind_bands_is_audited(frame: pd.DataFrame) -> None:
    x, y = frame.drop(columns="granted"), frame.granted
    pipe = make_pipeline(StableBinner({"age": 2, "hours": 1}), LogisticRegression()).fit(x, y)
    found = audited(pipe, frame[:20], config=settings_of({"target": "granted"}, "here"))
    assert sum(found.counts.values()) == 20
    assert found.counts["undetermined"] == 0
    assert found.data.reference == "10 of the audited rows themselves"
    beside = refusal(lambda: audited({"a": pipe, "b": nn.Linear(5, 2)}, x[:5]))
    assert "beside their like" in beside


def test_classifiers_are_told_against_rows_of_their_own_training(frame: pd.DataFrame) -> None:
    x, y = frame.drop(columns="granted"), frame.granted
    plain = NetworkClassifier(method="vanilla", epochs=2, random_state=0)
    one, other = clone(plain).fit(x[:200], y[:200]), clone(plain).fit(x[:200], y[:200])
    other._refer_to([own[:3] for own in other._usual])
    config = settings_of({"target": "granted"}, "here")
    found = audited({"one": one, "other": other}, frame[200:203], config=config)
    assert found.data.reference == "10 rows of its training"
    # The other one is told against three rows, by the explainer itself.
    alone = audited(other, frame[200:203], config=config)
    assert alone.data.reference == "3 rows of its training"
    beside = [each for each in found.decisions if each.model == 1]
    told = [[reason.contribution for reason in each.reasons] for each in beside]
    assert told == [[reason.contribution for reason in each.reasons] for each in alone.decisions]
    groups = other.schema_.groups
    explain = Shapley(reference=other.reference_, groups=groups, form="signed")
    sources = other.encode(x[200:201])
    values = explain(other.model_, sources, predicted(other.model_, sources))[0].tolist()
    assert all(min(abs(v - value) for value in values) < 1e-9 for v in told[0])
    given = audited(one, frame[200:203], config=config, reference=frame[:8])
    assert given.data.reference == "8 rows that were given"
    one.reference_ = None
    old = audited(one, frame[200:203], config=config)
    assert old.data.reference == "3 of the audited rows themselves"


# --- settings and refusals ----------------------------------------------------------------------


def test_columns_say_what_moves_and_what_it_is_called(
    stable: StableClassifier, frame: pd.DataFrame
) -> None:
    config = DataSettings(
        target="granted",
        features={
            "age": FeatureSettings(width=1.0, only="up", code="life"),
            "job": FeatureSettings(exchange=1.0, protected=True),
            "debts": FeatureSettings(immutable=True, width=1.0),
            "home": FeatureSettings(code="life"),
        },
    )
    found = r2et.audit(stable, frame[:10], config=config)
    assert isinstance(found, ReasonAudit)
    assert found.data.moves == (
        "age: up by 1 year, in whole steps",
        "job: another of its values, at a price of 1 of 1",
    )
    assert found.settings.protected == ("job",)
    assert found.settings.codes == {"age": "life", "home": "life"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"threshold": 1.0}, "between 0 and 1"),
        ({"k": 5}, "1..4"),
        ({"side": "beside"}, "unknown side"),
        ({"only": "denied"}, "declined"),
        ({"favourable": "maybe"}, "one of no, yes"),
        ({"protected": ["jobs"]}, "'job'"),
        ({"tolerance": {"aged": 1.0}}, "'age'"),
        ({"tolerance": {"job": 1.0}}, "no number"),
        ({"exchange": {"age": 1.0}}, "no words"),
        ({"norm": "l2"}, "norm is a setting of slopes"),
        ({"explain": "slopes", "side": "for"}, "side is a setting of contributions"),
        ({"explain": "slopes"}, "one length"),
        ({"reference": torch.zeros(2, 3)}, "rows of"),
        (
            {"codes": dict.fromkeys(("age", "hours", "job", "home", "debts"), "all")},
            "two attributes",
        ),
        ({"exchange": {"job": "1"}}, "must be a number"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    split: Any, net: nn.Module, settings: dict[str, Any], says: str
) -> None:
    assert says in refusal(
        lambda: audited(net, split, rows=5, **{"reference_rows": None, **settings})
    )


def test_the_command_tells_contributions(
    stable: StableClassifier, frame: pd.DataFrame, tmp_path: Path
) -> None:
    stable.save(tmp_path / "stable.json")
    frame[:30].to_csv(tmp_path / "loans.csv", index=False)
    words = ["audit", str(tmp_path / "loans.csv"), "--model", str(tmp_path / "stable.json")]
    words += ["--target", "granted", "--width", "age=2", "--only", "declined", "--threshold", ".4"]
    words += ["--protected", "job,home", "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "age: up or down by 2 years" in told.output
    assert "Protected among the reasons: job" in told.output
    assert (tmp_path / "out" / "audit.html").exists()
    told = CliRunner().invoke(app, [*words, "--tolerance", ".1"])
    assert told.exit_code == 2 or "give one of them" in str(told.exception)


def test_the_page_escapes_what_comes_from_the_data() -> None:
    tally = ReasonTally(1, ("a", "b"), {})
    reason = Reason(
        attribute="<script>", value="<b>", usual="&", contribution=1.0, share=1.0, code="<script>"
    )
    decision = ReasonedDecision(
        row=0, id="<i>", model=0, label=None, prediction="a", probability=0.5, verdict="broken",
        by="enumerated", reasons=(reason,), core=(), kept=0.0, change={"<u>": "=1"}, size=1.0,
        then=("other",), moves=2, protected=(), log_odds=(0.0, 0.0), subgroup={},
        words={"<u>": ("0", "=1")},
    )  # fmt: skip
    tally.add(decision)
    rows = Table(x=torch.randn(6, 4), names=list("abcd"))
    made = audited(nn.Linear(4, 2), rows, tolerance={"a": 0.1}, k=1)
    found = ReasonAudit(
        **{
            **vars(made),
            "models": (tally.summary("<model>", 0, (), ("<note>",)),),
            "decisions": (decision,),
        }
    )
    page = reason_html(found)
    for wrong in ("<script> ", "<i>", "<u>", "<model>", "<note>"):
        assert wrong not in page
    assert "&lt;u&gt;" in page
