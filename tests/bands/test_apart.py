"""Verdicts on sums say what enumerating every move says."""

from itertools import product

import numpy as np
import pytest

from r2et.bands.apart import Choices, judged_apart


def drawn(seed: int, attributes: int, coarse: bool) -> list[Choices]:
    """Attributes with one to four bands; coarse values are often equal."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(attributes):
        bands = int(draw.integers(1, 5))
        score = draw.normal(size=bands)
        value = draw.normal(size=bands) if draw.random() < 0.5 else -score
        if coarse:
            score, value = np.round(score), np.round(value)
        sizes = np.concatenate([[0.0], np.sort(draw.random(bands - 1))])
        found.append(Choices(band=np.arange(bands), value=value, score=score, size=sizes))
    return found


def top(values: list[float], k: int) -> tuple[int, ...]:
    return tuple(np.argsort(-np.array(values), kind="stable")[:k].tolist())


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_as_enumerated(seed: int, coarse: bool) -> None:
    choices, k = drawn(seed, 5, coarse), 1 + seed % 3
    closed = seed % 2 == 0
    constant = 0.3 - sum(each.score[0] for each in choices) if seed % 5 else -0.5
    if coarse:  # whole numbers, whose sums are often 0
        constant = round(constant + 0.7)
    found = judged_apart(choices, k, constant, closed=closed)
    first = set(top([each.value[0] for each in choices], k))
    core, kept, smallest = set(first), k, np.inf
    for places in product(*(range(len(each.band)) for each in choices)):
        chosen = list(zip(choices, places, strict=True))
        score = constant + sum(each.score[at] for each, at in chosen)
        if score > 0 or (closed and score >= 0):
            now = set(top([each.value[at] for each, at in chosen], k))
            core &= now
            kept = min(kept, len(now & first))
            if now != first:
                smallest = min(smallest, max(each.size[at] for each, at in chosen))
    assert set(found.reasons) == first
    assert set(found.core) == core
    assert found.kept == kept
    assert (found.size if found.size is not None else np.inf) == smallest
    if found.change is not None:
        chosen = list(zip(choices, found.change, strict=True))
        assert set(top([each.value[at] for each, at in chosen], k)) != first
        assert max(each.size[at] for each, at in chosen) == found.size
        score = constant + sum(each.score[at] for each, at in chosen)
        assert score > -1e-12
