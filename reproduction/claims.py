"""Claims: numbers of README and docs that are marked as results, compared with committed rows.

A mark is a comment, which no reader of a page sees. Before a table stands one of

    <!-- rows: recipe=converged dataset=adult seeds=5-9 -->   lines are methods, headings measures
    <!-- rows: recipe=paper measure=er_precision -->          lines are data sets, headings methods
    <!-- not from rows: make strength -->                     what prints it, or why it is no result

and right behind a number in prose

    92.5<!--= converged adult steadfast strong_precision -->

to which `minus=vanilla` (a paired difference), `p` (its p-value), `sd`, `count` (of seeds),
`at=0.5` (a point of the curve) and `seeds=5-9` may be added. A number still to be written is a
question mark. `make claims` compares, `make claims ARGS=--write` writes what the rows say.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from r2et.core.files import write_text
from r2et.core.naming import counted, nearest
from r2et.evaluation.results import COLUMNS, ER, MEASURES, MSE, Measure, Result, read_results
from r2et.experiments.tables import (
    CHOSEN,
    MethodSummary,
    check_rows,
    comparison,
    is_variant,
    summarise,
)
from r2et.methods import METHODS
from reproduction.contests import BEST_R2ET, BEST_RIVAL, is_rival
from reproduction.page import keep_rows, kept_rows
from reproduction.papers import Quantity, label_of, rows_of
from reproduction.published import published_labels

ROOT = Path(__file__).parents[1]
GENERATED = ("docs/results.md", "docs/departures.md")
CHOICES = (CHOSEN, replace(BEST_R2ET, method="best-r2et"), BEST_RIVAL)
PRINTED = {
    ER: Quantity(heading="", table="1", setting="ERAttack"),
    MSE: Quantity(heading="", table="1", key=MSE, setting="MSE attack"),
}
"""The measures of which the papers' numbers may stand in brackets."""
BESIDE = " (published)"
SPLITS = "splits"
WRITTEN = "Written: "
NUMBERS_OF = {"seeds": r"\d+(-\d+)?", "at": r"\d*\.?\d+"}
PLACES = {"auc": 4, "percent": 1, "share": 1, "number": 2, "count": 1}

COMMENT = re.compile(r"<!--(.*?)-->")
BEFORE_MARK = re.compile(r"(?:[+\-−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e-?\d+)?|\?)$")
OF_NUMBERS = re.compile(r"[<>≥≤+\-−~]?[.\d][.,\d]*(?:e-?\d+)?(?: ?(?:%|s|GB))?(?: ?[±/(:].*)?$")
AT_RADIUS = re.compile(r"(?P<heading>.*), ε = (?P<radius>[\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A number as a page has it, where it stands, and what the rows say it is."""

    page: str
    line: int
    start: int
    said: str
    due: str
    about: str

    def __str__(self) -> str:
        """Where a claim stands, what it says and what it should say."""
        return (
            f"{self.page}:{self.line}: {self.about} is {self.said or 'left out'}, "
            f"and the rows say {self.due or 'nothing'}."
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a page: its lines by number, headings first, and the comment before it."""

    lines: tuple[tuple[int, str], ...]
    mark: str
    mark_line: int

    @property
    def of_numbers(self) -> bool:
        """Whether in some column after the first at least half of the cells are numbers."""
        body = [[plain(text) for _, text in cells_of(line)][1:] for _, line in self.lines[2:]]
        return any(
            2 * sum(bool(OF_NUMBERS.match(cell)) for cell in column) >= len(column)
            for column in zip(*body, strict=False)
        )


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The rows that a mark is about, of one recipe and data set, and those chosen among them."""

    dataset: str
    rows: tuple[Result, ...]
    told: str

    @property
    def seeds(self) -> int:
        """On how many seeds anything was tried."""
        return len({row.seed for row in self.rows})

    def method(self, name: str) -> str:
        """The method of a name, or of a label."""
        names = {row.label.casefold(): row.method for row in self.rows}
        if name in names.values():
            return name
        if name.casefold() not in names:
            labels = dict.fromkeys(row.label for row in self.rows)
            raise ValueError(f"{self.told} have no method {name!r}: {nearest(name, labels)}")
        return names[name.casefold()]

    def at(self, measure: Measure, radius: float) -> "Scope":
        """The same with the values of a measure at another radius, from the curve of each row."""
        rows = tuple(_at(row, measure, radius, self.told) for row in self.rows)
        return replace(self, rows=rows)

    def summary(self, method: str, measure: Measure) -> MethodSummary:
        """One measure of a method over its seeds."""
        own = [row for row in self.rows if row.method == method]
        return summarise(own, [key for key in (measure.key, measure.beside) if key])[0]


def _at(row: Result, measure: Measure, radius: float, told: str) -> Result:
    if not row.passed or row.radii.attack == radius:
        return row
    curve = row.series.curve
    kept = {"strong": curve.strong, "er": curve.er}.get(measure.attack, ())
    known = dict(zip(curve.epsilon, kept, strict=False))
    if radius not in known:
        has = ", ".join(f"{each:g}" for each in dict.fromkeys([*known, row.radii.attack]))
        raise ValueError(f"{told} have no {measure.heading} at ε = {radius:g}: choose of {has}.")
    return replace(row, measures=row.measures | {measure.key: known[radius]})


def scope_of(rows: Sequence[Result], recipe: str, dataset: str, seeds: str = "") -> Scope:
    """The rows of a recipe and data set, if given of some seeds only: "5" or "5-9"."""
    told = f"the rows of recipe {recipe} on {dataset}{f', seeds {seeds}' if seeds else ''}"
    own = rows_of(rows, recipe, dataset)
    if seeds:
        low, _, high = seeds.partition("-")
        wanted = range(int(low), int(high or low) + 1)
        own = [row for row in own if row.seed in wanted]
        if len({row.seed for row in own}) < len(wanted):
            own = []
    if not own:
        raise ValueError(
            f"{told} are not all there: keep those of a run by `make claims ARGS='--keep RUN'`."
        )
    check_rows(own)
    chosen = (row for choice in CHOICES for row in choice.rows(own))
    return Scope(dataset=dataset, rows=(*own, *chosen), told=told)


# --- pages ----------------------------------------------------------------------------------------


def pages_of(root: Path) -> list[str]:
    """README and all documents, by their paths within a folder."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [path.relative_to(root).as_posix() for path in found]


def cells_of(line: str) -> list[tuple[int, str]]:
    """The cells of a line of a table, each with its place and without the space around it."""
    found = re.finditer(r"\|((?:\\.|[^|\\])*)(?=\|)", line)
    return [
        (each.start(1) + (len(each[1]) - len(each[1].lstrip()) if each[1].strip() else 1), text)
        for each in found
        for text in [each[1].strip()]
    ]


def plain(cell: str) -> str:
    r"""A cell as it is read: without asterisks, and without what escapes.

    >>> print(plain(r"**R2ET\\H**"))
    R2ET\H
    """
    return re.sub(r"\\([\\|*])", r"\1", cell.replace("**", ""))


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page by number, code in them and whole blocks of it blanked."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        blanked = re.sub(r"(`+).+?\1", lambda code: " " * len(code[0]), line)
        yield number, "" if fence or fenced else blanked


def tables_in(text: str) -> list[Table]:
    """The tables of a page, each with the comment that is the last thing before it."""
    found: list[Table] = []
    lines: list[tuple[int, str]] = []
    mark, mark_line = "", 0
    whole = text.splitlines()
    for number, line in [*prose_of(text), (0, "")]:
        if line.lstrip().startswith("|"):
            lines.append((number, whole[number - 1]))
            continue
        if lines:
            found.append(Table(lines=tuple(lines), mark=mark, mark_line=mark_line))
            lines, mark, mark_line = [], "", 0
        if line.strip():
            comment = COMMENT.fullmatch(line.strip())
            mark, mark_line = (comment[1].strip(), number) if comment else ("", 0)
    return found


def unmarked_tables(text: str) -> list[int]:
    """The first line of each table of numbers that names neither its rows nor why it has none."""
    return [table.lines[0][0] for table in tables_in(text) if table.of_numbers and not table.mark]


def claims_in(page: str, text: str, rows: Sequence[Result]) -> list[Claim]:
    """Every marked number of a page; a mark that is about nothing is refused."""
    found: list[Claim] = []
    tables = {table.mark_line: table for table in tables_in(text) if table.mark}
    for number, line in prose_of(text):
        if "<!--" in COMMENT.sub("", line):
            raise ValueError(f"{page}:{number}: a comment goes on in the next line: join them.")
        for comment in COMMENT.finditer(line):
            mark = comment[1].strip()
            with _at_line(page, number):
                if mark.startswith("="):
                    found.append(_number(page, number, line[: comment.start()], mark, rows))
                elif page in GENERATED:
                    continue  # its tables are written from the rows, and it says so in a comment
                elif not re.match(r"(not from )?rows: *\S", mark):
                    raise ValueError(
                        f"the comment {mark!r} is no mark: write `rows: ...`, `= ...` behind a "
                        "number, or `not from rows: ...` with what prints the table."
                    )
                elif number not in tables:
                    raise ValueError(f"the mark {mark!r} has no table behind it: take it away.")
                elif mark.startswith("rows:"):
                    found += _table(page, tables[number], rows)
    return found


@contextmanager
def _at_line(page: str, line: int) -> Iterator[None]:
    """Whatever is refused within says where that stands."""
    try:
        yield
    except ValueError as problem:
        placed = str(problem).startswith(f"{page}:")
        raise ValueError(f"{'' if placed else f'{page}:{line}: '}{problem}") from None


def corrected(text: str, claims: Sequence[Claim]) -> str:
    """A page with the numbers that the rows have."""
    lines = text.splitlines(keepends=True)
    for claim in sorted(claims, key=lambda each: each.start, reverse=True):
        line = lines[claim.line - 1]
        end = claim.start + len(claim.said)
        lines[claim.line - 1] = line[: claim.start] + claim.due + line[end:]
    return "".join(lines)


# --- numbers in prose -----------------------------------------------------------------------------


def _number(page: str, number: int, before: str, mark: str, rows: Sequence[Result]) -> Claim:
    """What the number in front of a mark claims."""
    names, options = _words(mark.removeprefix("="), ("minus", "at", "seeds"))
    parts = {"p", "sd", "count"} & {*names[4:]}
    if len(names) != 4 + len(parts) or len(parts) > 1:
        raise ValueError(
            f"the mark {mark!r} is not read: write `= recipe data-set method measure`, then "
            "minus=method, at=radius, seeds=5-9, and p, sd or count if wanted."
        )
    said = BEFORE_MARK.search(before)
    if said is None:
        raise ValueError(f"the mark {mark!r} has no number in front of it: write one, or `?`.")
    measure = _measure(names[3])
    scope = scope_of(rows, names[0], names[1], options.get("seeds", ""))
    if "at" in options:
        scope = scope.at(measure, float(options["at"]))
    value = _value(scope, names[2], measure, options.get("minus", ""), "".join(parts))
    return Claim(
        page=page,
        line=number,
        start=said.start(),
        said=said[0],
        due=like(said[0], value) if said[0] != "?" else f"{value:.{PLACES[measure.style]}f}",
        about=" ".join((*names, *(f"{key}={each}" for key, each in options.items()))),
    )


def _measure(key: str) -> Measure:
    if key not in MEASURES:
        known = [each.key for each in COLUMNS]
        raise ValueError(f"there is no measure {key!r}: {nearest(key, known)}")
    return MEASURES[key]


def _value(scope: Scope, method: str, measure: Measure, minus: str, part: str) -> float:
    method = scope.method(method)
    scale = 100 if measure.style in ("percent", "share") and part not in ("p", "count") else 1
    if minus:
        found = comparison(scope.rows, measure.key, method, scope.method(minus))
        value = found.p_value if part == "p" else found.difference
    else:
        mean = scope.summary(method, measure).means.get(measure.key)
        parts = mean and {"": mean.value, "sd": mean.spread, "count": float(mean.count)}
        value = parts.get(part) if parts else None
    if value is None:
        wanted = f"{part or 'mean'} of {measure.key}"
        raise ValueError(f"{scope.told} have no {wanted} for {method}: name another.")
    return scale * value


def like(said: str, value: float) -> str:
    """A value written as another number was: as many places, and 0 and sign as there.

    >>> like(".88", 0.8712), like("+71", 70.9), like("6e-5", 0.000052), like("−0.5", -0.25)
    ('.87', '+71', '5e-5', '−0.2')
    """
    if "e" in said:
        digits, power = f"{value:.{_places(said.partition('e')[0])}e}".split("e")
        return f"{digits}e{int(power)}"
    text = f"{value:{',' if ',' in said else ''}.{_places(said)}f}"
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    if sign and not float(digits.replace(",", "")):
        sign = ""
    if said.lstrip("+-−").startswith("."):
        digits = digits.removeprefix("0")
    if said.startswith("+") and not sign:
        sign = "+"
    return f"{sign.replace('-', '−') if '−' in said else sign}{digits}"


def _places(said: str) -> int:
    return len(said.partition(".")[2])


def _words(mark: str, known: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The plain words of a mark, and those of the form key=value."""
    words = mark.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"a mark has no {key!r}: {nearest(key, known)}")
        if not re.fullmatch(NUMBERS_OF.get(key, r".+"), value):
            raise ValueError(f"{key}={value!r} is not read: write seeds=5, seeds=5-9 or at=0.5.")
    return [word for word in words if "=" not in word], options


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column shows: a measure, of the method of its line unless it has one of its own."""

    measure: Measure
    method: str = ""
    radius: float | None = None
    published: bool = False

    def due(self, scope: Scope, label: str, said: str) -> str:
        """What a cell should say, with the spread if it shows one, and on how many seeds."""
        measure, method = self.measure, scope.method(label)
        own = scope if self.radius is None else scope.at(measure, self.radius)
        found = own.summary(method, measure)
        mean = found.means.get(measure.key)
        if mean is None:
            return measure.none if found.lacks(measure) else ""
        text = measure.show(mean.value)
        if "±" in said and mean.spread is not None:
            text += f" ± {measure.show_sd(mean.spread)}"
        if self.published and (printed := _printed(measure, scope.dataset, method, label)):
            text += f" ({measure.show(printed)})"
        if mean.count < scope.seeds:
            text += f" ({mean.count} of {scope.seeds})"
        return f"**{text}**" if said.startswith("**") else text


def _printed(measure: Measure, dataset: str, method: str, label: str) -> float | None:
    """The published number of a method; of a choice among methods, that of the best of them."""
    quantity = PRINTED[measure.key]
    among = {"best-r2et": is_variant, BEST_RIVAL.method: is_rival}.get(method)
    if among is None:
        return quantity.printed(dataset, label)
    names = {entry.label.casefold(): name for name, entry in METHODS.items()}
    values = [
        value
        for each in published_labels("1", dataset)
        if among(names.get(each.casefold(), each))
        and (value := quantity.printed(dataset, each)) is not None
    ]
    return max(values, default=None)


def _column(heading: str, default: str, k: int) -> Column:
    """What a heading stands for.

    Without a `default` measure it is that of a measure, with one that of a method ("AUC of SP").
    """
    name = heading.removesuffix(BESIDE)
    method, radius = "", None
    if default:
        name, _, method = name.rpartition(" of ")
    elif at := AT_RADIUS.fullmatch(name):
        name, radius = at["heading"], float(at["radius"])
    known = {each.heading.replace("P@k", f"P@{k}").casefold(): each for each in MEASURES.values()}
    if name and name.casefold() not in known:
        shown = [each.heading.replace("P@k", f"P@{k}") for each in COLUMNS]
        raise ValueError(f"{heading!r} is no measure: {nearest(name, shown)}")
    measure = known[name.casefold()] if name else _measure(default)
    published = heading.endswith(BESIDE)
    if published and measure.key not in PRINTED:
        raise ValueError(f"no {measure.heading} was published: take {BESIDE.strip()!r} away.")
    return Column(measure=measure, method=method, radius=radius, published=published)


def _table(page: str, table: Table, rows: Sequence[Result]) -> list[Claim]:
    """What the cells of a marked table claim."""
    _, options = _words(table.mark.removeprefix("rows:"), ("recipe", "dataset", "measure", "seeds"))
    default = options.get("measure", "")
    if "recipe" not in options or ("dataset" in options) == bool(default):
        raise ValueError(
            f"the mark {table.mark!r} is not read: write `rows: recipe=...` and dataset=... for "
            "lines that are methods, or measure=... for lines that are data sets."
        )
    (_, first), _, *body = table.lines
    headings = [plain(text) for _, text in cells_of(first)][1:]
    of_recipe = [row for row in rows if row.recipe == options["recipe"]]
    datasets = {label_of(row.dataset): row.dataset for row in of_recipe}
    labels = {row.label for row in of_recipe} | {choice.label for choice in CHOICES}
    known = {label.casefold() for label in labels}
    found: list[Claim] = []
    for number, line in body:
        (_, name), *rest = cells_of(line)
        label = plain(name)
        with _at_line(page, number):
            if default and label not in datasets:
                raise ValueError(f"there are no rows of {label!r}: {nearest(label, datasets)}")
            dataset = datasets[label] if default else options["dataset"]
            scope = scope_of(rows, options["recipe"], dataset, options.get("seeds", ""))
            if len(rest) != len(headings):
                raise ValueError(
                    "the line has more or fewer cells than headings: add or join some."
                )
            for heading, (start, said) in zip(headings, rest, strict=True):
                if heading.casefold() == SPLITS:
                    due = str(scope.seeds)
                else:
                    column = _column(heading, default, scope.rows[0].k)
                    due = _due(column, scope, column.method or label, said, known)
                found.append(
                    Claim(
                        page=page,
                        line=number,
                        start=start,
                        said=said,
                        due=due,
                        about=f"{heading} of {label}",
                    )
                )
    return found


def _due(column: Column, scope: Scope, label: str, said: str, known: set[str]) -> str:
    """What a cell should say: nothing where the method was not tried on this data set."""
    here = {row.label.casefold() for row in scope.rows}
    if column.method and label.casefold() in known - here:
        return ""
    return column.due(scope, label, said)


# --- the command ----------------------------------------------------------------------------------


def problems_of(root: Path, rows: Sequence[Result], *, write: bool = False) -> list[str]:
    """What is wrong with the numbers of all pages, a sentence each; written right if asked for."""
    told: list[str] = []
    for page in pages_of(root):
        text = (root / page).read_text(encoding="utf-8")
        try:
            wrong = [each for each in claims_in(page, text, rows) if each.said != each.due]
        except ValueError as refusal:
            told.append(str(refusal))
            continue
        if page in GENERATED:
            told += [f"{each} Its prose stands in reproduction/page.py." for each in wrong]
            continue
        if write and wrong:
            write_text(root / page, corrected(text, wrong))
        told += [f"{WRITTEN}{each}" if write else str(each) for each in wrong]
        told += [
            f"{page}:{line}: a table of numbers says neither its rows nor why it has none: mark it."
            for line in unmarked_tables(text)
        ]
    return told


def main() -> None:
    """Compare the marked numbers with the rows, and end with 1 if one is wrong."""
    parser = argparse.ArgumentParser(description="README's and docs' numbers against their rows.")
    parser.add_argument("--write", action="store_true", help="write the numbers that rows have")
    parser.add_argument("--keep", type=Path, help="a run's folder, whose rows to keep first")
    given = parser.parse_args()
    if given.keep:
        keep_rows(read_results(given.keep / "results.jsonl"), ROOT / "docs" / "results")
    rows = kept_rows(ROOT / "docs" / "results")
    told = problems_of(ROOT, rows, write=given.write)
    print("\n".join(told) or f"All marked numbers are those of {counted(len(rows), 'row')}.")
    raise SystemExit(any(not each.startswith(WRITTEN) for each in told))


if __name__ == "__main__":
    main()
