"""Names that users misspell."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known name most like a misspelt one, and the list of all.

    >>> nearest("adlt", ["adult", "bank"])
    "did you mean 'adult'? Known: adult, bank."
    """
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.4)
    hint = f"did you mean {names[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names.values())}."
