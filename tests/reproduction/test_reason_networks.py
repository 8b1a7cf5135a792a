"""Networks beside other models: what they say of cells that are looked up is what they say."""

import numpy as np
import pandas as pd
import pytest
import torch

from r2et.core.rng import stream
from r2et.evaluation.moves import Encoded
from reproduction.reasons.networks import Plan, Tabulated, trained
from reproduction.reasons.tables import Case

PLANS = {
    "numbers": Plan(epochs=1),
    "bands": Plan(bands=True, epochs=1),
    "separate": Plan(bands=True, separate=True, epochs=1),
    "ramp": Plan(thickness=0.1, epochs=1, background=2),
    "separate ramp": Plan(bands=True, separate=True, thickness=0.1, epochs=1, background=2),
}


@pytest.fixture(scope="module")
def case() -> Case:
    draw = stream(0, "people")
    numbers = torch.randint(30, 50, (400, 2), generator=draw).numpy().astype(float)
    words = torch.randint(0, 3, (400, 2), generator=draw).numpy()
    x = pd.DataFrame(numbers, columns=["age", "hours"])
    x.insert(1, "job", np.array(["clerk", "none", "smith"])[words[:, 0]])
    x["town"] = np.array(["east", "north", "west"])[words[:, 1]]
    y = (numbers[:, 0] + 5 * words[:, 0] + words[:, 1] > 47).astype(int)
    moves = {"±2": {"age": 2.0, "hours": 2.0}}
    return Case(x=x, y=y, moves=moves, every=True)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_contributions_that_are_looked_up_are_those_of_all_mixtures(plan: Plan, case: Case) -> None:
    model = trained(plan, case.x, case.y, case)
    assert isinstance(model, Tabulated)
    slow = Encoded(
        encode=lambda rows: model.encode(rows).double().numpy(),
        raw=lambda rows: model.raw(torch.from_numpy(rows).float()),
    )
    # Two people of equal words share a table of places.
    people = pd.concat([case.x[:20], case.x[:20].assign(age=case.x.age[:20] + 2)])
    references = [case.x[20:25], case.x[25:30]]
    np.testing.assert_allclose(model.score(people), slow.score(people), atol=1e-5)
    np.testing.assert_allclose(
        model.contributions(people, references),
        slow.contributions(people, references),
        atol=1e-5,
    )
    assert model.score(people).std() > 0
