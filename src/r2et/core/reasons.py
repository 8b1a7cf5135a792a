"""A reason, as a person is told it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reason:
    """An attribute that spoke for or against a decision, in words.

    `value` is the person's, `usual` the median of the reference, or its most frequent word;
    `contribution` is what the value adds to the score of the decided class, in log-odds, compared
    with the reference; `share` is its part of all that speaks the same way; `code` is what a letter
    calls it.
    """

    attribute: str
    value: str
    usual: str
    contribution: float
    share: float
    code: str

    def __str__(self) -> str:
        """One line for readers: "hours: 20 hours (usual: 40 hours), -0.62"."""
        return f"{self.code}: {self.value} (usual: {self.usual}), {self.contribution:+.2f}"
