"""Networks trained for a moment on real data."""

from dataclasses import replace
from functools import cache

from torch import Tensor, nn

from r2et.core.rng import stream
from r2et.data import Part, Split, load
from r2et.explainers import predicted
from r2et.methods import METHODS, Method
from r2et.models import MODELS
from r2et.training.settings import FitSettings
from r2et.training.trainer import fit


@cache
def adult_network(
    *, rows: int, epochs: int, least_auc: float, examples: int
) -> tuple[nn.Module, Tensor, Tensor]:
    """A LeakyReLU network trained on some of Adult, and test examples of it."""
    split = load("adult").split(0)

    def first(part: Part, count: int) -> Part:
        return replace(part, rows=part.rows[:count], x=part.x[:count], y=part.y[:count])

    model, history = fit(
        MODELS["mlp"].build(28, 2, generator=stream(0, "test")),
        first(split.train, rows),
        first(split.valid, 1000),
        Method(),
        FitSettings(epochs=epochs, batch=256),
    )
    assert history[-1].valid_auc > least_auc
    model = model.double().eval()
    x = split.test.x[:examples].double()
    return model, x, predicted(model, x)


@cache
def smooth_adult_network() -> tuple[Split, nn.Module]:
    """A softplus network trained on all of Adult to keep its top 8 apart, and its split."""
    split = load("adult").split(0)
    method = replace(
        METHODS["r2et-noh"].build(k=8, thickness=0.15, gap="normalised"),
        prepare=METHODS["sp"].build(k=8, rho=2.0).prepare,
    )
    settings = FitSettings(epochs=30, batch=1024, learning_rate=0.02, schedule="cosine")
    network = MODELS["mlp"].build(28, 2, generator=stream(0, "init"))
    model, _ = fit(network, split.train, split.valid, method, settings)
    return split, model.double().eval()
