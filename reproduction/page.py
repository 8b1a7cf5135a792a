"""The page of results: tables and figures of the papers, written from kept rows."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from r2et.core.files import read_rows, write_text
from r2et.core.settings import changed
from r2et.evaluation.results import Result, result_from
from r2et.experiments.tables import SELECTED_BY
from reproduction.departures import departures_page
from reproduction.figures import pictures
from reproduction.papers import (
    NONE,
    Grid,
    HandlersResult,
    PaperTable,
    StepsResult,
    differences,
    evidence,
    led,
    rows_of,
    settings_tried,
)
from reproduction.reproduce import identity, in_order, stripped
from reproduction.targets import (
    AS_PUBLISHED,
    HANDLERS_ROWS,
    STEPS_ROWS,
    TARGETS,
    Target,
    grids_of,
)

HEAD = """# Results

<!-- Written by `make results` from the rows in docs/results/. Do not edit. -->

Tables and figures of the papers, with the published number beside ours. Each is made by one
command, `r2et reproduce NAME`, which trains, attacks and measures whatever is missing; `r2et
reproduce all` makes them all. Not everything the papers have is here: a dash stands where we have
no number, and some figures have other panels. This page is written from the rows kept in
[docs/results](results), without any model. What pictures and networks need, and what was found on
them, stands in [the guide to pictures](guides/images-and-graphs.md). Where data stand in for those
of the papers, the table says so.

How to read the tables:

- **ours** is the mean over random splits, ± the standard deviation, of our tuned recipe. **as
  written** is recipe `as-published`, which follows the papers to the letter where they speak: gaps
  as a sum over pairs, their six lambdas, one for both terms, the last epoch of enough AUC.
  **published** is the number of the paper. [Departures](departures.md) tells every place where we
  do otherwise. ≠ marks numbers of which ours is more than two standard deviations or five points
  away.
- **failed seeds** are splits on which no setting of a method kept the AUC of Vanilla minus the
  recipe's gate. They are counted and never filled in.
- Settings are chosen on validation data, on every split for itself, and so are *best R2ET* and
  *best other*. That does not make test data unseen: grids of R2ET on Adult were drawn up with test
  numbers in sight, and models were measured again when measures were added.
- The right-hand columns are there to expose a hollow number: clean AUC, P@k under the strong
  attack, how many different top-k sets the attacked examples have, how much of their top k people
  of one predicted class share, kappa (what the strong attack leaves beyond that), the share of the
  gradient in directions in which real data cannot vary, and how many decisions a change of length
  0.1 turns over. The **linear control** is a logistic regression, whose explanations cannot be
  reshuffled.
"""

PROSE: Mapping[str, str] = {
    "table-1": """\
What explains most of the differences:

- **Two pairs of rows are one.** The score of a LeakyReLU network of two classes has a Hessian of
  rank one, whose Frobenius norm and largest eigenvalue agree: Exact-H and SSR are the same
  training. On COMPAS n = 2k, and the facing pairs have the sum of all pairs: R2ET and R2ET-mm are
  the same there. The paper prints different numbers for both pairs.
- **Grids decide about baselines.** A weight decay of 5 leaves a network of Bank that gives all the
  same eight reasons, and half of its gradient lies in directions in which data cannot vary; it
  keeps its AUC, and so it is chosen. Decays up to 0.1, the usual ones, do as Vanilla does there,
  and one of 1 is still below R2ET (settings tried, below). AT is mostly chosen at radius 0.1 or
  0.3, where it does little; at the attack's own radius, 1, its validation P@8 on Adult is lower.
- **Curvature penalties do not steady a ranking here.** They flatten the probability, and networks
  of straight pieces have no other curvature to lose. On COMPAS weights from 0.01 up cost Exact-H
  and SSR the AUC asked for, and smaller ones do nothing.
- **Not all grids were blind.** Those of R2ET on Adult go back to finer and finer ones drawn up with
  test numbers of splits 0 to 4 in sight, the splits shown here. All other grids were drawn up on
  validation data of splits 0 and 1; weights of the curvature below 0.01 and, for R2ET, of 0.3 were
  added after a first table had shown that they were wanted on COMPAS and Bank.
- **The regime flatters.** Networks of tables trained so briefly are hardly more accurate than the
  linear control, which cannot be attacked at all.
- **What bounds an attack on pictures decides everything.** The paper bounds each step by 5 of 255
  and not the whole walk; here that is the bound of the whole, under which MNIST's Vanilla keeps
  less than published, and random changes of that size alone leave it
  72<!--= paper mnist vanilla noise_precision --> % (*noise*).
- **MNIST's R2ET is one of smooth units and poolings** (SP shows what softplus units do alone), its
  curvature taken on half of each batch. How much of both penalties the AUC bears differs from split
  to split, so that a choice among a few weights is part of it; these were drawn up on validation
  data of splits that are not shown. It takes the smooth poolings of our own method on every split;
  no other method of the papers was offered them. Est-H may choose softplus units and always takes
  the larger of its two weights, so that a still larger one might do more for it.
- **To the letter, MNIST's R2ET keeps its AUC over facing pairs only**; over all pairs, and Est-H by
  a difference of .001, with none of the six lambdas. A weight decay of 10 and a softplus of
  sharpness 1, which the papers' grids allow, are the best of the letter there.
- **On CIFAR-10 curvature does the work**: R2ET is one point above Est-H, and gaps alone gain
  nothing. R2ET chose among two weights, Est-H had one.
- **ERAttack is weak against OCT's concepts.** Within 1 of 255
  86<!--= paper oct vanilla flippable --> % of Vanilla's decisions can be turned over;
  the walk of ERAttack ends beyond them (*last*), and what it meets on the way
  counts only where the prediction is kept. The strong attack stays there. AT loses too much AUC on
  every split, SP on two of three.
- **Brain networks are other data than the papers'**, read by a smaller network (64 and 32 units);
  the attack must keep three predictions, and no change is above .003, as a total of .2 leaves
  nothing of any explanation. Methods go on from Vanilla for three epochs. The linear control is far
  more accurate than any graph network here: the task can be learnt, and this architecture is not
  the one to choose for it. On CNP nothing is learnt by anybody: AUCs within classes are about one
  half, and what is called stable there explains noise. It is shown for one fold, in Table 7 for a
  few methods.""",
    "table-2": """\
SmoothGrad takes 50 gradients and Integrated Gradients 100, so these two columns are measured on
fewer splits and examples than the first, and without the strong attack; networks, attack steps and
radius are the same. Those of pairs of pictures and networks are of one split and twelve examples,
and take 20 gradients each. *Trained on* are networks of the same recipe whose gaps are those of
SmoothGrad or Integrated Gradients themselves, of 8 gradients: not in the papers.

On tables our numbers for Integrated Gradients are far below the published ones, for every method.
The linear control tells why: it falls to 47<!--= paper-ig bank linear er_precision -->
to 62<!--= paper-ig adult linear er_precision --> as well. From a baseline of zero the score of a
feature is its value times a mean gradient, so most one-hot columns score exactly zero, and an
attacker who raises them makes them outrank others, however steady the gradients are. No training of
gradients helps against that; we do not know what kept the published numbers so high. Pixels are not
like that, and there the methods stand as published.""",
    "table-3": """\
The paper's Tables 3 and 5 show the same two numbers; both are compared with those of Table 5.""",
    "table-7": """\
Each k has networks of its own, trained with it, selected by P@k at it, and attacked at it. Those of
2 and 5 are of three splits and 200 examples, and spread much more: one of two features is half of
the score. Those of 10 and 30, for pairs of pictures and of networks, are of one split. Their gaps
weigh k/50 of what they do at 50, as the mean share of fewer features is larger; with the weights of
50 no R2ET kept the AUC of MNIST at 10.""",
    "table-8": """\
Retraining starts from the Vanilla network of the same split and keeps its ranking; it ends when the
explanations leave Vanilla's too far or the AUC falls. SP is another network and cannot be
retrained. The retrained are of three splits and 200 examples, so that Vanilla differs a little,
too. They gain less than published: our retraining must keep Vanilla's explanations, and ends early
where stability could only be had by leaving them.""",
    "table-6": """\
Both AUCs are of the same attacked pairs, and the attacks must keep the answers about the pair and
about each of its two networks, S = 3. The papers do not say of which pairs theirs are.""",
    "table-9": """\
DFFOT: share of the features that must be taken away, the most important first, until the prediction
changes; 1 where it never does. That is most of one class: without its features an example is near
the zero vector, which is of the other class or not. So those that flip, the share that never does
and both predicted classes are shown apart. COMP: how far the probability moves without the top
features. SUFF: how far it moves with them alone.""",
    "figure-3": """\
The example is the first of the first split, not picked. CIFAR-10 is explained by its top 100, as in
the paper, and has networks of its own, trained and selected for them.""",
    "figure-4": """\
The manipulation epoch is the ERAttack step at which the first feature leaves the top k, of pictures
and networks that at which more than a fifth of them has left; examples that never flip count as one
step more than the last. The lines of panels are those of the paper: Vanilla and Est-H on Adult,
R2ET on Adult, COMPAS, MNIST, and on ABIDE and CNP, which stand in for ADHD and BP. Each dot is an
example of the first split. Below, and in the table, stand the correlations of more models over all
splits. Where rows have kept no dots, a panel has these as well.""",
    "figure-6": """\
The paper draws this figure for two graph data sets. On tabular data and MNIST it uses unconstrained
attacks, saying that they change no prediction. Of pairs an attack keeps three predictions, that of
the pair and those of both its items; changed is an input of which any of them is another.""",
    "figure-9": """\
Three splits, thickness 0.1 or 0.3 chosen on validation data. R2ET\\H takes the gaps between the
feature of place k and its neighbours in the ranking. The last of these has place k + k' + 1 in P
and k + k' in Q, and the curves are named after them. **With the limits of Q there is one method,
not two**: the sum of its gaps is that of the facing pairs of R2ET-mm\\H, and the means differ by
the factor k' / (2k' − 1) alone, that is in what a thickness weighs. With one pair they are the same
training, and have the same numbers. One such pair is too few under the strong attack; with P's
limits, which reach one place further, it is as good as more. From two on, the number of pairs makes
no difference beyond the spread of the splits. The paper prints its numbers in the figure only.""",
    "figure-7": """\
The paper draws this figure for MNIST and two graph data sets, under ERAttack; here are the tabular
ones as well, and a third panel for each, under our strong attack. Triangles are R2ET and its
variants. cAUC is that of the whole test part and aAUC that of the examples that are attacked, so
that the two differ by the choice of these, too: the line at a mark leads to the AUC of the same
examples before the attack.""",
    "figure-8": """\
Scores are shares of the largest one of each example, so that data sets can be compared. The broken
lines are at the k of Table 7.""",
}


def page(rows: Sequence[Result], folder: str) -> tuple[str, dict[str, str]]:
    """The page in Markdown, and its pictures by the names of their files in `folder`."""
    told = {target.name: grids_of(target, rows) for target in TARGETS.values()}
    sections = [HEAD, _contents(told)]
    files: dict[str, str] = {}
    for target in TARGETS.values():
        drawn = pictures(target, rows) if told[target.name] else {}
        files |= {f"{name}.svg": svg for name, svg in drawn.items()}
        paths = [f"{folder}/{name}.svg" for name in drawn]
        sections.append(_section(target, told[target.name], rows, paths))
    return "\n".join(sections), files


def _contents(told: Mapping[str, Sequence[Grid]]) -> str:
    lines = ["| | what it shows | rows |", "|---|---|---|"]
    for target in TARGETS.values():
        have = "yes" if told[target.name] else "not yet"
        anchor = target.title.lower().replace(" ", "-")
        lines.append(f"| [{target.title}](#{anchor}) | {_escaped(target.line)} | {have} |")
    return "\n".join([*lines, ""])


def _section(
    target: Target, grids: Sequence[Grid], rows: Sequence[Result], drawn: Sequence[str]
) -> str:
    text = [f"## {target.title}\n", f"{target.line} `r2et reproduce {target.name}`\n"]
    if prose := PROSE.get(target.name):
        text.append(f"{prose}\n")
    if not grids:
        text.append(f"*No rows yet: `r2et reproduce {target.name}` makes them.*\n")
    text += [f"![{target.title}]({path})\n" for path in drawn]
    for grid in grids:
        text.append(markdown(grid))
        if grid.table is not None:
            text.append(_compared(grid.table, rows, with_evidence=target.name == "table-1"))
    return "\n".join(text)


def markdown(grid: Grid) -> str:
    """A table in Markdown: title and settings above, notes and what belongs to it below."""
    lines = [f"### {grid.title}\n"]
    if grid.settings:
        lines.append("  \n".join(f"{each[:1].upper()}{each[1:]}." for each in grid.settings) + "\n")
    lines += [*_table(grid), "", *(f"- {_escaped(note)}" for note in grid.notes), ""]
    if grid.below is not None:
        lines += [f"{grid.below.title}:\n", *_table(grid.below), ""]
    return "\n".join(lines)


def _table(grid: Grid) -> list[str]:
    first = [_escaped(heading) for heading in grid.headings]
    sides = ["---:" if _is_number(grid, number) else "---" for number in range(len(first))]
    return [
        _line(first),
        _line(sides),
        *(
            _line(
                f"**{_escaped(cell)}**" if (at, number) in grid.strong else _escaped(cell)
                for number, cell in enumerate(cells)
            )
            for at, cells in enumerate(grid.lines)
        ),
    ]


def _is_number(grid: Grid, number: int) -> bool:
    cells = [line[number] for line in grid.lines if line[number] not in ("", NONE)]
    return number > 0 and sum(cell[0] in "0123456789+−–" for cell in cells) > len(cells) / 2


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


TRIED = """
**Settings tried**: mean validation P@k under {attack}; in brackets, on how many splits the setting
kept the AUC asked for, if not on all
"""


TRIED_AS_WRITTEN = """
**The papers' lambdas, as written**: the same of recipe as-published, sums over pairs
"""


def _compared(table: PaperTable, rows: Sequence[Result], *, with_evidence: bool) -> str:
    """Where ours differ, who leads, and what the rows say about it."""
    told = ["**Against the paper**\n"]
    told += [f"- {_escaped(each)}" for each in differences(table)]
    told += [f"- {_escaped(led(each))}" for each in table.leads]
    if with_evidence and (own := rows_of(rows, table.recipes[0], table.dataset)):
        told.append("\n**What the rows say about it**\n")
        told += [f"- {_escaped(each)}" for each in evidence(rows, table.dataset)]
        told.append(TRIED.format(attack=SELECTED_BY[own[0].selected_by]))
        told += [f"- {_escaped(each)}" for each in settings_tried(rows, table.dataset)]
        if written := settings_tried(rows, table.dataset, AS_PUBLISHED):
            told.append(TRIED_AS_WRITTEN)
            told += [f"- {_escaped(each)}" for each in written]
    return "\n".join([*told, ""])


ROW_KINDS: Mapping[str, type[Result]] = {HANDLERS_ROWS: HandlersResult, STEPS_ROWS: StepsResult}


def kept_rows(folder: Path) -> list[Result]:
    """The rows of all files of a folder, in order."""
    return in_order([row for path in folder.glob("*.jsonl") for row in _kept_in(path)])


def _kept_in(path: Path) -> list[Result]:
    """The rows of a file, each of the kind that its recipe says, a result unless it is special."""
    return [
        result_from(ROW_KINDS.get(row.get("recipe", ""), Result), row, f"row {number} of {path}")
        for number, row in enumerate(read_rows(path), 1)
    ]


def keep_rows(rows: Sequence[Result], folder: Path) -> None:
    """Write the rows, stripped, into a file for each recipe; others of its rows stay there.

    A row takes the place of one of the same key, and of one of the same data set, seed, method and
    number of pairs: a method that failed once and passes now has no pairs in its older row.
    """
    keys = {row.key for row in rows}
    for recipe in dict.fromkeys(row.recipe for row in rows):
        path = folder / f"{recipe}.jsonl"
        merged = {identity(row): row for row in _kept_in(path) if row.key not in keys}
        merged |= {identity(row): stripped(row) for row in rows if row.recipe == recipe}
        write_text(path, "".join(_json(row) for row in in_order(list(merged.values()))))


def _json(row: Result) -> str:
    return json.dumps(changed(row), sort_keys=True, allow_nan=False) + "\n"


def write_page(rows: Sequence[Result], path: Path) -> Path:
    """The path of the page, now written, with its pictures in a folder of its name beside it.

    And beside it departures.md, where we do otherwise than the papers.

    Pictures that it no longer has are taken away.
    """
    folder = path.with_suffix("")
    text, files = page(rows, folder.name)
    for name, svg in files.items():
        write_text(folder / name, svg)
    for old in folder.glob("figure-*.svg"):
        if old.name not in files:
            old.unlink()
    write_text(path.with_name("departures.md"), departures_page(rows))
    return write_text(path, text)
