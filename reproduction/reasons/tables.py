"""The tables of the study, and how far the numbers of each move."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from r2et import load
from r2et.data.frames import to_frame
from r2et.data.roots import find

Floats = Any  # arrays of numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A table: words as they are, numbers as numbers, and how far each of these moves."""

    x: pd.DataFrame
    y: Floats
    moves: dict[str, dict[str, float]]
    """By the name of a width: how far each column moves."""
    every: bool
    """Whether all moves can be looked at: few whole numbers."""


def adult() -> Case:
    """Census income: age and hours move by 1, 2 and 5."""
    x, y = to_frame(load("adult"))
    columns = ["age", "hours per week"]
    moves = {f"±{d}": dict.fromkeys(columns, float(d)) for d in (1, 2, 5)}
    return Case(x=x, y=y, moves=moves, every=True)


def _by_deviations(x: pd.DataFrame, y: Any) -> Case:
    """Numbers move by .01 and .05 standard deviations, whole ones by whole ones."""
    moves = {}
    for share in (0.01, 0.05):
        widths = {}
        for name in x.select_dtypes("number"):
            known = x[name].dropna().to_numpy(dtype=float)
            width = share * float(known.std())
            width = float(np.floor(width)) if (known == np.round(known)).all() else width
            if width > 0:
                widths[str(name)] = width
        moves[f"{share:g} sd"] = widths
    return Case(x=x, y=np.asarray(y).astype(int), moves=moves, every=False)


def _csv(name: str, **reading: Any) -> pd.DataFrame:
    path = find(None, [f"tables/{name}", f"bank/{name}", f"compas/{name}"], what=name, source="UCI")
    table: pd.DataFrame = pd.read_csv(path, **reading)
    return table


def german() -> Case:
    """German credit."""
    table = _csv("germancredit.csv.xz")
    return _by_deviations(table.drop(columns="creditability"), table.creditability == "bad")


def default() -> Case:
    """Default of credit card clients."""
    table = _csv("uci_credit.csv.xz").drop(columns="ID")
    words = {name: table[name].astype(str) for name in ("SEX", "EDUCATION", "MARRIAGE")}
    return _by_deviations(table.assign(**words).drop(columns="Default"), table.Default)


def churn() -> Case:
    """Telco churn."""
    table = _csv("churn.csv.xz").drop(columns="customerID")
    charges = pd.to_numeric(table.TotalCharges, errors="coerce").fillna(0.0)
    return _by_deviations(
        table.assign(TotalCharges=charges).drop(columns="Churn"), table.Churn == "Yes"
    )


def titanic() -> Case:
    """Titanic, without names, tickets and cabins; missing ages are the median."""
    table = _csv("titanic.csv.xz")[
        ["Survived", "Pclass", "Sex", "Age", "SibSp", "Parch", "Fare", "Embarked"]
    ]
    table = table.assign(
        Age=table.Age.fillna(table.Age.median()), Embarked=table.Embarked.fillna("S")
    )
    return _by_deviations(table.drop(columns="Survived"), table.Survived)


def bank() -> Case:
    """Bank marketing, as the raw file has it."""
    table = _csv("bank-full.csv.xz", sep=";")
    return _by_deviations(table.drop(columns="y"), table.y == "yes")


def compas() -> Case:
    """COMPAS: two-year recidivism; age and earlier offences move by 1 and 2.

    Its numbers are whole and small: .05 standard deviations of each are less than 1.
    """
    table = _csv("compas_deidentified.csv.xz")
    names = ["age", "sex", "race", "juv_fel_count", "juv_misd_count", "juv_other_count"]
    moves = {f"±{d}": dict.fromkeys(["age", "priors_count"], float(d)) for d in (1, 2)}
    return Case(
        x=table[[*names, "priors_count", "c_charge_degree"]],
        y=table.two_year_recid.to_numpy().astype(int),
        moves=moves,
        every=True,
    )


def numbers_of(case: Case) -> list[tuple[str, pd.Series]]:
    """The columns of a table that hold numbers, by their names."""
    return [(str(name), case.x[name]) for name in case.x.select_dtypes("number")]


TABLES: dict[str, Callable[[], Case]] = {
    "adult": adult,
    "german": german,
    "default": default,
    "churn": churn,
    "titanic": titanic,
    "bank": bank,
    "compas": compas,
}
