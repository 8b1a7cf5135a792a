"""A user's model as a graph of layers in float64, as it predicts."""

import copy
import warnings

from torch import fx, nn

from r2et.models.structured import Structured


class _Tracer(fx.Tracer):
    """Stops at layers of torch and at those of ours that bounds are known for."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a part of the model is one layer of the graph."""
        known = type(m).__module__.startswith(("torch.nn", "r2et.models.smoothing"))
        return known and not isinstance(m, nn.Sequential)


def graph_of(model: nn.Module) -> fx.GraphModule:
    """A copy of the model in float64 and at prediction time, as a graph of its layers.

    The caller's model is not changed. A model whose way depends on its input has no such graph.
    """
    with warnings.catch_warnings():
        # Copies of exported programs go through names that torch itself is leaving behind.
        warnings.simplefilter("ignore", FutureWarning)
        exact = _plain(copy.deepcopy(model).double())
    _at_prediction_time(exact)
    for parameter in exact.parameters():
        parameter.requires_grad_(False)
    if isinstance(exact, fx.GraphModule):
        return exact
    try:
        return fx.GraphModule(exact, _Tracer().trace(exact))
    except Exception as problem:  # tracing runs the model's own code, which may raise anything
        raise ValueError(
            f"the layers of {type(model).__name__} could not be followed ({problem}): certificates "
            "need a forward that takes the same way for every input."
        ) from None


def _at_prediction_time(model: nn.Module) -> None:
    for part in model.modules():
        part.training = False  # an exported program refuses eval(), being fixed already


def _plain(model: nn.Module) -> nn.Module:
    """The model with parts of the package's own that plainer layers can say replaced by them."""
    if isinstance(model, Structured):
        return model.plain()
    for name, part in list(model.named_children()):
        setattr(model, name, _plain(part))
    return model
