"""The papers' tables: our numbers beside the published ones, and what differs. From rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from r2et.attacks.comparison import HandlingPoint
from r2et.core.files import read_rows
from r2et.core.naming import nearest
from r2et.data.builtin import DATASETS
from r2et.evaluation.results import (
    COLUMNS,
    ER,
    MEASURES,
    STRONG,
    Measure,
    Radii,
    Result,
    Style,
    result_from,
    written,
)
from r2et.experiments.tables import (
    BEST,
    EXCHANGES,
    LINEAR,
    VANILLA,
    Comparison,
    MethodSummary,
    is_variant,
    summarise,
)
from r2et.methods import METHODS
from reproduction.contests import BEST_OTHER, BEST_R2ET, BEST_RIVAL, contests, is_rival
from reproduction.published import published_in, published_labels

CONTROL_KEYS = (
    "clean_auc",
    "accuracy",
    "within_class_auc",
    STRONG,
    "noise_precision",
    "er_last_precision",
    "distinct_sets",
    "class_overlap",
    "strong_kappa",
    "off_data_share",
    "exchange_agreement",
    "flippable",
)
CONTROLS = tuple(column for key in CONTROL_KEYS for column in COLUMNS if column.key == key)
FAR = 0.05  # points of a hundred, from which on a number differs whatever its spread
NONE = "–"


def label_of(dataset: str) -> str:
    """What tables and figures call a data set."""
    return DATASETS[dataset].label if dataset in DATASETS else dataset


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of a paper's table: a measure of the rows of one recipe, and where it is printed."""

    heading: str
    table: str
    recipe: str = "paper"
    key: str = ER
    measure: str = "P@k"
    setting: str = ""
    style: Style = "percent"
    better: Literal["higher", "lower"] = "higher"
    beside: bool = False
    """Whether it stands between the quantity before it and the number published for that."""

    def __post_init__(self) -> None:
        """Refuse what is no measure: its column would stay empty."""
        if self.key not in MEASURES:
            raise ValueError(f"there is no measure {self.key!r}: {nearest(self.key, MEASURES)}")

    def printed(self, dataset: str, label: str) -> float | None:
        """The published number on the scale of ours, None where the table has none."""
        value = published_in(self.table, dataset, label, self.measure, self.setting)
        if value is None or self.measure != "P@k":
            return value
        return round(value / 100, 6)

    @property
    def rounding(self) -> float:
        """How far a published number may be from the one it was rounded from."""
        return {"percent": 0.0005, "auc": 0.00005}.get(self.style, 0.005)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A number of ours over the seeds that passed, and the published one."""

    ours: float | None
    sd: float | None
    published: float | None
    count: int
    failed: int
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """A method in a paper's table: an entry for each quantity, the controls for each recipe."""

    method: str
    label: str
    entries: tuple[Entry, ...]
    controls: tuple[dict[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The best R2ET variant against the best other method: as printed, and as found here."""

    quantity: Quantity
    printed: tuple[tuple[str, float], tuple[str, float]] | None
    found: Comparison | None
    means: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Whether the published order of the two was found again, in words."""
        if self.printed is None:
            return "nothing was published"
        if self.found is None or self.found.difference is None:
            return "nothing to compare yet"
        sign = 1 if self.quantity.better == "higher" else -1
        theirs = sign * (self.printed[0][1] - self.printed[1][1])
        ours = sign * self.found.difference
        if theirs * ours == 0:
            return "no lead on one side" if theirs != ours else "no lead on either side"
        if theirs * ours > 0:
            return "the same order"
        return "the other way round"


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of a paper for one data set."""

    dataset: str
    quantities: tuple[Quantity, ...]
    recipes: tuple[str, ...]
    lines: tuple[Line, ...]
    tests: tuple[tuple[str, tuple[Comparison, ...]], ...]
    leads: tuple[Lead, ...]
    chosen: tuple[str, ...]
    stand_in: str = ""
    """For which data of the papers these stand in, if they do."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table as text for a terminal or a page, and as plain values.

    The columns from number `controls` on may stand in a table of their own where space is narrow.
    `strong` are the (line, column) of cells to stand out; `legend` says what marks mean; `below` is
    a table that belongs under this one. `settings` say how the numbers were made.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    values: Any
    settings: tuple[str, ...] = ()
    controls: int | None = None
    strong: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()
    legend: str = ""
    below: "Grid | None" = None
    table: PaperTable | None = None
    """What it was made of, if it is a table of a paper."""


@dataclass(frozen=True, kw_only=True)
class HandlersResult(Result):
    """Every way to keep predictions, compared on one model."""

    points: tuple[HandlingPoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepPoint:
    """What a step of the finite difference tells, and the models that were trained with it.

    `correlation` is Spearman's, of the estimated with the exact norm of the Hessian over examples
    of Vanilla. AUC and P@k are those of the setting that validation data choose, None if none
    kept the AUC.
    """

    step: float
    correlation: float
    auc: dict[str, float | None]
    precision: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class StepsResult(Result):
    """Steps of the finite difference compared on one data set and seed, on validation data."""

    points: tuple[StepPoint, ...] = ()


Row = TypeVar("Row", bound=Result)


def known_row(kind: type[Row], path: Path, key: str) -> Row | None:
    """The row of a key that a file keeps already, None if there is none."""
    for number, kept in enumerate(read_rows(path), 1):
        if kept.get("key") == key:
            return result_from(kind, kept, f"row {number} of {path}")
    return None


def steps_grid(row: StepsResult, title: str) -> Grid:
    """Steps of the finite difference as text."""
    methods = list(row.points[0].precision) if row.points else []
    labels = [METHODS[name].label for name in methods]
    lines = []
    for point in row.points:
        cells = [f"{point.step:g}", f"{point.correlation:.3f}"]
        for name in methods:
            auc, kept = point.auc[name], point.precision[name]
            cells += [NONE if auc is None else written(auc, "auc")]
            cells += ["none passed" if kept is None else written(kept, "percent")]
        lines.append(tuple(cells))
    headings = ["kappa", "rank correlation with the exact norm"]
    for label in labels:
        headings += [f"{label}: AUC ours", f"{label}: P@k ERAttack ours"]
    return Grid(
        title=title,
        headings=tuple(headings),
        lines=tuple(lines),
        values=[asdict(point) for point in row.points],
        settings=(
            f"recipe as-published, seed {row.seed}, k = {row.k}, "
            f"{row.examples} validation examples",
        ),
    )


def rows_of(rows: Sequence[Result], recipe: str, dataset: str) -> list[Result]:
    """The rows of one recipe and data set."""
    return [row for row in rows if (row.recipe, row.dataset) == (recipe, dataset)]


def datasets_of(rows: Sequence[Result]) -> list[str]:
    """The data sets that rows are of, by name."""
    return sorted({row.dataset for row in rows})


def paper_table(quantities: Sequence[Quantity], rows: Sequence[Result], dataset: str) -> PaperTable:
    """A table of a paper for one data set: every method published or measured.

    Methods stand in the order of the paper; those it does not have follow, then the best variant
    and the best rival by validation data, then the linear control. A seed without a model above the
    AUC floor is counted and never filled in.
    """
    recipes = tuple(dict.fromkeys(each.recipe for each in quantities if not each.beside))
    of_recipe = {each.recipe: rows_of(rows, each.recipe, dataset) for each in quantities}
    quantities = [each for each in quantities if not each.beside or of_recipe[each.recipe]]
    keys = list(dict.fromkeys([*(each.key for each in quantities), *CONTROL_KEYS]))
    summaries = {
        name: {each.label.casefold(): each for each in _summaries(own, keys)}
        for name, own in of_recipe.items()
    }
    lines = [
        _line(label, quantities, recipes, summaries, dataset)
        for label in _labels(quantities, dataset, summaries)
    ]
    tests, leads = [], []
    for quantity in quantities:
        if quantity.beside:
            continue
        own = of_recipe[quantity.recipe]
        found = contests(own, quantity.key)
        tests.append((quantity.heading, tuple(found)))
        leads.append(_lead(quantity, summaries[quantity.recipe], found, dataset))
    for name in recipes:
        if any(STRONG in row.measures for row in of_recipe[name]):
            heading = "P@k strong attack" + (f", {name}" if len(recipes) > 1 else "")
            tests.append((heading, tuple(contests(of_recipe[name], STRONG))))
    return PaperTable(
        dataset=dataset,
        quantities=tuple(quantities),
        recipes=recipes,
        lines=tuple(lines),
        tests=tuple(tests),
        leads=tuple(leads),
        chosen=tuple(_choices(of_recipe[name], name) for name in recipes if of_recipe[name]),
        stand_in=next(
            (row.stand_in for own in of_recipe.values() for row in own if row.stand_in),
            "",
        ),
    )


def _summaries(rows: Sequence[Result], keys: Sequence[str]) -> list[MethodSummary]:
    """Every method of a recipe, then the best variant and the best rival."""
    chosen = (BEST_R2ET.summarise(rows, keys), BEST_RIVAL.summarise(rows, keys))
    return [*summarise(rows, keys), *chosen[0], *chosen[1]]


def _labels(
    quantities: Sequence[Quantity],
    dataset: str,
    summaries: Mapping[str, Mapping[str, MethodSummary]],
) -> list[str]:
    printed = [label for each in quantities for label in published_labels(each.table, dataset)]
    measured = [each for found in summaries.values() for each in found.values()]
    last = (BEST, BEST_OTHER, LINEAR)
    plain = [each.label for each in measured if each.method not in last]
    ends = [each.label for name in last for each in measured if each.method == name]
    labels: dict[str, str] = {}
    for label in [*printed, *plain, *ends]:
        labels.setdefault(label.casefold(), label)
    return list(labels.values())


def _line(
    label: str,
    quantities: Sequence[Quantity],
    recipes: Sequence[str],
    summaries: Mapping[str, Mapping[str, MethodSummary]],
    dataset: str,
) -> Line:
    key = label.casefold()
    methods = [found[key].method for found in summaries.values() if key in found]
    return Line(
        method=methods[0] if methods else label,
        label=label,
        entries=tuple(
            _entry(each, summaries[each.recipe].get(key), each.printed(dataset, label))
            for each in quantities
        ),
        controls=tuple(
            {
                column.key: found.means[column.key].value
                for column in CONTROLS
                if (found := summaries[name].get(key)) and column.key in found.means
            }
            for name in recipes
        ),
    )


def _entry(quantity: Quantity, summary: MethodSummary | None, printed: float | None) -> Entry:
    mean = None if summary is None else summary.means.get(quantity.key)
    ours, sd = (None, None) if mean is None else (mean.value, mean.spread)
    return Entry(
        ours=ours,
        sd=sd,
        published=printed,
        count=0 if summary is None else len(summary.seeds),
        failed=0 if summary is None else len(summary.failed),
        differs=differs(ours, sd, printed, quantity.rounding),
    )


def differs(
    ours: float | None, sd: float | None, printed: float | None, rounding: float = 0.0
) -> bool:
    """Whether a mean is more than two standard deviations or five points from a published number.

    >>> differs(0.871, 0.062, 0.876), differs(0.95, None, 0.876), differs(0.99, 0.004, 0.975)
    (False, True, True)
    """
    if ours is None or printed is None:
        return False
    gap = abs(ours - printed)
    return gap > FAR + 1e-12 or (sd is not None and gap > 2 * sd + rounding + 1e-12)


def _lead(
    quantity: Quantity,
    summaries: Mapping[str, MethodSummary],
    found: Sequence[Comparison],
    dataset: str,
) -> Lead:
    sign = 1 if quantity.better == "higher" else -1
    printed = [
        (label, value)
        for label in published_labels(quantity.table, dataset)
        if (value := quantity.printed(dataset, label)) is not None
    ]
    ours = {entry.label.casefold() for name, entry in METHODS.items() if is_variant(name)}
    variants = [each for each in printed if each[0].casefold() in ours]
    others = [each for each in printed if each[0].casefold() not in ours]
    against = next((each for each in found if each.method == BEST_OTHER), None)
    both = [summaries.get(each.label.casefold()) for each in (BEST_R2ET, BEST_RIVAL)]
    means = [each.means.get(quantity.key) for each in both if each is not None]
    known = [mean.value for mean in means if mean is not None]
    return Lead(
        quantity=quantity,
        printed=(
            max(variants, key=lambda each: sign * each[1]),
            max(others, key=lambda each: sign * each[1]),
        )
        if variants and others
        else None,
        found=against,
        means=(known[0], known[1]) if len(known) == 2 else None,
    )


def _choices(rows: Sequence[Result], recipe: str) -> str:
    """Which methods were the best by validation data, and on how many seeds, as a sentence."""
    told = []
    for what, chosen in (("R2ET", BEST_R2ET), ("other", BEST_RIVAL)):
        names = [row.variant for row in chosen.rows(rows)]
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        if counts:
            listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
            told.append(f"best {what} {listed}")
    chosen_from = "; ".join(told) or "no method passed"
    return f"Chosen on validation data in recipe {recipe} (number of seeds): {chosen_from}."


def table_grid(table: PaperTable, title: str, settings: Sequence[str] = ()) -> Grid:
    """A paper's table as text: ours, published and failed seeds, then the controls."""
    several = len(table.recipes) > 1
    columns = [each for group in _groups(table.quantities) for each in group]
    headings = ["method", *(_heading(table.quantities, each) for each in columns), "failed seeds"]
    # What no line has a number for, such as off-data shares of pictures, is left out.
    had = {key for line in table.lines for each in line.controls for key in each}
    if "off_data_share" in had:
        had.add(EXCHANGES)
    controls = [column for column in CONTROLS if column.key in had]
    headings += [_control_heading(column) for column in controls]
    strong = set()
    for at, (number, ours) in enumerate(columns, 1):
        if ours and (best := _best_line(table, number)) is not None:
            strong.add((best, at))
    lines = []
    for line in table.lines:
        cells = [line.label]
        for number, ours in columns:
            quantity, entry = table.quantities[number], line.entries[number]
            cells.append(_ours(entry, quantity) if ours else _printed(entry, quantity))
        cells.append(_by_recipe([_failed(line, table, name) for name in table.recipes]))
        for column in controls:
            shown = [column.show(each[column.key]) if column.key in each else NONE
                     for each in line.controls]  # fmt: skip
            cells.append(_by_recipe(shown))
        lines.append(tuple(cells))
    notes = list(table.chosen)
    if table.stand_in:
        instead = table.stand_in.removesuffix(".")
        notes.insert(0, f"{instead}; published numbers are those of the papers' data.")
    if several:
        notes.insert(0, f"Numbers with strokes are those of {' / '.join(table.recipes)}, in turn.")
    return Grid(
        title=title,
        headings=tuple(headings),
        lines=tuple(lines),
        values=table_values(table),
        settings=tuple(settings),
        controls=len(headings) - len(controls),
        strong=frozenset(strong),
        notes=tuple(notes),
        legend=LEGEND,
        below=tests_grid(table),
        table=table,
    )


def _groups(quantities: Sequence[Quantity]) -> list[list[tuple[int, bool]]]:
    """The columns of each quantity and those beside it: its number, and whether it is ours.

    What was published stands last, and once.
    """
    groups: list[list[tuple[int, bool]]] = []
    for number, quantity in enumerate(quantities):
        if quantity.beside:
            groups[-1].insert(-1, (number, True))
        else:
            groups.append([(number, True), (number, False)])
    return groups


def _heading(quantities: Sequence[Quantity], column: tuple[int, bool]) -> str:
    number, ours = column
    quantity = quantities[number]
    if not ours:
        return "published"
    return quantity.heading if quantity.beside else f"{quantity.heading} ours"


LEGEND = (
    "≠: ours is more than two standard deviations or five points away. "
    f"{NONE}: not published, or not measured. Bold: the best of the papers' methods."
)


def _control_heading(column: Measure) -> str:
    return {STRONG: "P@k strong, %"}.get(column.key, column.heading)


def _best_line(table: PaperTable, number: int) -> int | None:
    sign = 1 if table.quantities[number].better == "higher" else -1
    best: tuple[float, int] | None = None
    for at, line in enumerate(table.lines):
        value = line.entries[number].ours
        trained = is_rival(line.method) or is_variant(line.method)
        if value is not None and trained and (best is None or sign * value > best[0]):
            best = (sign * value, at)
    return None if best is None else best[1]


def _ours(entry: Entry, quantity: Quantity) -> str:
    if entry.ours is None:
        return "none passed" if entry.failed and not entry.count else NONE
    spread = "" if entry.sd is None else f" ± {written(entry.sd, quantity.style)}"
    # The column of failed seeds is about the quantity that this one stands beside.
    missed = f" ({entry.failed} failed)" if quantity.beside and entry.failed else ""
    return f"{written(entry.ours, quantity.style)}{spread}{missed}"


def _printed(entry: Entry, quantity: Quantity) -> str:
    if entry.published is None:
        return NONE
    return f"{written(entry.published, quantity.style)}{' ≠' if entry.differs else ''}"


def _failed(line: Line, table: PaperTable, recipe: str) -> str:
    for quantity, entry in zip(table.quantities, line.entries, strict=True):
        if quantity.recipe == recipe:
            return f"{entry.failed}" if entry.count or entry.failed else NONE
    return NONE


def _by_recipe(shown: Sequence[str]) -> str:
    return NONE if set(shown) == {NONE} else " / ".join(shown)


def tests_grid(table: PaperTable) -> Grid | None:
    """Paired t-tests of the best variant against its rivals, a line for each quantity."""
    found = [(heading, tests) for heading, tests in table.tests if tests]
    if not found:
        return None
    rivals = dict.fromkeys(each.label for _, tests in found for each in tests)
    lines = []
    for heading, tests in found:
        told = {each.label: _tested(each) for each in tests}
        lines.append((heading, *(told.get(rival, NONE) for rival in rivals)))
    return Grid(
        title="Best R2ET minus others over the same seeds, in points: paired t-test",
        headings=("", *(f"minus {rival}" for rival in rivals)),
        lines=tuple(lines),
        values=None,
    )


def _tested(each: Comparison) -> str:
    if each.difference is None:
        return "no common seed"
    p = f"p {NONE}" if each.p_value is None else f"p = {each.p_value:.2g}"
    difference = f"{100 * each.difference:+.1f}".replace("-", "−")
    return f"{difference} ({p}, n = {each.count})"


def table_values(table: PaperTable) -> dict[str, Any]:
    """A paper's table as plain values, ready for JSON."""
    headings = [quantity.heading for quantity in table.quantities]
    return {
        "dataset": table.dataset,
        "methods": [
            {
                "method": line.method,
                "label": line.label,
                "quantities": {
                    heading: asdict(entry)
                    for heading, entry in zip(headings, line.entries, strict=True)
                },
                "controls": dict(zip(table.recipes, line.controls, strict=True)),
            }
            for line in table.lines
        ],
        "tests": {heading: [asdict(each) for each in found] for heading, found in table.tests},
        "leads": {
            lead.quantity.heading: {
                "published": lead.printed,
                "ours": lead.means,
                "verdict": lead.verdict,
            }
            for lead in table.leads
        },
    }


def differences(table: PaperTable) -> list[str]:
    """Where our numbers are not the published ones, a sentence for each quantity."""
    told = []
    for number, quantity in enumerate(table.quantities):
        if quantity.beside and quantity.recipe == table.recipes[0]:
            continue
        entries = [(line.label, line.entries[number]) for line in table.lines]
        known = [each for each in entries if None not in (each[1].ours, each[1].published)]
        away = [
            f"{label} {_ours(entry, quantity)} (published {written(printed, quantity.style)})"
            for label, entry in known
            if entry.differs and (printed := entry.published) is not None
        ]
        if not known:
            continue
        name = quantity.heading
        told.append(
            f"{name}: {len(away)} of {len(known)} numbers differ: {'; '.join(away)}."
            if away
            else f"{name}: all {len(known)} numbers agree."
        )
    return told


def led(lead: Lead) -> str:
    """Who leads, as published and as found here, as a sentence."""
    style, told = lead.quantity.style, lead.quantity.heading
    if lead.printed is not None:
        (first, ours), (second, theirs) = lead.printed
        told += f": published {first} {written(ours, style)} against {second}"
        told += f" {written(theirs, style)}"
    if lead.means is not None and lead.found is not None and lead.found.difference is not None:
        p = "" if lead.found.p_value is None else f", p = {lead.found.p_value:.2g}"
        told += f"; ours, chosen on validation data, {written(lead.means[0], style)} against "
        told += f"{written(lead.means[1], style)} (n = {lead.found.count}{p})"
    return f"{told}: {lead.verdict}."


def evidence(rows: Sequence[Result], dataset: str, recipe: str = "paper") -> list[str]:
    """What the rows say about why numbers differ or mean less than they seem, in sentences."""
    own, keys = rows_of(rows, recipe, dataset), [*CONTROL_KEYS, ER, *(each[0] for each in BESIDE)]
    found = {each.method: each for each in _summaries(own, keys)}
    flipping = next((_flipping(row.radii) for row in own if row.radii.attack), "")
    told = [
        _accuracy(found, dataset),
        _linear(found),
        _stronger(found),
        *(_beside(found, key, what.format(flipping), style) for key, what, style in BESIDE),
    ]
    return [sentence for sentence in told if sentence]


BESIDE: tuple[tuple[str, str, Style], ...] = (
    ("distinct_sets", "Distinct top-k sets among the attacked examples (one: everybody is given "
     "the same reasons)", "count"),
    ("off_data_share", "Share of the squared gradient where real data cannot vary, %", "share"),
    ("exchange_agreement", "How far gradients order exchanges of categories as the score does (1: "
     "the same order, 0: none)", "number"),
    ("flippable", "Decisions that {} of the attack's budget can turn over, %", "share"),
    ("saliency_norm", "Size of the explanations, sum of |I|", "number"),
    ("tie", "Explanations whose k-th place is a tie, %", "share"),
)  # fmt: skip


def _flipping(radii: Radii) -> str:
    """How much of an attack's budget flippable predictions were looked for with."""
    share = radii.flippable / radii.attack
    return "all" if share == 1 else f"{100 * share:.3g} %"


def _value(found: Mapping[str, MethodSummary], method: str, key: str) -> float | None:
    mean = found[method].means.get(key) if method in found else None
    return None if mean is None else mean.value


def _accuracy(found: Mapping[str, MethodSummary], dataset: str) -> str:
    ours = _value(found, VANILLA, "clean_auc")
    printed = published_in("text", dataset, "Vanilla", "cAUC", "reported")
    if ours is None or printed is None:
        return ""
    return f"Clean AUC of Vanilla: ours {ours:.4f}, published {printed:.2f}."


def _linear(found: Mapping[str, MethodSummary]) -> str:
    auc, kept = (_value(found, LINEAR, key) for key in ("clean_auc", ER))
    vanilla = _value(found, VANILLA, "clean_auc")
    if auc is None or kept is None or vanilla is None:
        return ""
    gap = f"{auc - vanilla:+.4f}".replace("-", "−")
    return (
        f"The linear control keeps {100 * kept:.1f} under ERAttack at AUC {auc:.4f}, {gap} beside "
        "Vanilla."
    )


COMPARED = {VANILLA: "Vanilla", BEST: "best R2ET", BEST_OTHER: "best other", "sp": "SP"}


def _stronger(found: Mapping[str, MethodSummary]) -> str:
    told = []
    for method, name in COMPARED.items():
        weak, strong = (_value(found, method, key) for key in (ER, STRONG))
        if weak is not None and strong is not None:
            told.append(f"{name} {100 * weak:.1f} → {100 * strong:.1f}")
    return f"From ERAttack to the strong attack: {'; '.join(told)}." if told else ""


def _beside(found: Mapping[str, MethodSummary], key: str, what: str, style: Style) -> str:
    values = {name: _value(found, method, key) for method, name in COMPARED.items()}
    known = {name: value for name, value in values.items() if value is not None}
    if not known or (key == "tie" and max(known.values()) == 0):
        return ""
    listed = ", ".join(f"{name} {written(value, style)}" for name, value in known.items())
    return f"{what}: {listed}."


def settings_tried(rows: Sequence[Result], dataset: str, recipe: str = "paper") -> list[str]:
    """Validation P@k of each setting of each method, averaged over seeds, as sentences.

    Behind a number stands on how many seeds the setting kept the AUC asked for, if not on all.
    """
    by_method: dict[str, list[Result]] = {}
    for row in rows_of(rows, recipe, dataset):
        if len(row.candidates) > 1:
            by_method.setdefault(row.label, []).append(row)
    return [f"{label}: {_tried(own)}." for label, own in by_method.items()]


def _tried(rows: Sequence[Result]) -> str:
    found: dict[str, list[tuple[float, bool]]] = {}
    for row in rows:
        for each in row.candidates:
            name = ", ".join(f"{name} {value}" for name, value in each.settings.items())
            above = row.floor is not None and each.auc >= row.floor
            found.setdefault(name, []).append((each.precision, above))
    told = []
    for name, judged in found.items():
        passed = sum(kept for _, kept in judged)
        mean = sum(precision for precision, _ in judged) / len(judged)
        gate = "" if passed == len(rows) else f" ({passed} of {len(rows)})"
        told.append(f"{name}: {100 * mean:.1f}{gate}")
    return "; ".join(told)


def thickness_agreement(table: PaperTable) -> str:
    """Whether the method with the best P@k also has the greatest thickness, as a sentence."""
    pairs: list[tuple[str, float, float]] = []
    for line in table.lines:
        kept, thick = (entry.ours for entry in line.entries)
        trained = is_rival(line.method) or is_variant(line.method)
        if trained and kept is not None and thick is not None:
            pairs.append((line.label, kept, thick))
    if not pairs:
        return "No method has both numbers yet."
    stable = max(pairs, key=lambda each: each[1])[0]
    thickest = max(pairs, key=lambda each: each[2])[0]
    same = "also has" if stable == thickest else f"has not: {thickest} has"
    return f"{stable} has the highest P@k of the trained methods and {same} the greatest thickness."
