import copy
import errno
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closed_form import numbers
from r2et.core.rng import stream
from r2et.data import Part
from r2et.explainers import gradient
from r2et.methods import METHODS, BatchContext, Method, r2et
from r2et.metrics.statistics import auc
from r2et.models import MODELS, mlp
from r2et.training.checkpoint import from_bytes, load, save, to_bytes
from r2et.training.settings import SCHEDULES, Candidate, EpochRecord, FitSettings
from r2et.training.trainer import fit, keeps_ranking, select
from refusals import refusal

ROOT = Path(__file__).parents[2]
PLAN = {"name": "mlp", "inputs": 5, "classes": 2, "hidden": [6], "activation": "leaky-relu"}
SHORT = FitSettings(epochs=5, batch=16, checkpoint_every=1)


def rows(count: int, seed: int = 0, noise: float = 0.0) -> Part:
    """Examples on both sides of a plane, in the order they were drawn."""
    x = numbers(count, 5, seed=seed)
    side = x @ numbers(5, seed=1000) + noise * numbers(count, seed=seed + 1)
    return Part(rows=torch.arange(count), x=x.float(), y=(side > 0).long())


def network(seed: int = 0, hidden: int = 6) -> nn.Sequential:
    return MODELS["mlp"].build(5, 2, hidden=(hidden,), generator=stream(seed, "test"))


def normalised() -> nn.Sequential:
    """A network with running statistics, which are no parameters."""
    first, activation, last = network()
    return nn.Sequential(first, nn.BatchNorm1d(6), activation, last)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(one: nn.Module, other: nn.Module, atol: float = 0.0) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=atol, msg=name)


def differ(one: nn.Module, other: nn.Module) -> bool:
    theirs = weights(other)
    return any(not torch.equal(value, theirs[name]) for name, value in weights(one).items())


# --- learning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_separable_task_is_learnt(method: str) -> None:
    start: nn.Module = network()
    if METHODS[method].model == "structured":
        d = rows(1).x.shape[1]
        start = MODELS["structured"].build(d, numeric=[0], one_hot=[], generator=stream(0, "init"))
    model, history = fit(
        start,
        rows(300),
        rows(100, seed=2),
        METHODS[method].build(k=2),
        replace(SHORT, epochs=10),
    )
    assert auc(model, rows(200, seed=4).x, rows(200, seed=4).y) > 0.97
    assert [record.epoch for record in history] == list(range(10))
    assert history[-1].parts["classification"] < 0.5 * history[0].parts["classification"]
    assert history[-1].valid_auc == auc(model, rows(100, seed=2).x, rows(100, seed=2).y)


def test_the_loss_of_an_epoch_is_the_mean_over_all_its_examples() -> None:
    # At a learning rate of almost nothing every batch sees the starting weights.
    train, model = rows(37), network()
    mean = nn.functional.cross_entropy(model(train.x), train.y).item()
    settings = FitSettings(epochs=1, batch=16, learning_rate=1e-12)
    _, (record,) = fit(model, train, rows(20, seed=2), Method(), settings)
    assert record.parts["classification"] == pytest.approx(mean, rel=1e-5)
    assert record.parts.keys() == {"classification"}


def test_every_epoch_meets_every_row_once_in_an_order_of_its_own() -> None:
    met: list[Tensor] = []

    def perturb(look: BatchContext) -> Tensor:
        met.append(look.x)
        return look.x

    train = rows(37)
    settings = FitSettings(epochs=3, batch=16)
    fit(network(), train, rows(20, seed=2), Method(perturb=perturb), settings)
    assert [len(batch) for batch in met] == [16, 16, 5] * 3
    epochs = [torch.cat(met[i : i + 3]) for i in (0, 3, 6)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(train.x.tolist())
        assert not torch.equal(epoch, train.x)
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])


def test_a_seed_decides_everything() -> None:
    settings = FitSettings(epochs=3, batch=16, seed=1)
    torch.manual_seed(5)
    dice = torch.get_rng_state()
    (one, first), (other, second), (third, _) = (
        fit(network(), rows(100), rows(50, seed=2), r2et(k=2, curvature=0.1), each)
        for each in (settings, settings, replace(settings, seed=2))
    )
    assert torch.equal(torch.get_rng_state(), dice)
    assert_equal(one, other)
    assert first == second
    assert differ(one, third)


def test_weight_decay_makes_weights_smaller() -> None:
    plain, decayed = (
        fit(network(), rows(100), rows(50, seed=2), Method(weight_decay=rate), SHORT)[0]
        for rate in (0.0, 1.0)
    )
    assert decayed[0].weight.norm() < plain[0].weight.norm()


def test_the_cosine_falls_to_nothing() -> None:
    assert [SCHEDULES["cosine"](t) for t in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.5, 0.0])
    assert [SCHEDULES["constant"](t) for t in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    # One step an epoch: the second of two steps is taken at half the rate.
    whole = FitSettings(epochs=2, batch=64, schedule="constant")
    falling = replace(whole, schedule="cosine")
    once = fit(network(), rows(64), rows(50, seed=2), Method(), replace(whole, epochs=1))[0]
    far, near = (
        fit(network(), rows(64), rows(50, seed=2), Method(), settings)[0]
        for settings in (whole, falling)
    )
    second = [each[0].weight - once[0].weight for each in (far, near)]
    torch.testing.assert_close(second[1], second[0] / 2, rtol=1e-3, atol=1e-6)


def test_a_prepared_model_is_the_one_that_is_trained() -> None:
    def prepare(model: nn.Module) -> nn.Module:
        assert isinstance(model, nn.Sequential)
        return nn.Sequential(model[0], nn.Softplus(), model[2])

    model, _ = fit(network(), rows(100), rows(50, seed=2), Method(prepare=prepare), SHORT)
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[1], nn.Softplus)
    assert differ(model, network())


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch": 0},
        {"learning_rate": 0.0},
        {"checkpoint_every": 0},
        {"schedule": "linear"},
        {"patience": 0},
    ],
)
def test_settings_under_which_nothing_is_learnt_are_refused(wrong: dict[str, Any]) -> None:
    assert next(iter(wrong)) in refusal(lambda: FitSettings(**wrong))


@pytest.mark.parametrize(
    ("method", "rate"),
    [
        (Method(), 1e36),
        (
            Method(
                penalties=(("steep", 3e38, lambda look: 1e9 * look.input_gradient.abs().sum(-1)),)
            ),
            0.01,
        ),
        (Method(perturb=lambda look: look.x / 0 * 0), 0.01),
    ],
    ids=["rate", "penalty", "nan"],
)
def test_training_that_diverges_is_refused(method: Method, rate: float) -> None:
    settings = FitSettings(epochs=30, batch=16, learning_rate=rate, schedule="constant")
    message = refusal(lambda: fit(network(), rows(100), rows(50, seed=2), method, settings))
    assert "diverged" in message or "NaN or infinite logits" in message
    assert "the learning rate" in message


# --- stopping early ---------------------------------------------------------------------------


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_a_fit_and_keeps_its_best_epoch(patience: int) -> None:
    # Few, noisy rows and large steps: the validation AUC rises and falls.
    valid = rows(60, seed=2, noise=2.0)
    settings = FitSettings(
        epochs=60, batch=8, learning_rate=0.05, schedule="constant", patience=patience
    )
    model, history = fit(network(), rows(40, noise=2.0), valid, Method(), settings)
    scores = [record.valid_auc for record in history]
    best = scores.index(max(scores))
    assert best > 0
    assert len(history) == best + 1 + patience < 60
    assert auc(model, valid.x, valid.y) == max(scores)
    again = replace(settings, epochs=best + 1, patience=None)
    assert_equal(model, fit(network(), rows(40, noise=2.0), valid, Method(), again)[0])


def test_an_auc_that_stays_the_same_is_no_better() -> None:
    # On separable rows the AUC reaches 1 and cannot rise any more.
    settings = FitSettings(epochs=60, batch=8, learning_rate=0.05, patience=3)
    _, history = fit(network(), rows(200), rows(30, seed=2), Method(), settings)
    scores = [record.valid_auc for record in history]
    assert scores[-1] == 1
    assert len(scores) == scores.index(1.0) + 1 + 3


def test_a_floor_keeps_the_last_epoch_that_reaches_it() -> None:
    valid = rows(60, seed=2, noise=2.0)
    settings = FitSettings(epochs=20, batch=8, learning_rate=0.05, schedule="constant")

    def kept(floor: float) -> tuple[nn.Module, list[float]]:
        model, history = fit(network(), rows(40, noise=2.0), valid, Method(), settings, floor=floor)
        return model, [record.valid_auc for record in history]

    scores = kept(0.0)[1]
    floor = sorted(scores)[-3]
    last = max(epoch for epoch, score in enumerate(scores) if score >= floor)
    assert 0 < last < 19
    again = replace(settings, epochs=last + 1)
    assert_equal(kept(floor)[0], fit(network(), rows(40, noise=2.0), valid, Method(), again)[0])
    # What no epoch reaches leaves the last one.
    assert_equal(kept(1.1)[0], kept(0.0)[0])
    both = replace(settings, patience=2)
    message = refusal(lambda: fit(network(), rows(40), valid, Method(), both, floor=0.5))
    assert "patience" in message


def test_without_patience_the_last_epoch_is_kept() -> None:
    valid = rows(60, seed=2, noise=2.0)
    settings = FitSettings(epochs=20, batch=8, learning_rate=0.05, schedule="constant")
    model, history = fit(network(), rows(40, noise=2.0), valid, Method(), settings)
    assert len(history) == 20
    assert auc(model, valid.x, valid.y) == history[-1].valid_auc < max(h.valid_auc for h in history)


@pytest.mark.parametrize("refused", [1, 3])
def test_a_refused_epoch_ends_a_fit_and_the_last_accepted_is_kept(
    refused: int, tmp_path: Path
) -> None:
    settings = FitSettings(epochs=6, batch=16, schedule="constant")
    asked = []

    def accept(model: nn.Module) -> bool:
        asked.append(weights(model))
        return len(asked) < refused

    data = (rows(100), rows(50, seed=2), Method())
    model, history = fit(network(), *data, settings, accept=accept)
    assert len(asked) == refused
    assert len(history) == refused - 1
    expected = network()
    if refused > 1:
        expected, _ = fit(expected, *data, replace(settings, epochs=refused - 1))
    assert_equal(model, expected)


def test_retraining_stops_where_the_ranking_of_the_reference_is_lost() -> None:
    train, valid = rows(200), rows(80, seed=2)
    vanilla, _ = fit(network(), train, valid, Method(), SHORT)
    stranger, _ = fit(network(seed=3), train, valid, Method(), replace(SHORT, seed=3))
    # Another order of the inputs is another ranking; other signs are another answer.
    turned, opposite, again = (copy.deepcopy(vanilla) for _ in range(3))
    with torch.no_grad():
        turned[0].weight.copy_(turned[0].weight.roll(2, dims=1))
        opposite[2].weight.neg_()
        opposite[2].bias.neg_()
    accept = keeps_ranking(
        vanilla, valid, k=2, explain=gradient, least_precision=0.9, least_auc=0.9
    )
    assert accept(vanilla)
    assert not accept(turned)
    assert not accept(opposite)
    loose = keeps_ranking(vanilla, valid, k=2, explain=gradient, least_precision=0.0, least_auc=0.9)
    assert loose(stranger)
    assert not loose(opposite)
    strong = r2et(k=2, thickness=30.0, reference=vanilla)
    settings = FitSettings(epochs=10, batch=16, learning_rate=0.2, schedule="constant")
    model, history = fit(again, train, valid, strong, settings, accept=accept)
    assert len(history) < 10
    assert accept(model)


# --- going on where a fit was -----------------------------------------------------------------


class Interrupted(Exception):
    """Stands for whatever ends a fit early."""


def interrupt_in(epoch: int) -> Callable[[EpochRecord], None]:
    def on_epoch(record: EpochRecord) -> None:
        if record.epoch == epoch:
            raise Interrupted

    return on_epoch


@pytest.mark.parametrize("every", [1, 2, 9])
@pytest.mark.parametrize("patience", [None, 4])
@pytest.mark.parametrize("build", [network, normalised])
def test_an_interrupted_fit_ends_at_the_same_weights(
    every: int, patience: int | None, build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    settings = FitSettings(epochs=7, batch=16, checkpoint_every=every, patience=patience)
    data = (rows(90, noise=1.0), rows(50, seed=2), r2et(k=2, curvature=0.1))
    whole, history = fit(build(), *data, settings)
    file = tmp_path / "folder" / "fit.checkpoint"
    with pytest.raises(Interrupted):
        fit(build(), *data, settings, checkpoint=file, on_epoch=interrupt_in(3))
    assert file.exists() == (every < 9)
    done = []
    resumed, records = fit(
        build(), *data, settings, checkpoint=file, on_epoch=lambda record: done.append(record.epoch)
    )
    assert done == list(range({1: 3, 2: 2, 9: 0}[every], len(history)))
    assert records == history
    assert_equal(resumed, whole)
    # A finished fit is not done again.
    finished, records = fit(build(), *data, settings, checkpoint=file, on_epoch=interrupt_in(0))
    assert records == history
    assert_equal(finished, whole)


@pytest.mark.slow
def test_a_killed_process_is_followed_by_the_same_weights(tmp_path: Path) -> None:
    # Killed between two batches of the fourth epoch, by the only signal nobody can catch.
    file = tmp_path / "fit.checkpoint"
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from test_training import Method, SHORT, fit, network, rows\n"
        "seen = []\n"
        "def perturb(look):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 3 * 7 + 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return look.x\n"
        "fit(network(), rows(100), rows(50, seed=2), Method(perturb=perturb), SHORT,\n"
        "    checkpoint=Path(sys.argv[1]))\n"
    )
    ended = subprocess.run(
        [sys.executable, script, file], env=environment(), timeout=120, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    done = []
    data = (rows(100), rows(50, seed=2), Method())
    resumed, history = fit(
        network(), *data, SHORT, checkpoint=file, on_epoch=lambda record: done.append(record.epoch)
    )
    whole, expected = fit(network(), *data, SHORT)
    assert done == [3, 4]
    assert history == expected
    assert_equal(resumed, whole)


def environment() -> dict[str, str]:
    paths = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "training")]
    )
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (Method(), replace(SHORT, seed=1)),
        (Method(), replace(SHORT, learning_rate=0.1)),
        (r2et(k=2), SHORT),
        (Method(weight_decay=0.1), SHORT),
    ],
    ids=["seed", "rate", "penalty", "decay"],
)
def test_the_checkpoint_of_another_fit_is_refused(
    method: Method, settings: FitSettings, tmp_path: Path
) -> None:
    file, data = tmp_path / "fit.checkpoint", (rows(50), rows(50, seed=2))
    fit(network(), *data, Method(), SHORT, checkpoint=file)
    before = file.read_bytes()
    message = refusal(lambda: fit(network(), *data, method, settings, checkpoint=file))
    assert str(file) in message
    assert "other settings" in message
    assert file.read_bytes() == before


def test_the_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    file, data = tmp_path / "fit.checkpoint", (rows(50), rows(50, seed=2), Method(), SHORT)
    fit(network(), *data, checkpoint=file)
    message = refusal(lambda: fit(network(hidden=7), *data, checkpoint=file))
    assert "another architecture" in message


@pytest.mark.parametrize("damage", [lambda whole: whole[:-5], lambda whole: whole[:40]])
def test_a_damaged_checkpoint_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file, data = tmp_path / "fit.checkpoint", (rows(50), rows(50, seed=2), Method(), SHORT)
    fit(network(), *data, checkpoint=file)
    file.write_bytes(damage(file.read_bytes()))
    assert "not a whole checkpoint" in refusal(lambda: fit(network(), *data, checkpoint=file))


# --- several processes ------------------------------------------------------------------------

TOGETHER = """
import sys
from pathlib import Path
from lightning_fabric import Fabric
from test_training import fit, network, together
from r2et.training.checkpoint import save

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
for count in (64, 67, 65):
    train, valid, method, settings = together(count)
    model, history = fit(network(), train, valid, method, settings, fabric=fabric)
    if fabric.is_global_zero:
        losses = [record.parts for record in history]
        save(Path(sys.argv[1]) / f"{count}.safetensors", model, {"losses": losses})
    fabric.barrier()
"""


def together(count: int) -> tuple[Part, Part, Method, FitSettings]:
    """A fit in batches of 16, of which the last may be of any size."""
    settings = FitSettings(epochs=3, batch=16)
    return rows(count), rows(50, seed=2), r2et(k=2, thickness=0.3, curvature=0.1), settings


@pytest.mark.slow
def test_two_processes_end_at_the_weights_of_one(tmp_path: Path) -> None:
    # 64 rows: whole batches; 67: a last batch of 2 + 1 rows; 65: of 1 + 0 rows.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "script.py"
    script.write_text(TOGETHER)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    ended = subprocess.run(
        [*command, script, tmp_path],
        env={**environment(), "GLOO_SOCKET_IFNAME": "lo"},
        timeout=180,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    for count in (64, 67, 65):
        shared, notes = load(tmp_path / f"{count}.safetensors", network())
        alone, history = fit(network(), *together(count))
        assert differ(alone, network())
        assert_equal(shared, alone, atol=1e-6)
        for told, record in zip(notes["losses"], history, strict=True):
            assert told == pytest.approx(record.parts, abs=1e-5)


# --- saving and loading -----------------------------------------------------------------------


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    recipe = {"model": PLAN, "note": "ä", "numbers": [1, 2.5]}
    file = tmp_path / "deep" / "folder" / "model.safetensors"
    assert save(file, network(), recipe) == file
    model, told = load(file)
    assert told == recipe
    assert_equal(model, network())
    assert [type(part) for part in model] == [type(part) for part in network()]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_bytes_of_a_model_are_those_of_its_file(tmp_path: Path) -> None:
    plan = {"name": "mlp", "inputs": 5, "classes": 2, "hidden": [6]}
    model, recipe = network(), {"model": plan}
    content = to_bytes(model, recipe)
    assert content == save(tmp_path / "model.safetensors", model, recipe).read_bytes()
    assert_equal(from_bytes(content), model)


def test_running_statistics_are_saved_too(tmp_path: Path) -> None:
    model, _ = fit(normalised(), rows(60), rows(50, seed=2), Method(), SHORT)
    assert isinstance(model, nn.Sequential)
    assert not torch.equal(model[1].running_mean, torch.zeros(6))
    file = save(tmp_path / "model.safetensors", model, {})
    back, _ = load(file, normalised())
    assert_equal(back, model)
    assert int(back.state_dict()["1.num_batches_tracked"]) == 5 * 4
    x = rows(20).x
    assert torch.equal(back.eval()(x), model.eval()(x))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda: network(hidden=7), "0.bias is (6,)"),
        (normalised, "1.bias is (6,) there, the model has (2,)|missing"),
        (lambda: nn.Sequential(*network(), nn.Linear(2, 2)), "3.bias is missing"),
        (lambda: network()[:2], "2.bias is (2,) in the file, but the network has none"),
    ],
    ids=["wider", "normalised", "deeper", "shallower"],
)
def test_weights_of_another_architecture_are_refused(
    other: Callable[[], nn.Module], named: str, tmp_path: Path
) -> None:
    file = save(tmp_path / "model.safetensors", network(), {})
    model = other()
    before = weights(model)
    message = refusal(lambda: load(file, model))
    assert "another architecture" in message
    assert any(each in message for each in named.split("|"))
    assert all(torch.equal(value, before[name]) for name, value in weights(model).items())


@pytest.mark.parametrize(
    "content",
    [b"", b"weights\n", pickle.dumps({"0.weight": [1.0]}), b"\xff" * 100],
    ids=["empty", "text", "pickle", "noise"],
)
def test_another_kind_of_file_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    message = refusal(lambda: load(file, network()))
    assert str(file) in message
    assert "not a whole checkpoint" in message


@pytest.mark.parametrize("cut", [4, 60, -1])
def test_a_file_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    file = save(tmp_path / "model.safetensors", network(), {"model": PLAN})
    file.write_bytes(file.read_bytes()[:cut])
    assert "cut short" in refusal(lambda: load(file))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "model.safetensors", tmp_path):
        message = refusal(lambda path=path: load(path))
        assert "there is no checkpoint" in message
        assert str(path) in message


@pytest.mark.parametrize("recipe", [{}, {"model": {}}, {"model": {"name": "resnet"}}])
def test_a_file_that_does_not_say_what_it_holds_is_refused(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    file = save(tmp_path / "model.safetensors", network(), recipe)
    assert "which model" in refusal(lambda: load(file))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    there = tmp_path / "file" / "model.safetensors"
    message = refusal(lambda: save(there, network(), {}))
    assert "cannot write" in message
    assert str(there) in message
    data = (rows(50), rows(50, seed=2), Method(), SHORT)
    assert "cannot write" in refusal(lambda: fit(network(), *data, checkpoint=there))
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save(tmp_path / "model.safetensors", network(), {"model": PLAN})
    before = file.read_bytes()

    def full(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    message = refusal(lambda: save(file, network(1), {}))
    assert f"cannot write {file}: no space left" in message
    with pytest.raises(TypeError):
        save(file, network(1), {"model": object()})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


# --- choosing ---------------------------------------------------------------------------------


def candidate(auc: float, precision: float) -> Candidate:
    return Candidate(settings={"auc": auc}, auc=auc, precision=precision)


def test_the_most_stable_of_the_able_models_is_chosen() -> None:
    low, able, stable, best = (
        candidate(*each) for each in [(0.79, 1.0), (0.95, 0.5), (0.81, 0.8), (0.8, 0.9)]
    )
    assert select([low, able, stable, best], 0.8) is best
    assert select([low, able, stable], 0.8) is stable
    assert select([low, able], 0.8) is able
    assert select([low], 0.8) is None
    assert select([], 0.8) is None
    assert select([low], -math.inf) is low


def test_the_first_of_equals_is_chosen() -> None:
    one, other = candidate(0.9, 0.8), candidate(0.95, 0.8)
    assert select([one, other], 0.8) is one
    assert select([other, one], 0.8) is other


def test_dropout_is_drawn_by_the_seed_alone() -> None:
    x = numbers(64, 4).float()
    part = Part(rows=torch.arange(64), x=x, y=(x[:, 0] > 0).long())
    settings = FitSettings(epochs=2, batch=16, seed=3)

    def weights(noise: int) -> list[torch.Tensor]:
        torch.manual_seed(noise)
        torch.rand(noise)
        hidden = mlp(4, hidden=(8,), generator=stream(0, "test"))
        model = nn.Sequential(*hidden[:2], nn.Dropout(0.5), hidden[2])
        before = torch.get_rng_state()
        fitted, _ = fit(model, part, part, Method(), settings)
        assert torch.equal(before, torch.get_rng_state())
        return [value.detach().clone() for value in fitted.parameters()]

    for ours, theirs in zip(weights(1), weights(2), strict=True):
        assert torch.equal(ours, theirs)


def test_a_saved_model_keeps_its_number_format(tmp_path: Path) -> None:
    model = mlp(4, generator=stream(0, "test")).double()
    plan = {"name": "mlp", "inputs": 4, "classes": 2}
    path = save(tmp_path / "model.safetensors", model, {"model": plan})
    loaded, _ = load(path)
    assert all(value.dtype == torch.float64 for value in loaded.parameters())
    for ours, theirs in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(ours, theirs)
