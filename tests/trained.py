"""Networks trained for a moment on real data."""

from dataclasses import replace
from functools import cache

from torch import Tensor, nn

from r2et.data import Part, load
from r2et.explainers import predicted
from r2et.models import MODELS
from r2et.objectives import Method
from r2et.randomness import stream
from r2et.training import FitSettings, fit


@cache
def adult_network(
    *, rows: int, epochs: int, least_auc: float, examples: int
) -> tuple[nn.Module, Tensor, Tensor]:
    """A LeakyReLU network trained on some of Adult, and test examples of it."""
    split = load("adult").split(0)

    def first(part: Part, count: int) -> Part:
        return replace(part, rows=part.rows[:count], x=part.x[:count], y=part.y[:count])

    model, history = fit(
        MODELS["mlp"](28, 2, generator=stream(0, "test")),
        first(split.train, rows),
        first(split.valid, 1000),
        Method(),
        FitSettings(epochs=epochs, batch=256),
    )
    assert history[-1].valid_auc > least_auc
    model = model.double().eval()
    x = split.test.x[:examples].double()
    return model, x, predicted(model, x)
