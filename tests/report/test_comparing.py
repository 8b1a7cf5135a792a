"""Models side by side: the same people, the same moves, the same reference."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

import r2et


def table() -> tuple[pd.DataFrame, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    draw = np.random.default_rng(1)
    x = pd.DataFrame(draw.integers(0, 40, (500, 4)), columns=list("abcd"))
    return x, (x["a"] + x["b"] * (x["c"] > 20) + draw.normal(0, 8, 500) > 35).to_numpy().astype(int)


def test_each_row_is_what_an_audit_of_the_model_says(tmp_path: Path) -> None:
    x, y = table()
    widths = {"a": 1.0, "b": 2.0}
    models = {
        "trees": HistGradientBoostingClassifier(max_iter=10),
        "line": LogisticRegression(max_iter=500),
        "bands": make_pipeline(r2et.StableBinner(widths), LogisticRegression(max_iter=500)),
    }
    found = r2et.compare(
        models, x[300:], y[300:], train=(x[:300], y[:300]), k=2, tolerance=widths, rows=40
    )
    assert list(found.frame.index) == list(models)
    for row in found.rows:
        counts = row.audit.counts
        assert sum(counts.values()) == 40
        assert row.broken == counts["broken"] / 40
        assert row.certified + row.broken + row.undetermined == pytest.approx(1)
        assert row.seconds is not None
    fitted = models["trees"].fit(x[:300], y[:300])
    again = r2et.compare({"trees": fitted}, x[300:], y[300:], k=2, tolerance=widths, rows=40)
    assert again.rows[0].seconds is None
    assert again.rows[0].auc == found.rows[0].auc
    assert again.rows[0].auc == roc_auc_score(y[300:], fitted.predict_proba(x[300:])[:, 1])
    assert "trees" in found.plot(tmp_path / "frontier.svg").read_text()
    assert str(found).splitlines()[0].split()[:2] == ["auc", "overlap"]


def test_rows_and_labels_must_be_equally_many() -> None:
    x, y = table()
    with pytest.raises(ValueError, match="equally many"):
        r2et.compare({"line": LogisticRegression().fit(x, y)}, x, y[:3])
    with pytest.raises(ValueError, match="one model or more"):
        r2et.compare({}, x, y)
