"""R2ET in a training loop of your own: the objective is all that changes."""

import torch

import r2et

split = r2et.load("compas").split(seed=0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, 2))

objective = r2et.Objective(model, r2et.methods.r2et(k=8, thickness=0.1, gap="normalised"))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(20):
    for rows in torch.randperm(len(split.train)).split(256):
        optimizer.zero_grad()
        loss = objective(split.train.x[rows], split.train.y[rows])
        loss.backward()
        optimizer.step()

x = split.test.x[:200].double()
model = model.double()
attacked = r2et.attack(model, x, k=8, radius=0.5)
print(f"of the top 8 reasons, {attacked.precision.mean():.0%} survive a strong attack")
