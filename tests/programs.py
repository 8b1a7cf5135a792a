"""Random networks of every operation that has a bound.

An entry of `OPERATIONS` makes one step of a network for numbers of a given shape; `program` puts
steps together at random and draws what is asked about them. All weights come from the seed.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from breaking import Case
from certified import NETWORKS
from r2et.models.smoothing import SoftLeaky

MOST = 72
"""How many numbers a step may give at most: what is small is bounded and attacked in no time."""

Shape = tuple[int, ...]
Build = Callable[[Shape, random.Random], nn.Module]
Function = Callable[..., Tensor]


class Call(nn.Module):
    """A function of what comes, and of numbers of its own."""

    def __init__(self, function: Function, *own: Tensor) -> None:
        super().__init__()
        self.function, self.count = function, len(own)
        for place, each in enumerate(own):
            self.register_buffer(f"own{place}", each)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *(getattr(self, f"own{place}") for place in range(self.count)))


class Joined(nn.Module):
    """Two ways from the same numbers, put together."""

    def __init__(self, one: nn.Module, other: nn.Module, join: Function) -> None:
        super().__init__()
        self.one, self.other, self.join = one, other, join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.one(x), self.other(x))


@dataclass(frozen=True)
class Operation:
    """How a step is built, and for how many dimensions of an example it is."""

    build: Build
    dims: tuple[int, ...] = (1, 2, 3)


def of(function: Function, *dims: int) -> Operation:
    """A step that calls a function without numbers of its own."""
    return Operation(lambda shape, draw: Call(function), dims or (1, 2, 3))


def with_numbers(
    function: Function, *sizes: Callable[[Shape], Shape], dims: Sequence[int] = (1, 2, 3)
) -> Operation:
    """A step that calls a function with normal numbers of given shapes."""
    return Operation(
        lambda shape, draw: Call(function, *(torch.randn(*size(shape)) for size in sizes)),
        tuple(dims),
    )


def layer(build: Callable[[Shape, random.Random], nn.Module], *dims: int) -> Operation:
    """A layer of torch."""
    return Operation(build, dims or (1, 2, 3))


def alike(shape: Shape) -> Shape:
    """Numbers of one example."""
    return shape


def square_matrix(shape: Shape) -> Shape:
    """A matrix that keeps the last dimension."""
    return (shape[-1], shape[-1])


def last(shape: Shape) -> Shape:
    """One number for each place of the last dimension."""
    return shape[-1:]


def way(shape: Shape, draw: random.Random) -> nn.Module:
    """A short way that keeps the shape: an activation, perhaps with weights before it."""
    bend = draw.choice((torch.tanh, F.softplus, F.relu, torch.sigmoid, F.silu, lambda h: h))
    if draw.random() < 0.5:
        return Call(bend)
    matrix = torch.randn(shape[-1], shape[-1]) / math.sqrt(shape[-1])
    return Call(lambda h, w, bend=bend: bend(h @ w), matrix)


def joined(join: Function) -> Operation:
    """Two short ways put together."""
    return Operation(lambda shape, draw: Joined(way(shape, draw), way(shape, draw), join))


def normalised(shape: Shape, draw: random.Random) -> nn.Module:
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)]
    found = kind(shape[0], affine=draw.random() < 0.7)
    found.running_mean, found.running_var = torch.randn(shape[0]), torch.rand(shape[0]) + 0.3
    if found.affine:
        nn.init.normal_(found.weight)
        nn.init.normal_(found.bias)
    return found


def convolution(**fixed: Any) -> Operation:
    """A convolution with some of its settings given, the others drawn."""

    def build(shape: Shape, draw: random.Random) -> nn.Module:
        settings = {"kernel_size": draw.choice((1, 2, 3)), "bias": draw.random() < 0.7} | fixed
        channels = shape[0] * draw.choice((1, 2))
        if settings.get("groups") == "all":
            settings["groups"] = shape[0]
        return nn.Conv2d(shape[0], channels, **settings)

    return Operation(build, (3,))


def written(change: Callable[[Tensor], object]) -> Operation:
    """A step that writes a copy in place, honestly."""

    def write(h: Tensor) -> Tensor:
        found = h.clone()
        change(found)
        return found

    return of(write)


def assigned(h: Tensor) -> Tensor:
    found = h * 1
    found[:, :2] = torch.tanh(h[:, :2])
    return found


LINEAR: dict[str, Operation] = {
    "linear": layer(lambda s, d: nn.Linear(s[-1], d.randint(2, 8))),
    "linear without bias": layer(lambda s, d: nn.Linear(s[-1], d.randint(2, 8), bias=False)),
    "F.linear": with_numbers(lambda h, w, b: F.linear(h, w, b), square_matrix, last),
    "matmul": with_numbers(lambda h, w: h @ w, square_matrix),
    "mm": with_numbers(torch.mm, square_matrix, dims=(1,)),
    "addmm": with_numbers(lambda h, b, w: torch.addmm(b, h, w), last, square_matrix, dims=(1,)),
    "mv": with_numbers(lambda h, v: (h @ v).unsqueeze(1) + h, last, dims=(1,)),
    "einsum": with_numbers(lambda h, w: torch.einsum("...i,ji->...j", h, w), square_matrix),
    "add a number": of(lambda h: h + 0.7),
    "add numbers": with_numbers(lambda h, a: h + a, alike),
    "torch.add with alpha": with_numbers(lambda h, a: torch.add(h, a, alpha=-2), alike),
    "subtract": with_numbers(lambda h, a: h - a, alike),
    "subtract from": with_numbers(lambda h, a: a - h, alike),
    "subtract from a number": of(lambda h: 1 - h),
    "multiply by a number": of(lambda h: h * -1.7),
    "multiply by numbers": with_numbers(lambda h, a: h * a, alike),
    "multiply along a dimension": with_numbers(lambda h, a: h * a, last),
    "addcmul": with_numbers(lambda h, a, b: torch.addcmul(a, h, b), alike, alike),
    "divide by a number": of(lambda h: h / 1.9),
    "divide by numbers": with_numbers(lambda h, a: h / (a.abs() + 0.5), alike),
    "negate": of(torch.neg),
    "batch norm": layer(normalised),
    "dropout": layer(lambda s, d: nn.Dropout(0.5)),
    "dropout of channels": layer(lambda s, d: nn.Dropout2d(0.5), 3),
    "identity": layer(lambda s, d: nn.Identity()),
    "clone": of(torch.clone),
    "contiguous": of(lambda h: h.contiguous()),
    "less its mean": of(lambda h: h - h.mean(-1, keepdim=True)),
    "sum kept": of(lambda h: h + h.sum(-1, keepdim=True)),
    "cumulated": of(lambda h: h.cumsum(-1)),
}  # fmt: skip

SHAPES: dict[str, Operation] = {
    "slice": of(lambda h: h[:, 1:]),
    "slice by twos": of(lambda h: h[:, ::2]),
    "slice of the last dimension": of(lambda h: h[..., :-1]),
    "narrow": of(lambda h: h.narrow(1, 0, 2)),
    "select": of(lambda h: h.select(1, 1), 2, 3),
    "chunk": of(lambda h: h.chunk(2, 1)[0]),
    "split": of(lambda h: h.split(2, 1)[0]),
    "unbind": of(lambda h: h.unbind(1)[0], 2, 3),
    "index_select": of(lambda h: h.index_select(1, torch.tensor([1, 0, 1]))),
    "indexed by a list": of(lambda h: h[:, [1, 0]]),
    "flip": of(lambda h: h.flip(-1)),
    "roll": of(lambda h: h.roll(1, -1)),
    "cat with itself": of(lambda h: torch.cat([h, h * 2], 1)),
    "cat with numbers": with_numbers(
        lambda h, a: torch.cat([h, a.expand(h.shape[0], *a.shape)], 1), alike
    ),
    "stack": of(lambda h: torch.stack([h, -h], 1), 1, 2),
    "stack and sum": of(lambda h: torch.stack([h, h * 3], 1).sum(1)),
    "transpose": of(lambda h: h.transpose(1, 2), 2, 3),
    "permute": of(lambda h: h.permute(0, 3, 1, 2), 3),
    "reshape": of(lambda h: h.reshape(h.shape[0], -1)),
    "view": of(lambda h: h.contiguous().view(h.shape[0], -1)),
    "flatten": layer(lambda s, d: nn.Flatten()),
    "unflatten": of(lambda h: h.unsqueeze(1)),
    "unsqueeze and squeeze": of(lambda h: h.unsqueeze(1).squeeze(1)),
    "expand": of(lambda h: h.unsqueeze(2).expand(-1, -1, 2).flatten(1), 1),
    "repeat": of(lambda h: h.repeat(1, 2), 1),
    "sum": of(lambda h: h.sum(1), 2, 3),
    "mean": of(lambda h: h.mean(-1), 2, 3),
    "mean of pixels": of(lambda h: h.mean((2, 3)), 3),
    "pad": of(lambda h: F.pad(h, (1, 1))),
}  # fmt: skip

BENDS: dict[str, Operation] = {
    "ReLU": layer(lambda s, d: nn.ReLU()),
    "ReLU in place": layer(lambda s, d: nn.Sequential(Call(torch.clone), nn.ReLU(inplace=True))),
    "F.relu": of(F.relu),
    "LeakyReLU": layer(lambda s, d: nn.LeakyReLU(d.choice((0.01, 0.2, 0.5)))),
    "F.leaky_relu": of(lambda h: F.leaky_relu(h, 0.3)),
    "Softplus": layer(lambda s, d: nn.Softplus(d.choice((0.5, 1.0, 3.0)))),
    "F.softplus": of(lambda h: F.softplus(h, beta=2)),
    "rounded LeakyReLU": layer(lambda s, d: SoftLeaky(4.0, 0.1)),
    "Sigmoid": layer(lambda s, d: nn.Sigmoid()),
    "Tanh": layer(lambda s, d: nn.Tanh()),
    "torch.tanh": of(torch.tanh),
    "SiLU": layer(lambda s, d: nn.SiLU()),
    "GELU": layer(lambda s, d: nn.GELU()),
    "square": of(torch.square),
    "power of two": of(lambda h: h**2),
    "product with itself": of(lambda h: h * h),
    "tanh_": written(lambda h: h.tanh_()),
    "sigmoid_": written(lambda h: h.sigmoid_()),
    "written in a view": written(lambda h: h[:, :1].tanh_()),
    "added in place": written(lambda h: h.mul_(2).add_(0.3)),
    "columns assigned": of(assigned),
}  # fmt: skip

BRANCHES: dict[str, Operation] = {
    "residual": Operation(lambda s, d: Joined(nn.Identity(), way(s, d), torch.add)),
    "sum of two ways": joined(lambda a, b: a + b),
    "difference of two ways": joined(lambda a, b: a - b),
    "product of two ways": joined(lambda a, b: a * b),
    "gate": Operation(
        lambda s, d: Joined(way(s, d), way(s, d), lambda a, b: a * torch.sigmoid(b))
    ),
    "two ways side by side": joined(lambda a, b: torch.cat([a, b], 1)),
    "product with a sum": joined(lambda a, b: a * b.sum(-1, keepdim=True)),
}  # fmt: skip

PICTURES: dict[str, Operation] = {
    "convolution": convolution(),
    "convolution with stride": convolution(stride=2),
    "convolution with padding": convolution(kernel_size=3, padding=1),
    "convolution with one-sided padding": convolution(kernel_size=3, padding=(1, 0)),
    "convolution to the same size": convolution(kernel_size=2, padding="same"),
    "convolution with holes": convolution(kernel_size=2, dilation=2),
    "convolution by channels": convolution(groups="all"),
    "F.conv2d": Operation(
        lambda s, d: Call(lambda h, w: F.conv2d(h, w), torch.randn(2, s[0], 2, 2)), (3,)
    ),
    "max pooling": layer(lambda s, d: nn.MaxPool2d(2), 3),
    "max pooling with overlap": layer(lambda s, d: nn.MaxPool2d(2, stride=1), 3),
    "F.max_pool2d": of(lambda h: F.max_pool2d(h, 2), 3),
    "average pooling": layer(lambda s, d: nn.AvgPool2d(2), 3),
    "average pooling with padding": layer(lambda s, d: nn.AvgPool2d(2, padding=1), 3),
    "average pooling, padding not counted": layer(
        lambda s, d: nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), 3
    ),
    "average pooling with ceil": layer(lambda s, d: nn.AvgPool2d(2, ceil_mode=True), 3),
    "adaptive pooling": layer(lambda s, d: nn.AdaptiveAvgPool2d(d.choice((1, 2, 3))), 3),
    "sum of channels": of(lambda h: h.sum(1, keepdim=True), 3),
}

OPERATIONS: dict[str, Operation] = {**LINEAR, **SHAPES, **BENDS, **BRANCHES, **PICTURES}
"""All steps, by name."""

STEEP = ("square", "power of two", "product with itself", "product of two ways",
         "product with a sum", "divide by numbers")  # fmt: skip


@dataclass
class Draft:
    """A network on its way: its steps, their names, and the shape that they give."""

    start: Shape
    draw: random.Random
    steps: list[nn.Module] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        """What an example is after all steps."""
        x = torch.zeros(3, *self.start)
        with torch.no_grad():
            for step in self.steps:
                x = step.eval()(x)
        return tuple(x.shape[1:])

    def add(self, name: str) -> bool:
        """Whether a step of a name could follow: of the right dimensions, and not too large."""
        operation, shape = OPERATIONS[name], self.shape
        steep = name in STEEP and sum(each in STEEP for each in self.names) >= 2
        if len(shape) not in operation.dims or steep:
            return False
        try:
            self.steps.append(operation.build(shape, self.draw))
            if 2 <= math.prod(self.shape) <= MOST:
                self.names.append(name)
                return True
        except (RuntimeError, ValueError, IndexError):
            pass  # too small a picture for such a kernel, too few columns to take one away
        self.steps.pop()
        return False

    def finished(self, classes: int) -> nn.Module:
        """The network, with a linear layer at its end."""
        head = nn.Linear(math.prod(self.shape), classes)
        nn.init.normal_(head.weight, std=0.7)
        return nn.Sequential(*self.steps, nn.Flatten(), head).double().eval()


def program(
    seed: int,
    featured: str | None = None,
    *,
    without: frozenset[str] = frozenset(),
    rows: int = 3,
    **settings: Any,
) -> Case:
    """A random network, its inputs and what is asked; short, and with one step named, if one is.

    Steps named in `without` are not drawn.
    """
    draw = random.Random(f"{seed} {featured}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(48))
        draft = _featuring(draw, featured) if featured else _drawn(draw, without)
        model = draft.finished(draw.choice((2, 2, 3)) if featured else draw.choice((2, 2, 3, 5, 1)))
        x = torch.randn(rows, *draft.start, dtype=torch.float64)
        asked = _asked(draw, draft.start, model, rows)
    return Case(
        name=f"program {seed}" + (f" of {featured}" if featured else ""),
        model=model,
        x=x,
        settings=asked | settings,
        parts=(featured,) if featured else tuple(dict.fromkeys(draft.names)),
    )


def _start(draw: random.Random, dims: tuple[int, ...]) -> Shape:
    """An example of a table, or a small picture where only that will do and now and then."""
    if 1 in dims and (3 not in dims or draw.random() < 0.7):
        return (draw.randint(4, 8),)
    return (draw.randint(1, 2), draw.randint(4, 5), 4)


def _featuring(draw: random.Random, name: str) -> Draft:
    """A step of a name, something before it in a table, and a bend behind it."""
    dims = OPERATIONS[name].dims
    for _ in range(100):
        draft = Draft(_start(draw, dims), draw)
        if len(draft.start) == 1:
            draft.add("linear")
        if draft.add(name) and draft.add(draw.choice(("Tanh", "Softplus", "ReLU", "F.softplus"))):
            return draft
    raise AssertionError(f"no network with {name} was found")


def _drawn(draw: random.Random, without: frozenset[str]) -> Draft:
    """One to six steps at random."""
    every = [name for name in OPERATIONS if name not in without]
    bends = [name for name in BENDS if name not in without]
    draft, wanted = Draft(_start(draw, (1, 3)), draw), draw.randint(1, 6)
    while len(draft.names) < wanted:
        # Every third step bends: a row of linear ones is one linear step.
        draft.add(draw.choice(bends if draw.random() < 0.35 else every))
    return draft


def _asked(draw: random.Random, start: Shape, model: nn.Module, rows: int) -> dict[str, Any]:
    """What is asked of a certificate: k, the norm, the score, and sometimes the rest."""
    n = math.prod(start)
    classes = model[-1].out_features  # type: ignore[index,union-attr]
    asked: dict[str, Any] = {
        "k": draw.randint(1, min(n - 1, 6)),
        "norm": draw.choice(("l2", "linf")),
        "of": draw.choice(("probability", "probability", "logit", "margin")),
    }
    if draw.random() < 0.2:
        columns = draw.sample(range(n), min(n, 3))
        asked["one_hot"] = [columns]
    if draw.random() < 0.25:
        asked["scale"] = torch.rand(start, dtype=torch.float64) * (torch.rand(start) < 0.8)
    if draw.random() < 0.3:
        asked["y"] = torch.randint(max(classes, 2), (rows,))
    return asked


def small_relu(seed: int, rows: int = 3, **settings: Any) -> Case:
    """A network of one hidden layer of a few (Leaky)ReLUs, whose exact radii are known."""
    draw = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        d, hidden = draw.randint(3, 7), draw.randint(2, 7)
        bend = draw.choice((nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.5)))
        model = nn.Sequential(nn.Linear(d, hidden), bend, nn.Linear(hidden, 2)).double().eval()
        x = torch.randn(rows, d, dtype=torch.float64)
    asked = {"k": draw.randint(1, min(d - 1, 3)), "norm": draw.choice(("l2", "linf"))}
    return Case(
        name=f"small network {seed}",
        model=model,
        x=x,
        settings=asked | settings,
        parts=("cells of a small network",),
    )


def whole(name: str, seed: int, rows: int = 3, **settings: Any) -> Case:
    """A network of the tests of certificates."""
    shape, build = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build().double().eval()
        x = torch.randn(rows, *shape, dtype=torch.float64)
    return Case(
        name=f"{name} {seed}", model=model, x=x, settings={"k": 3} | settings, parts=(name,)
    )
