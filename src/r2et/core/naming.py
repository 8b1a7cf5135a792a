"""Words for messages: names that users misspell, and what the code of others raised."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known name most like a misspelt one, and the list of all.

    >>> nearest("adlt", ["adult", "bank"])
    "did you mean 'adult'? Known: adult, bank."
    """
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.4)
    hint = f"did you mean {names[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names.values())}."


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def one_line(problem: BaseException) -> str:
    """What an error of another library says, with its kind where it says nothing."""
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__


def briefly(problem: Exception) -> str:
    """The kind of a problem and the first line of what it says."""
    said = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {said[0].rstrip('.')}" if said else type(problem).__name__


def keyword_defaults(function: Callable[..., object]) -> dict[str, Any]:
    """The keyword-only arguments of a function that have a value unless given, and that value.

    >>> keyword_defaults(lambda x, *, size, rate=0.1: x)
    {'rate': 0.1}
    """
    return dict(getattr(function, "__kwdefaults__", None) or {})
