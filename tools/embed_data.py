"""Write the embedded data sets from their raw files: python tools/embed_data.py RAW_FOLDER.

RAW_FOLDER holds adult/adult.data.xz, adult/adult.test.xz, bank/bank-full.csv.xz and
compas/compas_deidentified.csv.xz. The same input gives the same bytes.
"""

import argparse
import csv
import io
import lzma
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from r2et.data.builtin import table_of

FILES = Path(__file__).parents[1] / "src" / "r2et" / "data" / "files"

Row = dict[str, str]
Rows = list[dict[str, str | int]]

ADULT_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours",
    "country",
    "income",
]

WORK_CLASS = {
    "Federal-gov": "Government",
    "Local-gov": "Government",
    "State-gov": "Government",
    "Self-emp-inc": "Self-Employed",
    "Self-emp-not-inc": "Self-Employed",
    "Private": "Private",
    "Never-worked": "Other/Unknown",
    "Without-pay": "Other/Unknown",
    "?": "Other/Unknown",
}
EDUCATION = {
    "Assoc-acdm": "Assoc",
    "Assoc-voc": "Assoc",
    "Bachelors": "Bachelors",
    "Doctorate": "Doctorate",
    "HS-grad": "HS-grad",
    "Masters": "Masters",
    "Prof-school": "Prof-school",
    "Some-college": "Some-college",
    **dict.fromkeys(
        ("Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th"), "School"
    ),
}
MARITAL = {
    "Divorced": "Divorced",
    "Married-AF-spouse": "Married",
    "Married-civ-spouse": "Married",
    "Married-spouse-absent": "Married",
    "Separated": "Separated",
    "Never-married": "Single",
    "Widowed": "Widowed",
}
OCCUPATION = {
    "Adm-clerical": "White-Collar",
    "Exec-managerial": "White-Collar",
    "Craft-repair": "Blue-Collar",
    "Farming-fishing": "Blue-Collar",
    "Handlers-cleaners": "Blue-Collar",
    "Machine-op-inspct": "Blue-Collar",
    "Transport-moving": "Blue-Collar",
    "Other-service": "Service",
    "Priv-house-serv": "Service",
    "Protective-serv": "Service",
    "Tech-support": "Service",
    "Prof-specialty": "Professional",
    "Sales": "Sales",
    "Armed-Forces": "Other/Unknown",
    "?": "Other/Unknown",
}
RACE = {
    "White": "White",
    **dict.fromkeys(("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other"), "Other"),
}
JOB = {
    "admin.": "White-collar",
    "management": "White-collar",
    "technician": "Technician",
    "blue-collar": "Blue-collar/service",
    "services": "Blue-collar/service",
    "housemaid": "Blue-collar/service",
    "self-employed": "Self-employed",
    "entrepreneur": "Self-employed",
    "retired": "Retired/student",
    "student": "Retired/student",
    "unemployed": "Not working/unknown",
    "unknown": "Not working/unknown",
}
AGE_GROUP = {"Less than 25": "under 25", "25 - 45": "25 to 45", "Greater than 45": "over 45"}
COMPAS_RACE = {
    "African-American": "African-American",
    "Caucasian": "Caucasian",
    "Hispanic": "Hispanic",
    **dict.fromkeys(("Asian", "Native American", "Other"), "Other"),
}
YES = {"0": "no", "1": "yes"}


def text_of(path: Path) -> str:
    """The text of an xz file."""
    return lzma.decompress(path.read_bytes()).decode("ascii")


def adult(raw: Path) -> Rows:
    """Rows of Adult, the training file before the test file."""
    text = text_of(raw / "adult" / "adult.data.xz") + text_of(raw / "adult" / "adult.test.xz")
    lines = [line for line in text.splitlines() if line and not line.startswith("|")]
    rows = [dict(zip(ADULT_COLUMNS, line.split(", "), strict=True)) for line in lines]
    return [
        {
            "age": int(row["age"]),
            "hours per week": int(row["hours"]),
            "work class": WORK_CLASS[row["workclass"]],
            "education": EDUCATION[row["education"]],
            "marital status": MARITAL[row["marital"]],
            "occupation": OCCUPATION[row["occupation"]],
            "race": RACE[row["race"]],
            "gender": row["sex"],
            "income": row["income"].rstrip("."),
        }
        for row in rows
    ]


def bank(raw: Path) -> Rows:
    """Rows of Bank Marketing, client attributes only."""
    text = text_of(raw / "bank" / "bank-full.csv.xz")
    return [
        {
            "age": int(row["age"]),
            "balance": int(row["balance"]),
            "job": JOB[row["job"]],
            "marital status": row["marital"],
            "education": row["education"],
            "default": row["default"],
            "housing loan": row["housing"],
            "personal loan": row["loan"],
            "subscribes to a term deposit": row["y"],
        }
        for row in csv.DictReader(io.StringIO(text), delimiter=";")
    ]


def passes_filter(row: Row) -> bool:
    """Whether ProPublica's own analysis kept the row."""
    days = row["days_b_screening_arrest"]
    return (
        bool(days)
        and abs(float(days)) <= 30
        and row["is_recid"] != "-1"
        and row["c_charge_degree"] != "O"
        and row["score_text"] in ("Low", "Medium", "High")
    )


def compas(raw: Path) -> Rows:
    """Rows of COMPAS that pass ProPublica's filter."""
    text = text_of(raw / "compas" / "compas_deidentified.csv.xz")
    return [
        {
            "age group": AGE_GROUP[row["age_cat"]],
            "race": COMPAS_RACE[row["race"]],
            "sex": row["sex"],
            "charge degree": {"M": "misdemeanour", "F": "felony"}[row["c_charge_degree"]],
            "priors": int(row["priors_count"]),
            "juvenile felonies": int(row["juv_fel_count"]),
            "juvenile misdemeanours": int(row["juv_misd_count"]),
            "juvenile other offences": int(row["juv_other_count"]),
            # 183 of the kept rows record a stay of -1 days.
            "length of stay": max(0, int(float(row["length_of_stay"]))),
            "reoffended within two years": YES[row["two_year_recid"]],
            "violent reoffence": YES[row["is_violent_recid"]],
            "COMPAS risk score": "low" if row["score_text"] == "Low" else "medium or high",
        }
        for row in csv.DictReader(io.StringIO(text))
        if passes_filter(row)
    ]


def arrays_of(name: str, rows: Rows) -> dict[str, npt.NDArray[np.integer]]:
    """One array of numbers or codes for each attribute and the target, in the smallest type."""
    table = table_of(name)
    words = {each.name: getattr(each, "labels", ()) for each in table.schema.attributes}
    words[table.target] = table.classes
    return {
        key: smallest(int(row[key]) if not values else values.index(str(row[key])) for row in rows)
        for key, values in words.items()
    }


def smallest(numbers: Iterable[int]) -> npt.NDArray[np.integer]:
    """The numbers in the smallest little-endian integer type that holds them."""
    wide = np.fromiter(numbers, dtype="<i8")
    kinds = ("|u1", "<i2", "<i4", "<i8")
    return next(
        wide.astype(kind)
        for kind in kinds
        if np.iinfo(kind).min <= wide.min() and wide.max() <= np.iinfo(kind).max
    )


def npz_bytes(arrays: dict[str, npt.NDArray[np.integer]]) -> bytes:
    """An npz file that numpy reads, with fixed dates so that equal arrays give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for key, values in arrays.items():
            plain = io.BytesIO()
            np.lib.format.write_array(plain, values, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            archive.writestr(entry, plain.getvalue(), compress_type=zipfile.ZIP_LZMA)
    return packed.getvalue()


def embed(raw: Path, out: Path) -> None:
    """Write one npz file for each embedded data set into `out`."""
    for name, rows_of in SETS.items():
        (out / f"{name}.npz").write_bytes(npz_bytes(arrays_of(name, rows_of(raw))))


SETS: dict[str, Callable[[Path], Rows]] = {"adult": adult, "bank": bank, "compas": compas}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path, help="folder of the raw files")
    parser.add_argument("--out", type=Path, default=FILES, help="folder to write to")
    arguments = parser.parse_args()
    embed(arguments.raw, arguments.out)
