import math

import pytest
import torch

from closed_form import numbers
from r2et.core.ranking import top_k_mask
from r2et.metrics.individuality import kappa, most_individual, overlap
from refusals import refusal

K = 3


def shared(saliency: torch.Tensor, i: int, j: int) -> float:
    """What two people have in common of their top k, straight from the definition."""
    tops = [set(row.nonzero().flatten().tolist()) for row in top_k_mask(saliency, K)]
    return len(tops[i] & tops[j]) / K


def test_overlap_is_the_mean_over_pairs() -> None:
    saliency = numbers(12, 7).abs()
    pairs = [shared(saliency, i, j) for i in range(12) for j in range(12) if i != j]
    assert overlap(saliency, K) == pytest.approx(sum(pairs) / len(pairs))


def test_overlap_within_classes_is_averaged_over_people() -> None:
    saliency, classes = numbers(12, 7).abs(), torch.tensor([0] * 7 + [1] * 4 + [2])
    people = []
    for i in range(11):  # the last one is alone in its class
        others = [j for j in range(12) if j != i and classes[j] == classes[i]]
        people.append(sum(shared(saliency, i, j) for j in others) / len(others))
    assert overlap(saliency, K, classes) == pytest.approx(sum(people) / 11)


def test_a_list_for_everybody_is_shared_wholly_and_one_for_each_class_within_it() -> None:
    lists = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]])
    classes = torch.tensor([0, 0, 0, 1, 1, 1])
    assert overlap(lists[[0] * 6], K) == 1
    assert overlap(lists[classes], K, classes) == 1
    assert overlap(lists[classes], K) == pytest.approx(2 / 5)  # of five others, two are alike


def test_who_has_nobody_to_be_compared_with_has_no_overlap() -> None:
    saliency = numbers(2, 5).abs()
    assert overlap(saliency[:1], K) is None
    assert overlap(saliency, K, torch.tensor([0, 1])) is None


def test_kappa_is_what_stays_beyond_what_is_shared() -> None:
    assert kappa(1.0, 0.4) == 1
    assert kappa(0.4, 0.4) == 0
    assert math.isclose(kappa(0.1, 0.4) or 0, -0.5)
    assert kappa(1.0, 1.0) is None


# --- what nobody can have ---


@pytest.mark.parametrize("seed", range(4))
def test_chains_of_people_whose_moves_meet_bound_individuality(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.cat(
        [8 * torch.rand(30, 2, generator=draw), torch.randint(2, (30, 1), generator=draw)], 1
    ).double()
    widths = torch.tensor([0.4, 0.3, 0.0]).double()
    # Slowly: join whoever is near, until nothing changes.
    chain = list(range(30))
    for _ in range(30):
        for i in range(30):
            for j in range(30):
                if bool(((x[i] - x[j]).abs() <= 2 * widths).all()):
                    chain[i] = chain[j] = min(chain[i], chain[j])
    apart = sum(chain[i] != chain[j] for i in range(30) for j in range(30) if i != j)
    assert most_individual(x, widths) == pytest.approx(apart / (30 * 29))


def test_certified_reasons_are_no_more_individual_than_that() -> None:
    # A rule that is certified by construction: the same reasons in each chain, others elsewhere.
    x, widths = torch.tensor([[0.0], [1.0], [5.0], [6.0], [11.0]]), torch.tensor([0.5])
    saliency = torch.eye(3)[torch.tensor([0, 0, 1, 1, 2])]
    found = overlap(saliency, 1)
    assert found is not None
    assert 1 - found == pytest.approx(most_individual(x, widths))


def test_widths_that_fit_nothing_are_refused() -> None:
    assert "each of 2 columns" in refusal(lambda: most_individual(torch.zeros(3, 2), torch.ones(3)))
    assert ">= 0" in refusal(lambda: most_individual(torch.zeros(3, 1), -torch.ones(1)))
    assert most_individual(torch.zeros(3, 1), torch.zeros(1)) == 0
