"""The curvature of an explanation as a penalty, against its finite difference row by row."""

import torch

from closed_form import numbers, tiny_mlp
from r2et.explainers import Gradient, GradientTimesInput, gradient, input_gradient, predicted
from r2et.methods import METHODS
from r2et.methods.method import BatchContext, estimated_bend


def test_the_bend_of_an_explanation_is_taken_along_the_signs_of_the_gradient() -> None:
    # ||I(x + kappa v) - I(x)|| / kappa with v = sign(g) / ||sign(g)||, g the signed gradient. The
    # absolute gradient has no signs of its own: along its own all inputs would rise.
    model, x, kappa = tiny_mlp(), numbers(5, 6), 0.3
    y = predicted(model, x)
    for explain in (gradient, Gradient(form="normalised"), GradientTimesInput(form="signed")):
        found = estimated_bend(kappa, explain, "explanation")(BatchContext(model, x))
        for row in range(5):
            one, c = x[row : row + 1], y[row : row + 1]
            signs = input_gradient(model, one, c).detach().sign()
            assert set(signs.flatten().tolist()) == {-1.0, 1.0}
            moved = one + kappa * signs / signs.norm()
            change = explain(model, moved, c) - explain(model, one, c)
            torch.testing.assert_close(found[row], change.detach().norm() / kappa)


def test_a_share_of_a_batch_stands_for_all_of_it() -> None:
    # The first 3 of 10 count 10 / 3 times, the others not at all: the mean is that of the three.
    model, x = tiny_mlp(), numbers(10, 6)
    whole = estimated_bend(0.3)(BatchContext(model, x))
    some = estimated_bend(0.3, share=0.3)(BatchContext(model, x))
    torch.testing.assert_close(some[:3], whole[:3] * 10 / 3)
    assert (some[3:] == 0).all()
    torch.testing.assert_close(some.mean(), whole[:3].mean())


def test_methods_hand_the_choice_on() -> None:
    model, x = tiny_mlp(), numbers(5, 6)
    explain = Gradient(form="normalised")
    for name in ("est-h", "r2et"):
        settings = {"curvature": 0.5, "kappa": 0.3, "bend": "explanation", "share": 0.6}
        method = METHODS[name].build(k=2, explain=explain, **settings)
        weight, penalty = {each: (w, p) for each, w, p in method.penalties}["curvature"]
        assert weight == 0.5
        expected = estimated_bend(0.3, explain, "explanation", 0.6)(BatchContext(model, x))
        torch.testing.assert_close(penalty(BatchContext(model, x)), expected)
