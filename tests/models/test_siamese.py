"""Networks of pairs and of graphs, against PyTorch Geometric, scikit-learn and their formulas."""

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from brief import brief
from closed_form import numbers
from r2et.core.rng import stream
from r2et.explainers import EXPLAINERS, Explainer, slopes
from r2et.models import MODELS
from r2et.models.gcn import DenseGCN, GCNEmbedding, Normalise, propagation
from r2et.models.siamese import Siamese, cosine, fit_single_head
from r2et.models.smoothing import SmoothPool2d, softened, with_smooth_pooling
from r2et.training.checkpoint import load, save
from refusals import refusal

NODES = 5
EDGES = 10
GRAPH: dict[str, Any] = {"nodes": NODES, "classes": 3, "hidden": 7, "embedding": 4}
PLANS: dict[str, dict[str, Any]] = {
    "siamese-cnn": {"classes": 3, "activation": "softplus"},
    "siamese-gcn": {**GRAPH, "node_features": "rows", "normalise": "absolute"},
    "gcn": {**GRAPH, "activation": "tanh"},
}
ITEMS: dict[str, tuple[int, ...]] = {
    "siamese-cnn": (1, 28, 28),
    "siamese-gcn": (EDGES,),
    "gcn": (EDGES,),
}
every_model = pytest.mark.parametrize("name", PLANS)


def build(name: str, seed: int = 0, **plan: Any) -> Any:
    return MODELS[name].build(**(PLANS[name] | plan), generator=stream(seed, "test")).double()


def items(name: str, count: int = 3, seed: int = 1) -> Tensor:
    return numbers(count, *ITEMS[name], seed=seed)


class Pairs(nn.Module):
    """A Siamese network of pairs whose items lie side by side in one row."""

    def __init__(self, model: Siamese, item: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.item = model, item

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        logits: Tensor = self.model(a.unflatten(1, self.item), b.unflatten(1, self.item))
        return logits


def case(name: str, count: int = 3, **plan: Any) -> tuple[nn.Module, Tensor]:
    """A network of single inputs, and examples for it."""
    model = build(name, **plan)
    if isinstance(model, Siamese):
        both = [items(name, count, seed).flatten(1) for seed in (1, 2)]
        return Pairs(model, ITEMS[name]), torch.cat(both, 1)
    return model, items(name, count)


# --- the cosine ---


def test_a_cosine_matches_its_definition() -> None:
    a, b = numbers(6, 4), 3 * numbers(6, 4, seed=1)
    for u, v, found in zip(a.tolist(), b.tolist(), cosine(a, b).tolist(), strict=True):
        product = sum(p * q for p, q in zip(u, v, strict=True))
        assert found == pytest.approx(product / math.hypot(*u) / math.hypot(*v), abs=1e-15)


def test_a_cosine_has_its_two_derivatives() -> None:
    a, b = numbers(3, 4).requires_grad_(), numbers(3, 4, seed=1).requires_grad_()
    assert gradcheck(cosine, (a, b))
    assert gradgradcheck(cosine, (a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1e-14, 1e-9, 1e15])
def test_a_cosine_of_any_length_has_finite_derivatives(dtype: torch.dtype, size: float) -> None:
    a = (numbers(5, 4) * size).to(dtype).requires_grad_()
    b = numbers(5, 4, seed=1).to(dtype).requires_grad_()
    found = cosine(a, b)
    slopes = torch.autograd.grad(found.sum(), (a, b), create_graph=True)
    mixed = sum((slope * numbers(5, 4, seed=2).to(dtype)).sum() for slope in slopes)
    again = torch.autograd.grad(mixed, (a, b))  # type: ignore[arg-type]
    assert all(part.isfinite().all() for part in (found, *slopes, *again))
    if size == 0:
        assert not any(part.any() for part in (found, *slopes, *again))
    elif size >= 1e-14:
        expected = cosine(numbers(5, 4), numbers(5, 4, seed=1)).to(dtype)
        torch.testing.assert_close(found.detach(), expected)


# --- networks of pairs ---


@pytest.mark.parametrize("name", ["siamese-cnn", "siamese-gcn"])
def test_a_pair_is_judged_by_the_cosine_of_its_embeddings(name: str) -> None:
    model, a, b = build(name), items(name), items(name, seed=2)
    of_a, of_b = model.embed(a), model.embed(b)
    alike = torch.nn.functional.cosine_similarity(of_a, of_b)[:, None]
    expected = alike @ model.classifier.weight.T + model.classifier.bias
    pair, first, second = model.outputs(a, b)
    torch.testing.assert_close(pair, expected)
    assert torch.equal(pair, model(a, b))
    assert torch.equal(first, model.single(of_a))
    assert torch.equal(second, model.single(of_b))
    torch.testing.assert_close(first, of_a @ model.single.weight.T + model.single.bias)
    assert (pair.shape, first.shape) == ((3, 2), (3, 3))


def test_items_are_embedded_once_each() -> None:
    model, calls = build("siamese-cnn"), list[int]()
    model.embed.register_forward_hook(lambda *_: calls.append(1))
    model.outputs(items("siamese-cnn"), items("siamese-cnn", seed=2))
    assert len(calls) == 2


def test_the_network_of_digits_has_the_papers_sizes() -> None:
    embed = MODELS["siamese-cnn"].build(generator=stream(0, "test")).embed
    assert isinstance(embed, nn.Sequential)
    x, shapes = torch.zeros(2, 1, 28, 28), list[tuple[int, ...]]()
    for layer in embed:
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    kinds = "Conv2d ReLU MaxPool2d Conv2d ReLU MaxPool2d Flatten Linear ReLU Linear ReLU Linear"
    assert [type(layer).__name__ for layer in embed] == kinds.split()
    assert list(dict.fromkeys(shapes)) == [
        (8, 26, 26), (8, 13, 13), (16, 11, 11), (16, 3, 3), (144,), (64,), (32,), (10,)
    ]  # fmt: skip


def test_an_empty_picture_has_finite_derivatives() -> None:
    # All windows of both poolings are ties, and without biases the embedding has no length.
    model, other = build("siamese-cnn", activation="relu"), items("siamese-cnn")
    for silent in (False, True):
        if silent:
            for name, weight in model.named_parameters():
                if "bias" in name:
                    weight.data.zero_()
        empty = torch.zeros_like(other).requires_grad_()
        for pair in ((empty, other), (other, empty), (empty, empty)):
            logits = model(*pair)
            (slope,) = torch.autograd.grad(logits[:, 1].sum(), empty, create_graph=True)
            flat = silent or pair[0] is pair[1]  # a cosine of 1 cannot rise
            assert bool((slope.abs() < 1e-15).all()) == flat
            by = [empty, *model.embed.parameters()]
            again = torch.autograd.grad(slope.square().sum(), by, allow_unused=True)
            found = [logits, slope, *(part for part in again if part is not None)]
            assert all(part.isfinite().all() for part in found)


def test_a_tie_in_a_window_goes_to_its_first_place_alone_as_in_company() -> None:
    # Whoever wins, it must not depend on other examples: an empty background is nothing but ties.
    model, x = case("siamese-cnn", activation="relu")
    x[:, 100:500] = 0.0
    x[:, 800:1300] = 0.7
    y = torch.ones(3, dtype=torch.long)
    explain = EXPLAINERS["grad"]
    alone = [explain(model, x[i : i + 1], y[:1]) for i in range(3)]
    torch.testing.assert_close(explain(model, x, y), torch.cat(alone))


@pytest.mark.parametrize("name", ["siamese-cnn", "siamese-gcn"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_single_head_is_scikit_learns(name: str, classes: int) -> None:
    model, x = build(name, classes=classes), items(name, 120)
    with torch.no_grad():
        seen = model.embed(x)
    drawn = seen @ numbers(seen.shape[1], classes, seed=3)
    y = (drawn / drawn.std() + 2 * numbers(120, classes, seed=4)).argmax(-1)
    before = copy.deepcopy(model.state_dict())
    fitted = fit_single_head(model, x, y)
    theirs = LogisticRegression(C=1e4, max_iter=100_000, tol=1e-9).fit(seen.numpy(), y.numpy())
    with torch.no_grad():
        found = fitted.single(fitted.embed(x)).softmax(-1)
    expected = torch.from_numpy(theirs.predict_proba(seen.numpy()))
    # Embeddings hardly differ, so that the loss is flat around its optimum: it tells more.
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)
    losses = [float(-p[range(120), y].log().mean()) for p in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=5e-5)
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)
        assert torch.equal(fitted.state_dict()[key], value) == ("single" not in key)
    assert all(weight.requires_grad for weight in fitted.parameters())


def test_a_single_head_of_other_classes_is_refused() -> None:
    model = build("siamese-gcn")
    two = torch.arange(3) % 2
    assert "3 classes" in refusal(lambda: fit_single_head(model, items("siamese-gcn"), two))
    assert "two or more" in refusal(lambda: Siamese(nn.Identity(), 3, 1))


# --- graph convolutions ---


@pytest.fixture(scope="module")
def dense() -> Any:
    """The dense layers of PyTorch Geometric."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # names that torch is leaving behind
        import torch_geometric.nn.dense
    return torch_geometric.nn.dense


def adjacencies(count: int = 4, *, signed: bool = False) -> Tensor:
    drawn = numbers(count, NODES, NODES)
    found = (drawn + drawn.transpose(1, 2)) / 2
    return found if signed else found.abs()


@pytest.mark.parametrize("signed", [False, True])
def test_a_graph_convolution_is_pytorch_geometrics(dense: Any, signed: bool) -> None:
    # Theirs, too, overwrites the diagonal and lets no degree fall below 1.
    theirs, ours = dense.DenseGCNConv(3, 6).double(), DenseGCN(3, 6).double()
    ours.load_state_dict({"weight": theirs.lin.weight, "bias": numbers(6)})
    theirs.bias.data.copy_(numbers(6))
    x, adjacency = numbers(4, NODES, 3, seed=2), adjacencies(signed=signed)
    found = ours(propagation(adjacency), x)
    torch.testing.assert_close(found, theirs(x, adjacency))
    torch.testing.assert_close(ours.pooled(propagation(adjacency), x), found.mean(1))


@pytest.mark.parametrize("normalise", ["clamped", "absolute", "none"])
def test_a_propagation_matches_its_definition(normalise: Normalise) -> None:
    adjacency = adjacencies(signed=True)
    degrees: dict[str, Callable[[list[float]], float]] = {
        "clamped": lambda row: max(1.0, sum(row)),
        "absolute": lambda row: sum(map(abs, row)),
        "none": lambda row: 1.0,
    }
    for matrix, found in zip(adjacency, propagation(adjacency, normalise), strict=True):
        looped = matrix.tolist()
        for i in range(NODES):
            looped[i][i] = 1.0
        d = [degrees[normalise](row) for row in looped]
        slow = [[looped[i][j] / math.sqrt(d[i] * d[j]) for j in range(NODES)] for i in range(NODES)]
        torch.testing.assert_close(found, torch.tensor(slow, dtype=torch.float64))


@pytest.mark.parametrize("features", ["identity", "rows"])
def test_an_embedding_is_two_of_pytorch_geometrics_layers(dense: Any, features: Any) -> None:
    embed = build("siamese-gcn", node_features=features, normalise="clamped").embed
    triangles = items("gcn")
    matrices = torch.zeros(3, NODES, NODES, dtype=torch.float64)
    for example in range(3):
        place = 0
        for i in range(NODES):
            for j in range(i + 1, NODES):
                matrices[example, i, j] = matrices[example, j, i] = triangles[example, place]
                place += 1
    layers = dense.DenseGCNConv(NODES, 7).double(), dense.DenseGCNConv(7, 4).double()
    for theirs, ours in zip(layers, (embed.first, embed.second), strict=True):
        theirs.lin.weight.data.copy_(ours.weight)
        theirs.bias.data.copy_(ours.bias.data.copy_(numbers(len(ours.bias))))
    own = torch.eye(NODES, dtype=torch.float64).expand(3, -1, -1)
    x = layers[0](matrices if features == "rows" else own, matrices).relu()
    expected = layers[1](x, matrices).mean(1)
    torch.testing.assert_close(embed(triangles), expected)


@pytest.mark.parametrize("normalise", ["clamped", "absolute", "none"])
@pytest.mark.parametrize("features", ["identity", "rows"])
def test_a_graph_network_has_its_two_derivatives(normalise: Any, features: Any) -> None:
    embed = build(
        "siamese-gcn", node_features=features, normalise=normalise, activation="tanh"
    ).embed
    x = items("gcn", 2).requires_grad_()
    assert gradcheck(embed, x)
    assert gradgradcheck(embed, x)


@pytest.mark.parametrize("normalise", ["clamped", "absolute", "none"])
def test_a_network_without_edges_has_finite_derivatives(normalise: Any) -> None:
    model = build("siamese-gcn", normalise=normalise)
    empty = torch.zeros(3, EDGES, dtype=torch.float64, requires_grad=True)
    logits = model(empty, items("gcn"))
    (slope,) = torch.autograd.grad(logits[:, 1].sum(), empty, create_graph=True)
    again = torch.autograd.grad(slope.square().sum(), [empty, *model.embed.parameters()])
    assert all(part.isfinite().all() for part in (logits, slope, *again))


def test_unknown_choices_are_refused() -> None:
    assert "degrees are one of" in refusal(lambda: build("gcn", normalise="some")(items("gcn")))
    assert "node features are one of" in refusal(lambda: build("gcn", node_features="some"))
    assert "two nodes" in refusal(lambda: GCNEmbedding(1))


# --- promises of every model ---


@every_model
@pytest.mark.parametrize("explain", [*map(brief, slopes().values())], ids=slopes())
def test_an_example_is_explained_alone(name: str, explain: Explainer) -> None:
    (model, x), y = case(name), torch.arange(3) % 2
    alone = [explain(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
    together = explain(model, x.requires_grad_(), y)
    torch.testing.assert_close(together, torch.cat(alone))
    assert together.isfinite().all()
    (slopes,) = torch.autograd.grad(together[0].sum(), x)
    assert slopes[0].any()
    assert not slopes[1:].any()


@every_model
def test_weights_come_from_the_stream_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    once, again, other = (build(name, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, again[key]) for key, value in once.items())
    # Alike means the same from the start: what a cosine is multiplied by is not drawn.
    assert once.pop("classifier.weight", torch.tensor([[-1.0], [1.0]])).tolist() == [[-1.0], [1.0]]
    assert not once.pop("classifier.bias", torch.zeros(2)).any()
    zero = {key for key, value in once.items() if not value.any()}
    assert zero == {key for key in once if "bias" in key and ("first" in key or "second" in key)}
    assert not any(torch.equal(once[key], other[key]) for key in once.keys() - zero)


def test_convolutions_are_drawn_as_their_libraries_draw_them(dense: Any) -> None:
    # Of torch's: uniform within +-1/sqrt(inputs). Of PyTorch Geometric's: +-sqrt(6/(in + out)).
    pictures, graphs = MODELS["siamese-cnn"].build, MODELS["gcn"].build
    _, _, _, layer, *_ = pictures(generator=stream(0, "test")).embed  # type: ignore[misc]
    assert isinstance(layer, nn.Conv2d)
    first = graphs(nodes=20, generator=stream(0, "test"))[0].first  # type: ignore[index]
    theirs = dense.DenseGCNConv(20, 256).lin
    cases = [(layer, nn.Conv2d(8, 16, 3), 72**-0.5), (first, theirs, (6 / 276) ** 0.5)]
    for drawn, own, bound in cases:
        assert 0.95 * bound < own.weight.abs().max() <= bound
        uniform = stats.uniform(-bound, 2 * bound).cdf
        assert stats.kstest(drawn.weight.detach().flatten(), uniform).pvalue > 0.01
    assert layer.bias is not None
    assert 0.5 * 72**-0.5 < layer.bias.abs().max() <= 72**-0.5


@every_model
def test_a_saved_model_is_built_again(name: str, tmp_path: Path) -> None:
    model, x = case(name)
    bare = model.model if isinstance(model, Pairs) else model
    recipe = {"model": {"name": name, **PLANS[name]}}
    found, told = load(save(tmp_path / "model.safetensors", bare, recipe))
    assert told == recipe
    again = Pairs(found, ITEMS[name]) if isinstance(found, Siamese) else found
    assert torch.equal(again(x), model(x))


@every_model
def test_kinks_can_be_rounded(name: str) -> None:
    model, x = case(name, activation="relu")
    smooth = softened(model, 1e4)
    assert smooth is not None
    assert not any(isinstance(part, nn.ReLU) for part in smooth.modules())
    torch.testing.assert_close(smooth(x), model(x), rtol=0, atol=1e-2)


# --- smooth pooling ---


@pytest.mark.parametrize(
    ("size", "stride", "rho"), [((2, 2), (2, 2), 3.0), ((3, 2), (1, 2), 0.5), ((3, 3), (3, 3), 8.0)]
)
def test_smooth_pooling_matches_its_formula_window_by_window(
    size: tuple[int, int], stride: tuple[int, int], rho: float
) -> None:
    x = numbers(2, 3, 7, 8, seed=1)
    found = SmoothPool2d(size, stride, rho)(x)
    rows, columns = ((whole - each) // step + 1
                     for whole, each, step in zip((7, 8), size, stride, strict=True))  # fmt: skip
    assert found.shape == (2, 3, rows, columns)
    for b, c, i, j in torch.ones(found.shape).nonzero().tolist():
        top, left = i * stride[0], j * stride[1]
        window = x[b, c, top : top + size[0], left : left + size[1]].flatten().tolist()
        mean = sum(math.exp(rho * each) for each in window) / len(window)
        assert found[b, c, i, j].item() == pytest.approx(math.log(mean) / rho, abs=1e-12)


def test_smooth_pooling_lies_between_mean_and_largest() -> None:
    x = numbers(2, 3, 6, 6, seed=1)
    largest, mean = nn.MaxPool2d(3)(x), nn.AvgPool2d(3)(x)
    for rho in (0.1, 1.0, 8.0):
        found = SmoothPool2d((3, 3), (3, 3), rho)(x)
        assert (found > mean).all()
        assert (found < largest).all()
        assert (found > largest - math.log(9) / rho).all()
    sharp, blunt = (SmoothPool2d((3, 3), (3, 3), rho)(x) for rho in (1e5, 1e-6))
    torch.testing.assert_close(sharp, largest, rtol=0, atol=1e-4)
    torch.testing.assert_close(blunt, mean, rtol=0, atol=1e-5)
    # Neither overflows nor moves what is the same all over a window.
    flat = torch.full((1, 1, 3, 3), 500.0)
    assert SmoothPool2d((3, 3), (3, 3), 8.0)(flat).item() == pytest.approx(500.0)


def test_smooth_pooling_has_both_derivatives() -> None:
    x = numbers(1, 1, 4, 4, seed=1).requires_grad_()
    pool = SmoothPool2d((2, 2), (2, 2), 3.0)
    assert gradcheck(pool, x)
    assert gradgradcheck(pool, x)


def test_a_plan_with_pooling_has_no_max_pooling_and_the_same_weights(tmp_path: Path) -> None:
    kinked = build("siamese-cnn")
    smooth = with_smooth_pooling(kinked, 4.0)
    pools = [part for part in smooth.modules() if isinstance(part, SmoothPool2d)]
    assert [(each.size, each.stride, each.sharpness) for each in pools] == [
        ((2, 2), (2, 2), 4.0),
        ((3, 3), (3, 3), 4.0),
    ]
    assert not any(isinstance(part, nn.MaxPool2d) for part in smooth.modules())
    assert any(isinstance(part, nn.MaxPool2d) for part in kinked.modules())
    plan = {"name": "siamese-cnn", **PLANS["siamese-cnn"], "pooling": 4.0}
    again, told = load(save(tmp_path / "model.safetensors", smooth, {"model": plan}))
    assert told == {"model": plan}
    a, b = items("siamese-cnn"), items("siamese-cnn", seed=2)
    assert torch.equal(again(a, b), smooth(a, b))
    assert not torch.allclose(kinked(a, b), smooth(a, b))


def test_poolings_that_cannot_be_replaced_are_refused() -> None:
    told = refusal(lambda: with_smooth_pooling(nn.Sequential(nn.MaxPool2d(3, padding=1)), 4.0))
    assert "padding" in told
    assert "none among its Linear" in refusal(lambda: with_smooth_pooling(nn.Linear(2, 2), 4.0))
