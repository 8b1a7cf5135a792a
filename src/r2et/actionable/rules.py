"""What a person can change, said in rules: from those and a data set to what an attack may use."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path

from r2et.actionable.sets import ActionableSet, Choice, Number, Way
from r2et.core.limits import content_of, toml_of
from r2et.core.naming import nearest
from r2et.core.settings import settings_from
from r2et.data.dataset import Dataset, Split
from r2et.data.features import Feature, Scale
from r2et.perturbations import UNSAID

EVERY = "*"  # the name of the rule that speaks of all groups
OF_EVERY = ("fixed", "swap", "share")  # all that it may say
OF_NUMBERS = ("per_eps", "share", "whole", "low", "high")  # what only numbers have
MOST_WHOLE = 1e6  # float32 inputs cannot tell whole numbers beyond from each other


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a person can do about one group of columns; what is not said has a default."""

    fixed: bool | None = None
    """Nothing: the columns never move. False if not said."""
    swap: float | None = None
    """Price of another category, or of the other value of a 0/1 column. 1 if not said."""
    per_eps: float | None = None
    """The change of a number, in original units, that has the price 1."""
    share: float | None = None
    """The same as a share of the scale's width, as a rule the training range. 1 if not said."""
    whole: bool | None = None
    """Numbers change by whole units only. If not said, they do if all in the data are whole."""
    low: float | None = None
    """The least value, in original units. That of the data if not said."""
    high: float | None = None
    """The greatest value, likewise."""
    only: Way | None = None
    """The one direction in which a number, or a column of 0 and 1, can change."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("fixed", "whole"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValueError(f"{name!r} must be true or false, got {getattr(self, name)!r}.")
        for name in ("swap", "per_eps", "share", "low", "high"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and abs(value) <= sys.float_info.max):
                raise ValueError(f"{name!r} must be a finite number, got {value!r}.")
            if value is not None and name not in ("low", "high") and not 1e-30 < value < 1e30:
                raise ValueError(f"{name!r} must lie above 0 and below 1e30, got {value!r}.")
        if self.only not in (None, "up", "down"):
            raise ValueError(f"'only' must be 'up' or 'down', got {self.only!r}.")
        if self.per_eps is not None and self.share is not None:
            raise ValueError("'per_eps' and 'share' say the same thing: give one of them.")


Rules = Mapping[str, Rule]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rule_names() -> list[str]:
    """The names of the rules that come with the package: those of their data sets."""
    folder = resources.files("r2et.data") / "rules"
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))


def read_rules(name: str | Path) -> dict[str, Rule]:
    """The rule of each group, by the name of an embedded data set or from a TOML file."""
    if str(name).endswith(".toml"):
        if not Path(name).is_file():
            raise ValueError(f"there is no file of rules {str(name)!r}: check the path.")
        content = content_of(name)
    elif str(name) in rule_names():
        content = (resources.files("r2et.data") / "rules" / f"{name}.toml").read_bytes()
    else:
        raise ValueError(f"unknown rules {str(name)!r}: {nearest(str(name), rule_names())}")
    table = toml_of(content, f"the file of rules {str(name)!r}")
    return {
        group: settings_from(Rule, settings, f"[{group}] of the rules {str(name)!r}")
        for group, settings in table.items()
    }


def actionable_set(
    data: Split | tuple[Dataset, Scale], rules: Rules | None = None, *, radius: float = UNSAID
) -> ActionableSet:
    """What a person could change for `radius`, by the rules of its groups.

    Groups without a rule follow that of "*", or the defaults that `Rule` states.
    """
    dataset, scale = (data.dataset, data.scale) if isinstance(data, Split) else data
    rules = {} if rules is None else rules
    _check_names(rules, dataset)
    _check_scale(dataset, scale)
    every = rules.get(EVERY, Rule())
    numbers: list[Number] = []
    choices: list[Choice] = []
    fixed: list[str] = []
    for group in dataset.group_names:
        rule = _completed(rules.get(group, Rule()), every)
        columns = [at for at, each in enumerate(dataset.features) if each.group == group]
        _check_rule(group, rules.get(group, Rule()), [dataset.features[at] for at in columns])
        more_numbers = _numbers_of(rule, columns, dataset, scale)
        more_choices = [] if more_numbers else _choices_of(rule, columns, dataset.features)
        if rule.fixed or not (more_numbers or more_choices):
            fixed.append(group)
        else:
            numbers += more_numbers
            choices += more_choices
    return ActionableSet(
        columns=dataset.n,
        numbers=tuple(numbers),
        choices=tuple(choices),
        fixed=tuple(fixed),
        radius=radius,
    )


def _completed(rule: Rule, every: Rule) -> Rule:
    """The rule, filled in from that of all groups where it says nothing."""
    said = {name: getattr(rule, name) for name in OF_EVERY}
    filled = {name: getattr(every, name) for name, value in said.items() if value is None}
    if rule.per_eps is not None:
        filled.pop("share")
    return replace(rule, **filled)


def _numbers_of(rule: Rule, columns: Sequence[int], dataset: Dataset, scale: Scale) -> list[Number]:
    """The numbers among the columns of one group; its 0/1 columns mark missing values."""
    marks = tuple(at for at in columns if dataset.features[at].kind == "binary")
    numbers: list[Number] = []
    for at in columns:
        feature, width = dataset.features[at], float(scale.width[at])
        if feature.kind != "numeric":
            continue
        values = dataset.x[:, at]
        values = values[~values.isnan()]
        low = feature.low if rule.low is None else float(rule.low)
        high = feature.high if rule.high is None else float(rule.high)
        if low > high:
            raise ValueError(
                f"the rule of {feature.group!r} leaves no value between low {low:g} and high "
                f"{high:g}: change one of them."
            )
        largest = max(abs(low), abs(high), abs(feature.low), abs(feature.high))
        if rule.whole and largest > MOST_WHOLE:
            raise ValueError(
                f"'whole' is for numbers up to {MOST_WHOLE:,.0f}, but {feature.group!r} goes to "
                f"{largest:,.0f}, where model inputs cannot show single units: say whole = false."
            )
        whole = bool((values == values.round()).all()) and largest <= MOST_WHOLE
        share = 1.0 if rule.share is None else float(rule.share)
        numbers.append(
            Number(
                name=feature.name,
                column=at,
                per_eps=share * width if rule.per_eps is None else float(rule.per_eps),
                shift=float(scale.shift[at]),
                width=width,
                low=low,
                high=high,
                whole=whole if rule.whole is None else rule.whole,
                only=rule.only,
                marks=marks,
                unit=feature.unit,
            )
        )
    return numbers


def _choices_of(rule: Rule, columns: Sequence[int], features: Sequence[Feature]) -> list[Choice]:
    """The choices among the columns of one group: its categories, and each 0/1 column."""
    swap = 1.0 if rule.swap is None else float(rule.swap)
    categories = tuple(at for at in columns if features[at].kind == "category")
    singles = [at for at in columns if features[at].kind == "binary"]
    choices = [
        Choice(
            name=features[at].name,
            columns=(at,),
            swap=swap,
            only=rule.only,
            words=features[at].words or ("0", "1"),
        )
        for at in singles
    ]
    if len(categories) > 1:
        choices.append(Choice(name=features[columns[0]].group, columns=categories, swap=swap))
    return choices


def _check_names(rules: Rules, dataset: Dataset) -> None:
    """Refuse rules of groups that do not exist, and a rule of all groups that says too much."""
    for name, rule in rules.items():
        if not isinstance(rule, Rule):
            raise ValueError(f"the rule of {name!r} must be a Rule, got {rule!r}.")
        if name != EVERY and name not in dataset.group_names:
            raise ValueError(
                f"the rules speak of {name!r}, of which the data {dataset.name!r} know nothing: "
                f"{nearest(name, dataset.group_names)}"
            )
    for field in fields(Rule):
        said = getattr(rules.get(EVERY, Rule()), field.name)
        if said is not None and field.name not in OF_EVERY:
            raise ValueError(
                f"the rule of all groups, {EVERY!r}, may state {', '.join(OF_EVERY)} but not "
                f"{field.name!r}: state it for each group."
            )


def _check_scale(dataset: Dataset, scale: Scale) -> None:
    """Refuse a scale of other data, or one that scales columns of 0 and 1."""
    if scale.width.shape != (dataset.n,) or scale.shift.shape != (dataset.n,):
        raise ValueError(
            f"the scale must hold {dataset.n} columns as the data do, got "
            f"{tuple(scale.width.shape)}: give the scale of these data."
        )
    for feature, shift, width in zip(
        dataset.features, scale.shift.tolist(), scale.width.tolist(), strict=True
    ):
        if feature.kind != "numeric" and (shift, width) != (0.0, 1.0):
            raise ValueError(
                f"columns of 0 and 1 must not be scaled, but {feature.name!r} is, by shift "
                f"{shift:g} and width {width:g}: leave them as they are."
            )


def _check_rule(group: str, rule: Rule, features: Sequence[Feature]) -> None:
    """Refuse settings that mean nothing for the columns of a group."""
    kinds = {feature.kind for feature in features}
    if "numeric" in kinds:
        if rule.swap is not None:
            raise ValueError(
                f"{group!r} holds numbers, which have no 'swap': state 'per_eps' instead."
            )
        return
    for name in OF_NUMBERS:
        if getattr(rule, name) is not None:
            raise ValueError(
                f"{group!r} holds no numbers, and {name!r} means nothing for it: state 'swap' or "
                f"'fixed'."
            )
    if rule.only is not None and "category" in kinds:
        raise ValueError(
            f"the categories of {group!r} have no order, and 'only' means nothing for them: state "
            f"'swap' or 'fixed'."
        )
