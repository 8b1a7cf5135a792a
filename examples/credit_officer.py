"""From a CSV file to a page that says which reasons of a boosted model hold.

python examples/credit_officer.py loans.csv default out
"""

import sys

import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import r2et

path, target, out = sys.argv[1:4]
table = pd.read_csv(path)
for name in table.select_dtypes(exclude="number"):
    table[name] = table[name].astype("category")
train, test = train_test_split(table, test_size=0.3, random_state=0)

model = HistGradientBoostingClassifier(max_iter=100, random_state=0)
model.fit(train.drop(columns=target), train[target])
people = test.drop(columns=target)
auc = roc_auc_score(test[target], model.predict_proba(people)[:, 1])
print(f"AUC {auc:.3f}")

# Would the three reasons of each decision survive .01 standard deviations more or less of any
# amount? Whole numbers move by whole ones.
found = r2et.audit(
    model, people, k=3, tolerance=0.01, reference=train.drop(columns=target), rows=50, out=out
)
print(found.counts)
for decision in found.decisions:
    if decision.verdict == "broken":
        print(f"decision {decision.row}:", "; ".join(map(str, decision.reasons)))
        print("  but:", decision.change)
        break
print("the page:", found.page)
