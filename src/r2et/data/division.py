"""How rows and items are divided: by chance, by class, by owner, into folds, and into pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from r2et.core.limits import check_bytes
from r2et.core.rng import stream

Shares = tuple[float, float, float]

Division = Callable[[Tensor, int], Mapping[str, Tensor]]
"""(classes of all rows, seed) -> for "train", "valid" and "test" the rows (P,) or pairs (P, 2)."""

SHARES: Shares = (0.70, 0.15, 0.15)


def part_sizes(rows: int, shares: Shares) -> list[int]:
    """How many rows each part gets: the first two rounded, the last the rest.

    >>> part_sizes(48842, (0.70, 0.15, 0.15))
    [34189, 7326, 7327]
    """
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(
            f"shares must be three positive numbers that add up to 1, got {shares}: "
            f"choose for example (0.70, 0.15, 0.15)."
        )
    train, valid = round(rows * shares[0]), round(rows * shares[1])
    return [train, min(valid, rows - train), max(rows - train - valid, 0)]


def shuffled(y: Tensor, seed: int, *, name: str, shares: Shares) -> dict[str, Tensor]:
    """The rows of each part after a shuffle."""
    order = torch.randperm(len(y), generator=stream(seed, name, "split"))
    sizes = part_sizes(len(y), shares)
    return dict(zip(("train", "valid", "test"), order.split(sizes), strict=True))


def by_class(labels: Tensor, items: Tensor) -> Tensor:
    """The same items, class after class, each class in the given order: like items."""
    return items[labels[items].argsort(stable=True)]


def stratified(
    labels: Tensor, sizes: Sequence[int], generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Places of all items, in parts of these sizes with nearly the same share of each class.

    Within a part the classes take turns, so that the first few of it show all of them.
    """
    order = by_class(labels, torch.randperm(len(labels), generator=generator))
    counts = labels.bincount()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    ranks = torch.arange(len(labels)) - first
    reached = (ranks.double() + 0.5) / counts.repeat_interleave(counts)
    parts: tuple[Tensor, ...] = order[reached.argsort(stable=True)].split(list(sizes))
    return parts


def draw_pairs(
    labels: Tensor, places: Tensor, count: int, generator: torch.Generator, *, name: str
) -> Tensor:
    """Pairs of two different places, the class of either drawn with equal chances: (count, 2)."""
    members = [places[labels[places] == number] for number in range(int(labels.max()) + 1)]
    sizes = torch.tensor([len(each) for each in members])
    if int(sizes.min()) < 2:
        raise ValueError(
            f"pairs of {name} need at least two items of every class in every part, got "
            f"{sizes.tolist()} in one: add items."
        )
    kinds = torch.randint(len(members), (count, 2), generator=generator)
    drawn = torch.rand((count, 2), generator=generator, dtype=torch.float64)
    same = kinds[:, 0] == kinds[:, 1]
    # Of its own class an item has one partner less: those that follow it, round to the one before.
    choices = sizes[kinds] - torch.stack([torch.zeros_like(same), same], 1).long()
    ranks = (drawn * choices).long()
    ranks[same, 1] = (ranks[same, 0] + 1 + ranks[same, 1]) % sizes[kinds[same, 1]]
    return pad_sequence(members, batch_first=True)[kinds, ranks]


def counted_pairs(
    labels: Tensor, seed: int, *, name: str, training: int, counts: tuple[int, int, int]
) -> dict[str, Tensor]:
    """Pairs of places for each part, (count, 2): first those of the first `training` items.

    The other items are shared out between validation and test before pairs are drawn, so that no
    item is in both.
    """
    generator = stream(seed, name, "pairs")
    held_out = len(labels) - training
    valid_size = round(held_out * counts[1] / (counts[1] + counts[2]))
    valid, test = stratified(labels[training:], (valid_size, held_out - valid_size), generator)
    parts = {"train": torch.arange(training), "valid": valid + training, "test": test + training}
    return {
        part: draw_pairs(labels, places, count, generator, name=name)
        for (part, places), count in zip(parts.items(), counts, strict=True)
    }


def hold_out(
    labels: Tensor, seed: int, *, name: str, training: int, share: float
) -> dict[str, Tensor]:
    """Places of each part: a share of the first `training` items to train on, others to validate.

    All items after these are the test part.
    """
    size = round(share * training)
    train, valid = stratified(
        labels[:training], (size, training - size), stream(seed, name, "split")
    )
    return {"train": train, "valid": valid, "test": torch.arange(training, len(labels))}


def share_out(
    labels: Tensor,
    seed: int,
    *,
    name: str,
    patients: Tensor,
    shares: Shares,
) -> dict[str, Tensor]:
    """Places of each part, no two of which share a patient; a patient's first class counts."""
    people, of = patients.unique(return_inverse=True)
    places = torch.arange(len(of))
    first = torch.full((len(people),), len(of)).scatter_reduce(0, of, places, "amin")
    parts = stratified(labels[first], part_sizes(len(people), shares), stream(seed, name, "split"))
    turn = torch.empty_like(first)
    turn[torch.cat(parts)] = torch.arange(len(people))
    order, scans = turn[of].argsort(stable=True), of.bincount()
    sizes = [int(scans[chosen].sum()) for chosen in parts]
    return dict(zip(("train", "valid", "test"), order.split(sizes), strict=True))


# --- folds and their pairs


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """How many folds, training pairs, and partners of each class for a held-out network."""

    folds: int = 5
    train_pairs: int = 4000
    per_class: int = 2

    def __post_init__(self) -> None:
        """Refuse numbers with which some part would have no pairs."""
        if self.folds < 2 or self.train_pairs < 2 or self.per_class < 1:
            raise ValueError(
                "a pairing needs folds >= 2, train_pairs >= 2 and per_class >= 1, got "
                f"{self.folds}, {self.train_pairs} and {self.per_class}."
            )


PAIRING = Pairing()


def folds_of(labels: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """The fold of each item, as equal in size and in classes as can be: (M,).

    Items are dealt class after class, in random order, so that the folds differ by at most one
    item, and by at most one of each class.
    """
    order = by_class(labels, torch.randperm(len(labels), generator=generator))
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels)) % folds
    return fold


def folded_pairs(
    labels: Tensor, seed: int, *, name: str, pairing: Pairing = PAIRING
) -> dict[str, Tensor]:
    """Pairs of items for training, validation and test, (P, 2) each.

    Of one division into folds, stratified by class, each of `folds` consecutive seeds tests
    another: fold `seed % folds` of the division `seed // folds`. An eighth of the other items
    validates, the rest trains. A training pair is of two training items, half of the pairs of one
    class, and no pair comes twice, in whatever order. Of a validation or test pair the first item
    is held out and the second is a training item: each held-out item meets `per_class` different
    training items of every class, as a patient is compared with those in the records.

    Where held-out items are mostly of one class, a model that only remembers the class of the
    training item gains from it: with two classes its AUC is the share of the larger one, but .5 as
    the mean over the pairs of each held-out class.
    """
    number, tested = divmod(seed, pairing.folds)
    fold = folds_of(labels, pairing.folds, stream(number, name, "folds"))
    rest = (fold != tested).nonzero().flatten()
    shuffled = rest[torch.randperm(len(rest), generator=stream(seed, name, "valid"))]
    ordered = by_class(labels, shuffled)
    validates = torch.arange(len(ordered)) % 8 == 0
    train = ordered[~validates].sort().values
    held_out = {
        "valid": ordered[validates].sort().values,
        "test": (fold == tested).nonzero().flatten(),
    }
    check_partners(labels, train, pairing)
    return {"train": training_pairs(labels, train, pairing, stream(seed, name, "pairs"))} | {
        part: held_out_pairs(labels, items, train, pairing, stream(seed, name, "pairs", part))
        for part, items in held_out.items()
    }


def check_partners(labels: Tensor, train: Tensor, pairing: Pairing) -> None:
    """Refuse classes of too few training items to pair a held-out one with."""
    needed = max(pairing.per_class, 2)
    counts = {number: int((labels[train] == number).sum()) for number in labels.unique().tolist()}
    for number, count in counts.items():
        if count < needed:
            raise ValueError(
                f"every class needs at least {needed} training items to make pairs of, but class "
                f"number {number} has {count} of its {int((labels == number).sum())} items there: "
                "add items of that class or leave it out."
            )


def training_pairs(
    labels: Tensor, train: Tensor, pairing: Pairing, generator: torch.Generator
) -> Tensor:
    """Different pairs of training items, as many of one class as of two: (P, 2).

    P is `train_pairs`, or less where there are fewer pairs of either kind than half of that.
    """
    count = len(train) * (len(train) - 1) // 2
    check_bytes(32 * count, f"{count:,} pairs of {len(train):,} items")
    pairs = train[torch.combinations(torch.arange(len(train)))]
    alike = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    half = min(pairing.train_pairs // 2, int(alike.sum()), int((~alike).sum()))
    chosen = torch.cat([drawn(pairs[kind], half, generator) for kind in (alike, ~alike)])
    chosen = drawn(chosen, len(chosen), generator)
    turned = torch.randint(2, (len(chosen), 1), generator=generator).bool()
    return torch.where(turned, chosen.flip(1), chosen)


def drawn(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many different rows in random order: (count, ...)."""
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


def held_out_pairs(
    labels: Tensor, items: Tensor, train: Tensor, pairing: Pairing, generator: torch.Generator
) -> Tensor:
    """Each held-out item with different training items of every class, in random order: (P, 2)."""
    partners = []
    for number in labels.unique().tolist():
        members = train[labels[train] == number]
        draws = torch.rand((len(items), len(members)), generator=generator)
        partners.append(members[draws.argsort(dim=1)[:, : pairing.per_class]])
    second = torch.cat(partners, 1)
    pairs = torch.stack([items[:, None].expand_as(second), second], -1).flatten(0, 1)
    return drawn(pairs, len(pairs), generator)
