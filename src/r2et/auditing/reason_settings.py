"""What is asked of the reasons of each decision of a table, and what its rows may become."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from r2et.actionable.tables import TableMoves, Way, usual_width
from r2et.auditing.config import FeatureSettings
from r2et.core.naming import nearest
from r2et.core.reasons import MOST_MOVES, Side
from r2et.data.features import change_in_words, plain

ONLY = ("all", "declined")
FAVOURABLE = "favourable"  # a reference of rows that are decided so


@dataclass(frozen=True, kw_only=True)
class ReasonSettings:
    """What is asked of each decision.

    The `k` attributes that speak most "against" the decided class, "for" it, or "both" (`side`). Of
    two classes the second is decided where its probability is `threshold` or more. Unless given,
    these are what the model says of itself, or else 3, "against", and .5.

    A number moves by its `width`, in its own units, or, if that is a single number, by so many
    standard deviations of each; unless given by what a model behind bands was made for, or by .05,
    and small whole numbers by 1. Words with a
    price in `exchange` become others, `only_way` says which numbers move in one direction, and
    `immutable` attributes never change.

    With `only` "declined" decisions for another class than the `favourable` one, the second of two
    unless given, are audited; their reasons are what speaks "for" them, unless `side` says
    otherwise. `codes` name what a letter calls an attribute; `protected` ones are flagged where
    they are a reason. Contributions are told against `reference_rows` rows.
    `search` is how many seconds a decision that neither proof nor attack decides is searched, part
    by part of what its numbers may become; 0 leaves it out.
    """

    k: int | None = None
    side: Side | None = None
    threshold: float | None = None
    width: dict[str, float] | float | None = None
    exchange: dict[str, float] = field(default_factory=dict)
    only_way: dict[str, Way] = field(default_factory=dict)
    immutable: tuple[str, ...] = ()
    only: str = "all"
    favourable: str | None = None
    codes: dict[str, str] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    reference_rows: int = 200
    most_moves: int = MOST_MOVES
    attack: str = "strong"
    search: float = 1.0
    rows: int | None = None
    chunk: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        for what, word, known in (
            ("attack", self.attack, ("strong", "none")),
            ("only", self.only, ONLY),
            ("side", self.side, (None, "for", "against", "both")),
        ):
            if word not in known:
                shown = [str(each) for each in known if each is not None]
                raise ValueError(f"unknown {what} {word!r}: {nearest(str(word), shown)}")
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {self.threshold!r}.")
        for name in ("k", "reference_rows", "most_moves", "chunk"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}.")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows!r}.")
        if not 0 <= self.search < math.inf:
            raise ValueError(
                f"search is a number of seconds a decision, 0 or more, got {self.search:g}."
            )
        widths = self.width.values() if isinstance(self.width, Mapping) else [self.width or 0.0]
        for width in widths:
            if not 0 <= width < math.inf:
                raise ValueError(f"a width must be a number >= 0, got {width!r}.")


def with_columns(
    settings: ReasonSettings, columns: Mapping[str, FeatureSettings], known: Mapping[str, str]
) -> ReasonSettings:
    """The settings with what is said about columns, `known` leading from these to attributes.

    What the settings say themselves comes first.
    """
    said = {known[name]: each for name, each in columns.items() if name in known}
    widths = {name: each.width for name, each in said.items() if each.width is not None}
    width = settings.width
    if widths and width is None:
        width = widths
    elif isinstance(width, Mapping):
        width = {**widths, **width}
    elif widths:
        raise ValueError(
            "the settings of columns state widths, and a tolerance of all numbers is given, too: "
            "leave one of them out."
        )
    ways: dict[str, Way] = {
        name: "up" if each.only == "up" else "down" for name, each in said.items() if each.only
    }
    return replace(
        settings,
        width=width,
        exchange={
            **{name: each.exchange for name, each in said.items() if each.exchange is not None},
            **settings.exchange,
        },
        only_way={**ways, **settings.only_way},
        immutable=_joined(
            settings.immutable, [name for name, each in said.items() if each.immutable]
        ),
        codes={
            **{name: each.code for name, each in said.items() if each.code is not None},
            **settings.codes,
        },
        protected=_joined(
            settings.protected, [name for name, each in said.items() if each.protected]
        ),
    )


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def check_names(settings: ReasonSettings, names: Sequence[str]) -> None:
    """Refuse settings about attributes that are not there."""
    given: dict[str, Sequence[str]] = {
        "immutable": settings.immutable,
        "protected": settings.protected,
        "codes": list(settings.codes),
        "exchange": list(settings.exchange),
        "only_way": list(settings.only_way),
        "width": list(settings.width) if isinstance(settings.width, Mapping) else [],
    }
    for what, some in given.items():
        for name in some:
            if name not in names:
                raise ValueError(f"{what} names {name!r}, no attribute: {nearest(name, names)}")


def moves_for(
    settings: ReasonSettings,
    rows: pd.DataFrame,
    words: Mapping[str, tuple[str, ...]],
    usual: Mapping[str, float] | None = None,
) -> TableMoves:
    """What rows like these may become; `words` are the values of the attributes that have such.

    Unless the settings say how far numbers move, the `usual` widths are taken, if there are any.
    """
    if settings.width is None and usual is not None:
        settings = replace(settings, width=dict(usual))
    check_names(settings, [str(name) for name in rows])
    numbers = [str(name) for name in rows if pd.api.types.is_numeric_dtype(rows[name])]
    whole, widths = set(), {}
    for name in numbers:
        known = rows[name].to_numpy(dtype=float)
        known = known[~np.isnan(known)]
        if len(known) and (known == np.round(known)).all():
            whole.add(name)
        widths[name] = _width(settings, name, known, name in whole)
    if isinstance(settings.width, Mapping):
        for name in settings.width:
            if name not in numbers:
                raise ValueError(f"width names {name!r}, no number: {nearest(name, numbers)}")
    for name in settings.exchange:
        if name not in words:
            raise ValueError(f"exchange names {name!r}, no words: {nearest(name, list(words))}")
    still = set(settings.immutable)
    return TableMoves(
        width={name: by for name, by in widths.items() if by > 0 and name not in still},
        whole=frozenset(whole),
        only=settings.only_way,
        exchange={name: by for name, by in settings.exchange.items() if name not in still},
        words={name: words[name] for name in settings.exchange},
    )


def _width(settings: ReasonSettings, name: str, known: NDArray[np.float64], whole: bool) -> float:
    if isinstance(settings.width, Mapping):
        return float(settings.width.get(name, 0.0))
    if settings.width is None:
        return usual_width(known) if len(known) else 0.0
    width = settings.width * float(known.std()) if len(known) else 0.0
    return float(np.floor(width)) if whole else width


def moves_in_words(moves: TableMoves, units: Mapping[str, str]) -> list[str]:
    """What each attribute may become, in words."""
    ways = {"up": "up", "down": "down", None: "up or down"}
    found = [
        f"{name}: {ways[moves.only.get(name)]} by {change_in_words(width, units.get(name, ''))}"
        + (", in whole steps" if name in moves.whole else "")
        for name, width in moves.width.items()
    ]
    found += [
        f"{name}: another of its values, at a price of {plain(price)} of 1"
        for name, price in moves.exchange.items()
    ]
    return found
