"""How the numbers of a column are written: decimal commas, thousands, money, per cent, dates.

A column of text is one of numbers if one way of writing fits all of it. `writing_of` finds that way
by the whole column, since a cell alone may not tell: "1,234" is a thousand, or a bit more than one.
What no cell decides is refused. Dates are days since 2000-01-01.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.I)
MONEY = r"[$€£¥₹]|USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN"
SIGNED = re.compile(
    rf"(?P<minus>[+-]?)\s?(?P<before>{MONEY})?\s?(?P<inner>[+-]?)(?P<body>[0-9.,][0-9.,'’\s]*)"
    rf"\s?(?P<after>{MONEY}|%)?"
)
# Thousands are groups of three, all set off alike, and do not begin with a zero.
BODIES = {
    ".": re.compile(
        r"[1-9][0-9]{0,2}(?P<by>[,\s'’])[0-9]{3}(?:(?P=by)[0-9]{3})*(?:\.[0-9]+)?|[0-9]+\.?[0-9]*|\.[0-9]+"
    ),
    ",": re.compile(
        r"[1-9][0-9]{0,2}(?P<by>[.\s'’])[0-9]{3}(?:(?P=by)[0-9]{3})*(?:,[0-9]+)?|[0-9]+,?[0-9]*|,[0-9]+"
    ),
}
YEAR_FIRST = re.compile(
    r"(?P<y>[0-9]{4})(?P<by>[-/.])(?P<m>[0-9]{1,2})(?P=by)(?P<d>[0-9]{1,2})"
    r"(?:[T ](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
    r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?))?"
)
YEAR_LAST = re.compile(r"(?P<a>[0-9]{1,2})(?P<by>[-/.])(?P<b>[0-9]{1,2})(?P=by)(?P<y>[0-9]{4})")
FINER = re.compile(r"(\.[0-9]{6})[0-9]+")  # than microseconds, which pandas shows
ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)
SINCE = "days since 2000-01-01"
LONGEST = 60  # characters of a number
NUMBERS_THAT_TELL = 20  # fewer numbers do not make a column of numbers out of a mixed one
SHARE_THAT_TELLS = 0.9  # of the cells must be numbers to tell a misprint from a word

Order = Literal["year first", "day first", "month first"]


@dataclass(frozen=True, kw_only=True)
class Writing:
    """One way of writing the numbers of a column.

    `decimal` is the mark before decimals and `unit` the sign beside a number, "%" or one of money;
    dates have an `order` instead.
    """

    decimal: str = "."
    unit: str = ""
    order: Order | None = None

    def number(self, text: str) -> float | None:
        """What a cell says, None if it is not written so.

        >>> Writing(decimal=",", unit="€").number("1.234,50 €")
        1234.5
        >>> Writing(order="day first").number("01.03.2000")
        60.0
        """
        if self.order is not None:
            return _days(text, self.order)
        taken = _taken(text)
        if taken is None or not BODIES[self.decimal].fullmatch(taken.body):
            return None
        # Money may stand without its sign; without it, 12 may be 12 % or 1200 %.
        if taken.unit != self.unit and (taken.unit or self.unit == "%"):
            return None
        return taken.value(self.decimal)

    @property
    def measure(self) -> str:
        """The unit of the numbers."""
        return self.unit if self.order is None else SINCE

    @property
    def words(self) -> str:
        """How the column is written."""
        if self.order is not None:
            return f"as dates, the {self.order}"
        said = "a decimal comma" if self.decimal == "," else "a decimal point"
        return f"with {said} and {self.unit}" if self.unit else f"with {said}"

    def notes(self, name: str, texts: Iterable[str]) -> list[str]:
        """A sentence about a column that was read so, with the cell that could most be mistaken."""
        known = {text: value for text in texts if (value := self.number(text)) is not None}
        if not known:
            return []
        example = max(known, key=self._doubtful)
        read = f"{known[example]:.12g} {self.measure}".rstrip()
        return [f"Column {name!r} is written {self.words}, and was read so: {example!r} as {read}."]

    def _doubtful(self, text: str) -> int:
        if self.order is not None or (taken := _taken(text)) is None:
            return 0
        marks = len({",", "."} & {*taken.body})
        return 2 if marks and _fits(taken) == [*BODIES] else int(not taken.plain)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A cell taken apart: its minus, its sign of money or per cent, and the digits between."""

    minus: bool
    unit: str
    body: str
    plain: bool

    def value(self, decimal: str) -> float:
        """The number, by its mark before decimals."""
        digits = "".join(each for each in self.body if each.isdigit() or each == decimal)
        number = float(digits.replace(",", "."))
        return -number if self.minus else number


@lru_cache(maxsize=4096)
def _taken(text: str) -> Taken | None:
    if len(text) > LONGEST:
        return None
    found = SIGNED.fullmatch(text.replace("\N{MINUS SIGN}", "-"))
    if found is None or (found["before"] and found["after"]):
        return None
    if found["minus"] and found["inner"]:
        return None
    return Taken(
        minus="-" in (found["minus"] + found["inner"]),
        unit=found["before"] or found["after"] or "",
        body=found["body"].strip(),
        plain=NUMBER.fullmatch(text) is not None,
    )


def _fits(cell: Taken) -> list[str]:
    """The marks before decimals with which a cell is a number."""
    return [mark for mark, form in BODIES.items() if form.fullmatch(cell.body)]


def _days(text: str, order: Order) -> float | None:
    """Days since 2000-01-01, None if the text is no such date."""
    found = (YEAR_FIRST if order == "year first" else YEAR_LAST).fullmatch(text)
    if found is None:
        return None
    if order == "year first":
        month, day = int(found["m"]), int(found["d"])
    else:
        day, month = int(found["a"]), int(found["b"])
        if order == "month first":
            day, month = month, day
    time = FINER.sub(r"\1", found.groupdict().get("time") or "00:00")
    try:
        then = datetime.fromisoformat(f"{int(found['y']):04d}-{month:02d}-{day:02d}T{time}")
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return (then - ORIGIN).total_seconds() / 86_400


def writing_of(
    name: str,
    texts: Sequence[str],
    *,
    decimal: str | None = None,
    order: Order | None = None,
    sure: bool = False,
    cure: str,
) -> Writing | None:
    """The way in which a column is written, None if its numbers are plain or it is one of words.

    `texts` are its distinct cells, missing ones left out. `decimal` and `order` are what somebody
    said of it; what nobody said and no cell decides is refused, with a `cure` for the reader. Two
    values are two words unless somebody is `sure` that they are numbers.
    """
    stated = decimal == "," or order is not None
    if not texts or (not stated and all(NUMBER.fullmatch(text) for text in texts)):
        return None
    if len(texts) < 3 and not stated and not sure:
        return None
    enough = SHARE_THAT_TELLS * len(texts)
    dates = sum(bool(YEAR_FIRST.fullmatch(it) or YEAR_LAST.fullmatch(it)) for it in texts)
    if dates >= enough or order is not None:
        return _dates(name, texts, order, cure)
    cells = [taken for text in texts if (taken := _taken(text)) is not None]
    fitting = [cell for cell in cells if _fits(cell)]
    strange = [cell for cell in fitting if not cell.plain]
    if len(fitting) < enough or not (strange or stated) or _too_few(fitting, texts):
        return None
    unit = _unit(name, fitting, cure)
    return Writing(decimal=decimal or _decimal(name, texts, cure), unit=unit)


def _too_few(fitting: Sequence[object], texts: Sequence[str]) -> bool:
    """Whether words among so few numbers make all of them words."""
    return len(fitting) < min(len(texts), NUMBERS_THAT_TELL)


def _unit(name: str, cells: Iterable[Taken], cure: str) -> str:
    """The sign beside the numbers, refused if there are several, or per cent beside none."""
    found = {each.unit for each in cells}
    named = sorted(found - {""})
    if len(named) > 1 or ("%" in named and "" in found):
        signs = " and ".join(repr(each) for each in named[:2]) if len(named) > 1 else "'%' and none"
        raise ValueError(
            f"column {name!r} holds numbers with different signs, {signs}: write all alike, or "
            f"{cure}."
        )
    return named[0] if named else ""


def _decimal(name: str, texts: Sequence[str], cure: str) -> str:
    """The mark before decimals, refused if no cell tells or two contradict one another."""
    proofs: dict[str, str] = {}
    unclear = None
    for text in texts:
        taken = _taken(text)
        fits = [] if taken is None else _fits(taken)
        if len(fits) == 1:
            proofs.setdefault(fits[0], text)
        elif taken is not None and ("," in taken.body or "." in taken.body):
            unclear = taken if unclear is None else unclear
    if len(proofs) == 2:
        raise ValueError(
            f"column {name!r} holds numbers of two kinds, {proofs[',']!r} with a decimal comma and "
            f"{proofs['.']!r} with a decimal point: write all alike, or {cure}."
        )
    if proofs:
        return next(iter(proofs))
    if unclear is not None:
        raise ValueError(
            f"column {name!r} holds numbers such as {unclear.body!r}, which may mean "
            f"{unclear.value('.'):g} or {unclear.value(','):g}, and no cell tells: {cure}."
        )
    return "."


def _dates(name: str, texts: Sequence[str], order: Order | None, cure: str) -> Writing | None:
    """The order of day, month and year, refused if no cell tells."""
    if order is not None:
        return Writing(order=order)
    if any(YEAR_FIRST.fullmatch(text) for text in texts):
        fitting = sum(_days(text, "year first") is not None for text in texts)
        return Writing(order="year first") if fitting >= SHARE_THAT_TELLS * len(texts) else None
    either: tuple[Order, Order] = ("day first", "month first")
    fits = {each: sum(_days(text, each) is not None for text in texts) for each in either}
    best = max(fits.values())
    if best < SHARE_THAT_TELLS * len(texts):
        return None
    orders = [each for each, count in fits.items() if count == best]
    if len(orders) == 1:
        return Writing(order=orders[0])
    if all("." in text for text in texts):
        return Writing(order="day first")  # nobody writes months first with points
    raise ValueError(
        f"column {name!r} holds dates such as {texts[0]!r}, and no cell tells whether the day or "
        f"the month comes first: {cure}."
    )
