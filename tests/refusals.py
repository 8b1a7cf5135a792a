"""How bad input is refused."""

from collections.abc import Callable

import pytest


def refusal(call: Callable[[], object]) -> str:
    """The one sentence with which a call refuses its input."""
    with pytest.raises(ValueError, match=r"\S") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message
