"""`r2et attack`: P@k of one model's explanations at several radii."""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from r2et.cli.common import (
    AsJson,
    Category,
    DataRoot,
    Drop,
    ProjectOneHot,
    Target,
    Weights,
    check_place,
    check_there,
    errors,
)


def attack_command(
    data: Annotated[
        str,
        typer.Argument(
            help="adult, bank, compas, or the path of a CSV file of your own (with --target)."
        ),
    ] = "adult",
    model: Annotated[
        str | None,
        typer.Option(
            help="A model file of a run (in FOLDER/models), or module:factory, a function of yours "
            "that returns a network; an ordinary network is trained unless given."
        ),
    ] = None,
    weights: Weights = None,
    attack: Annotated[
        str, typer.Option(help="One of the attacks that `r2et list` names.")
    ] = "strong",
    eps: Annotated[
        list[float] | None,
        typer.Option(help="A radius of the curve; repeat. 0.05, 0.1, 0.25, 0.5, 1 unless given."),
    ] = None,
    perturbation: Annotated[
        str,
        typer.Option(
            help="l2 or linf (any number may change), actionable (what a person could change), or "
            "the path of a TOML file of rules."
        ),
    ] = "l2",
    explainer: Annotated[
        str, typer.Option(help="One of the explainers that `r2et list` names.")
    ] = "grad",
    of: Annotated[
        str | None,
        typer.Option(
            help="Explain the probability, logit, margin or loss; the probability unless given, "
            "by shapley the margin."
        ),
    ] = None,
    project_one_hot: ProjectOneHot = False,
    noise: Annotated[
        str,
        typer.Option(
            help="For smooth-grad: shared (the attacker knows the noise), or fresh (attacked "
            "explanations are shown with other noise, too)."
        ),
    ] = "shared",
    handling: Annotated[
        str | None,
        typer.Option(
            help="For er and mse, how predictions are kept: one of the ways that `r2et list` names."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Effort of the strong attack, 4 unless given.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit of the strong attack at each radius.")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="How many test examples: 300, or 10 with shapley, unless given."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Of the split and of the attack; a run's model has its own split."
        ),
    ] = 0,
    k: Annotated[
        int | None,
        typer.Option(
            "-k", help="How many top features are shown: 8 unless given, of shapley 3 attributes."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for one line of JSON for each example: attacked inputs, changes in words, "
            "reasons before and after."
        ),
    ] = None,
    compare_handling_to: Annotated[
        Path | None,
        typer.Option(
            "--compare-handling",
            help="Instead: P@k against changed predictions for every way to keep predictions, "
            "drawn into this SVG file.",
        ),
    ] = None,
    as_json: AsJson = False,
    target: Target = None,
    drop: Drop = None,
    category: Category = None,
    data_root: DataRoot = None,
) -> None:
    """Attack the explanations of one model and print P@k at several radii.

    Beside the curve stands what would expose it: whether more effort would find more, signs that
    gradients mislead the attack, ties, the off-data share, the number of distinct top-k sets, and
    whether gradients say anything about exchanges of categories.

    For example:

        r2et attack adult

        r2et attack adult --perturbation actionable --out attacked.jsonl

        r2et attack adult --explainer shapley --perturbation actionable

        r2et attack loans.csv --target default --model mine:network --weights mine.safetensors
    """
    if compare_handling_to is not None:
        given = {"out": out, "handling": handling, "rounds": rounds, "seconds": seconds}
        for name in (name for name, value in given.items() if value is not None):
            raise ValueError(f"--compare-handling takes no --{name}: leave one of them out.")
    for path in (out, compare_handling_to):
        check_place(path)
    check_there(data, "file")
    check_there(model, "model file")
    from r2et.core.files import write_text
    from r2et.data import open_dataset
    from r2et.experiments.attack_records import AttackRunSettings, usual_choices
    from r2et.experiments.attack_run import (
        attack_model,
        check_request,
        compared_handling,
        example_rows,
        given_model,
    )
    from r2et.report.charts import constraint_handling, file_of
    from r2et.report.terminal import print_findings, print_handling

    usual_k, usual_of = usual_choices(explainer)
    if examples is None:  # contributions take a thousand mixtures for each explanation
        examples = 10 if explainer == "shapley" else 300
    settings = AttackRunSettings(
        attack=attack,
        k=usual_k if k is None else k,
        epsilons=tuple(eps) if eps else AttackRunSettings().epsilons,
        examples=examples,
        explainer=explainer,
        of=usual_of if of is None else of,
        project_one_hot=project_one_hot,
        noise=noise,
        perturbation=perturbation,
        handling=handling,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
    )
    dataset = open_dataset(data, target=target, drop=drop or (), categories=category or ())
    check_request(settings, dataset)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    with errors.status("preparing the model" if model else "training an ordinary network"):
        network, split = given_model(dataset, model, weights, seed)
    if compare_handling_to is not None:
        with errors.status("comparing the ways to keep predictions"):
            points = compared_handling(network, split, settings)
        write_text(compare_handling_to, file_of(partial(constraint_handling, points)))
        if as_json:
            records = [dataclasses.asdict(point) for point in points]
            print(json.dumps(records, indent=1, allow_nan=False))
            return
        print_handling(points, settings, split, console)
        console.print(f"\nThe figure: {compare_handling_to}")
        return
    with errors.status(f"attacking {min(examples, len(split.test))} explanations"):
        findings = attack_model(network, split, settings)
    if out is not None:
        rows = (json.dumps(row, allow_nan=False) for row in example_rows(split, findings))
        write_text(out, "".join(f"{row}\n" for row in rows))
    if as_json:
        record = {"data": dataset.name, **findings.record()}
        print(json.dumps(record, indent=1, allow_nan=False))
        return
    print_findings(findings, dataset.name, console)
    if findings.contributions is not None:
        console.print(findings.contributions)
    if out is not None:
        console.print(f"\nThe attacked examples: {out}")
