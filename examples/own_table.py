"""A table of your own: from a CSV file to explanations in your own words."""

import sys

import torch

import r2et

data = r2et.read_csv(sys.argv[1], target=sys.argv[2])
split = data.split(seed=0)
model = torch.nn.Sequential(
    torch.nn.Linear(data.n, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, len(data.classes))
)
model, history = r2et.fit(
    model,
    split.train,
    split.valid,
    r2et.methods.r2et(k=3, thickness=0.1, gap="normalised"),
    r2et.FitSettings(epochs=10, batch=256),
)
print(f"validation AUC {history[-1].valid_auc:.3f}")

x = split.test.x[:1]
y = r2et.predicted(model, x)
groups = tuple(data.group_names.index(column.group) for column in data.features)
scores = r2et.explainers.Gradient(groups=groups)(model, x, y)[0]
print("the first test row:", data.describe(data.x[split.test.rows[0]]))
print("predicted:", data.classes[int(y)])
for number in scores.argsort(descending=True)[:3].tolist():
    print(f"  {data.group_names[number]}: {scores[number] / scores.sum():.0%} of the explanation")
