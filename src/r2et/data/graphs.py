"""Graphs over common nodes, such as brains: read from files, divided into pairs.

Of a network the numbers above the diagonal count, row by row; a diagonal is never read. All files
are read as plain numbers and words: nothing in them is run, and no archive is unpacked to the disk.
"""

import io
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from r2et.core.archives import COPIES, UNREADABLE, arrays_in, opened
from r2et.core.inputs import Piece, check_symmetric, upper_triangle
from r2et.core.limits import TEXT, TooLargeError, check_bytes, most_bytes
from r2et.core.naming import nearest, one_line
from r2et.data.dataset import Dataset
from r2et.data.division import PAIRING, Pairing, folded_pairs
from r2et.data.matlab import archive_of, word
from r2et.data.roots import find
from r2et.data.structure import ItemStructure

GRAPH_FILES = (".npz", ".mat", ".zip")
PER_WORD = 64  # bytes of memory for a label or name


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Under which names a file keeps its arrays; of `matrices` and `upper` it has one."""

    matrices: str = "matrices"
    upper: str = "upper"
    labels: str = "labels"
    nodes: str = "nodes"


KEYS = Keys()


@dataclass(frozen=True, kw_only=True, eq=False)
class Graphs:
    """Graphs as a file has them: upper triangles (N, E) float32, a label each, names of nodes."""

    upper: Tensor
    labels: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other, values that are not finite, missing labels."""
        if self.upper.ndim != 2 or node_count(self.upper.shape[1]) < 2:
            raise ValueError(
                "upper triangles must have m (m - 1) / 2 numbers for each network of m >= 2 nodes, "
                f"got shape {tuple(self.upper.shape)}: give what stands above the diagonal."
            )
        if len(self.labels) != len(self.upper):
            raise ValueError(
                f"every network needs its label, but there are {len(self.upper)} networks and "
                f"{len(self.labels)} labels: give as many of each."
            )
        if "" in self.labels:
            raise ValueError(
                "every network needs its label, but the label of network "
                f"{self.labels.index('')} is missing: fill it in or remove the network."
            )
        if self.nodes and len(self.nodes) != self.size:
            raise ValueError(
                f"every node needs one name, but {self.size} nodes have {len(self.nodes)} names: "
                "give as many names as nodes, or none."
            )
        for name, times in Counter(self.nodes).items():
            if times > 1:
                raise ValueError(
                    f"names of nodes must differ, but {times} are called {name!r}: rename them."
                )
        bad = (~self.upper.isfinite()).nonzero()
        if len(bad):
            number, edge = bad[0].tolist()
            raise ValueError(
                f"networks must be finite, but network {number} has "
                f"{self.upper[number, edge].item()} at place {edge} of its upper triangle: fill it "
                "in or remove the network."
            )

    @property
    def size(self) -> int:
        """How many nodes each network has."""
        return node_count(self.upper.shape[1])


def node_count(edges: int) -> int:
    """How many nodes have that many edges among them, 0 if no number of nodes has.

    >>> node_count(6670), node_count(6671)
    (116, 0)
    """
    nodes = (1 + math.isqrt(1 + 8 * edges)) // 2
    return nodes if nodes * (nodes - 1) // 2 == edges else 0


def upper_of(matrices: Tensor) -> Tensor:
    """What stands above the diagonal of symmetric matrices: (N, m, m) -> (N, E).

    The diagonal may hold anything; elsewhere a matrix must be finite and equal its transpose.
    """
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2]:
        raise ValueError(
            "connectivity matrices must be square, (N, m, m) for N networks of m nodes, got shape "
            f"{tuple(matrices.shape)}: give whole matrices, or their upper triangles as such."
        )
    diagonal = torch.eye(matrices.shape[1], dtype=torch.bool, device=matrices.device)
    hollow = matrices.masked_fill(diagonal, 0.0)
    bad = (~hollow.isfinite()).nonzero()
    if len(bad):
        number, row, column = bad[0].tolist()
        raise ValueError(
            f"networks must be finite, but network {number} has "
            f"{hollow[number, row, column].item()} in row {row}, column {column}: fill it in or "
            "remove the network."
        )
    check_symmetric(hollow)
    return hollow[:, *upper_triangle(matrices.shape[1], matrices.device)]


def read_npz(path: Path, keys: Keys = KEYS) -> Graphs:
    """The networks of a NumPy archive: `matrices` (N, m, m) or `upper` (N, E), `labels`, `nodes`.

    Upper triangles are row by row, as `numpy.triu_indices` has them; names of nodes may be absent.
    """
    check_file(path)
    if not is_zipfile(path):
        raise ValueError(f"{path} must be an archive written by numpy.savez, and is none.")
    try:
        arrays, known = arrays_in(path, vars(keys).values())
    except TooLargeError:
        raise
    except UNREADABLE as problem:
        raise ValueError(
            f"{path} must hold plain arrays, got one that cannot be read ({one_line(problem)}): "
            "give all networks equally many nodes, and words as arrays of strings."
        ) from problem
    return of_arrays(arrays, keys, known, path)


def read_mat(path: Path, keys: Keys = KEYS) -> Graphs:
    """The networks of a MATLAB file up to version 7: the same variables as in a NumPy archive.

    Matrices are stacked (N, m, m) or (m, m, N), or are the cells of a cell array; where both
    stacks are possible, the first is taken. Words are cell arrays or char arrays.
    """
    check_file(path)
    wanted = list(vars(keys).values())
    places = {f"array {place}": key for place, key in enumerate(wanted)}
    with archive_of(path, wanted, most_bytes() // COPIES) as archive:
        found, _ = arrays_in(archive, ["names", *places])
    known = found.pop("names").tolist()
    arrays = {places[place]: array for place, array in found.items()}
    if keys.matrices in arrays:
        arrays[keys.matrices] = stacked_first(numbers(arrays[keys.matrices], keys.matrices, path))
    return of_arrays(arrays, keys, known, path)


def stacked_first(stack: NDArray[Any]) -> NDArray[Any]:
    """Square matrices stacked along the first axis, of such or of (m, m, N)."""
    last = stack.ndim == 3 and stack.shape[1] != stack.shape[2] and stack.shape[0] == stack.shape[1]
    return np.moveaxis(stack, 2, 0) if last else stack


def of_arrays(
    arrays: Mapping[str, NDArray[Any]], keys: Keys, known: list[str], path: Path
) -> Graphs:
    """The networks in a file's arrays; `known` are the names of all that it has."""
    named = keys.nodes if keys.nodes != KEYS.nodes else None
    for key in (keys.labels, named):
        if key is not None and key not in arrays:
            raise ValueError(f"{path} has no array {key!r}: {nearest(key, known)}")
    if (keys.matrices in arrays) == (keys.upper in arrays):
        raise ValueError(
            f"{path} must have either whole matrices, {keys.matrices!r}, or their upper triangles, "
            f"{keys.upper!r}, got {'both' if keys.upper in arrays else 'neither'}: "
            f"{nearest(keys.matrices, known)}"
        )
    whole = keys.matrices in arrays
    key = keys.matrices if whole else keys.upper
    values = torch.from_numpy(numbers(arrays[key], key, path))
    return Graphs(
        upper=upper_of(values) if whole else values,
        labels=words(arrays[keys.labels]),
        nodes=words(arrays[keys.nodes]) if keys.nodes in arrays else (),
    )


def numbers(values: NDArray[Any], key: str, path: Path) -> NDArray[np.float32]:
    """An array of numbers as float32: like values."""
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{key!r} in {path} must hold real numbers, got {values.dtype}.")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def words(values: NDArray[Any]) -> tuple[str, ...]:
    """Each entry as a word, whole numbers without a point, missing ones empty: (N,)."""
    check_bytes(PER_WORD * values.size, f"an array of {values.size:,} labels or names")
    return tuple(word(each) for each in np.atleast_1d(values).ravel().tolist())


def read_tu(path: Path) -> Graphs:
    """The graphs of a TUDataset archive as networks of ones and zeros over all their node labels.

    A node label names the same place in every graph, a region of the brain, so each pair of labels
    is one number: 1 for an edge, else 0, also where a graph lacks the node. A label that a graph
    has twice names no place, and is refused. Without node labels the nodes go by their order, and
    all graphs need equally many. Labels and attributes of edges are not read.
    """
    check_file(path)
    if not is_zipfile(path):
        raise ValueError(f"{path} must be a zip archive of the TUDataset collection, and is none.")
    with opened(path) as archive:
        members = [each for each in archive.namelist() if not each.startswith("__MACOSX")]
        edges = one_ending(members, "_A.txt", path)
        stem = edges.removesuffix("_A.txt")
        table = partial(read_table, archive, path)
        ends = table(edges, 2) - 1
        graph = table(one_ending(members, f"{stem}_graph_indicator.txt", path), 1)[:, 0] - 1
        labels = table(one_ending(members, f"{stem}_graph_labels.txt", path), 1)[:, 0]
        named = f"{stem}_node_labels.txt" in members
        places = table(f"{stem}_node_labels.txt", 1)[:, 0] if named else rank_in_graph(graph)
    check_graphs(ends, graph, len(labels), len(places), path)
    if not named:
        check_equal_counts(np.bincount(graph, minlength=len(labels)), path)
    known, node = np.unique(places, return_inverse=True)
    check_once(graph, places, path)
    low, high = np.sort(node[ends], axis=1).T
    size = len(known)
    pairs = size * (size - 1) // 2
    check_bytes(4 * len(labels) * pairs, f"{path}, {len(labels):,} graphs of {size:,} nodes,")
    upper = np.zeros((len(labels), pairs), dtype=np.float32)
    apart = low != high
    low, high, owner = low[apart], high[apart], graph[ends[apart, 0]]
    upper[owner, low * (2 * size - low - 1) // 2 + high - low - 1] = 1
    return Graphs(
        upper=torch.from_numpy(upper),
        labels=words(labels),
        nodes=tuple(f"region {label}" for label in known.tolist()),
    )


def one_ending(members: list[str], ending: str, path: Path) -> str:
    """The one member of an archive with that ending."""
    found = [member for member in members if member.endswith(ending)]
    if len(found) != 1:
        raise ValueError(
            f"{path} must hold one file *{ending} as TUDataset archives do, got {len(found)}: it "
            f"has {', '.join(members[:5]) or 'no files'}."
        )
    return found[0]


def read_table(archive: ZipFile, path: Path, member: str, columns: int) -> NDArray[np.int64]:
    """Whole numbers of a text file in an archive, separated by commas: (rows, columns)."""
    info, found = archive.getinfo(member), array("q")
    check_bytes(TEXT * info.file_size, f"{member} in {path}")
    try:
        with archive.open(info) as file:
            for line in filter(str.strip, io.TextIOWrapper(file, "ascii")):
                cells = line.split(",", columns)
                if len(cells) != columns:
                    raise ValueError(f"the line {line[:40].strip()!r}")
                found.extend(map(int, cells))
        if not found:
            raise ValueError("none")
    except UNREADABLE as problem:
        raise ValueError(
            f"{member} in {path} must hold {columns} whole numbers in each line, got: "
            f"{one_line(problem)}."
        ) from problem
    return np.frombuffer(found, np.int64).reshape(-1, columns)


def rank_in_graph(graph: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each node among the nodes of its graph: like graph."""
    order = np.argsort(graph, kind="stable")
    starts = np.searchsorted(graph[order], graph[order])
    ranks = np.empty_like(graph)
    ranks[order] = np.arange(len(graph)) - starts
    return ranks


def check_graphs(
    ends: NDArray[np.int64], graph: NDArray[np.int64], graphs: int, labelled: int, path: Path
) -> None:
    """Refuse nodes of unknown graphs, and edges of unknown nodes or between graphs."""
    if labelled != len(graph) or not 0 <= graph.min() <= graph.max() < graphs:
        raise ValueError(
            f"{path} must give each node its graph, one of 1..{graphs}, and its label, got "
            f"{len(graph)} nodes in graphs {graph.min() + 1}..{graph.max() + 1} with {labelled} "
            "labels: the files of the archive do not belong together."
        )
    if not 0 <= ends.min() <= ends.max() < len(graph):
        raise ValueError(
            f"edges of {path} must join nodes 1..{len(graph)}, got {ends.min() + 1}.."
            f"{ends.max() + 1}: the files of the archive do not belong together."
        )
    across = graph[ends[:, 0]] != graph[ends[:, 1]]
    if across.any():
        first, second = (ends[across][0] + 1).tolist()
        raise ValueError(
            f"an edge must stay within its graph, but {path} joins node {first} to node {second} "
            "of another one: correct the archive."
        )


def check_equal_counts(counts: NDArray[np.int64], path: Path) -> None:
    """Refuse graphs of unequal node counts."""
    if counts.min() != counts.max():
        raise ValueError(
            f"graphs without node labels need equal numbers of nodes, but those of {path} have "
            f"{counts.min()} to {counts.max()}: add node labels that name the same place in each."
        )


def check_once(graph: NDArray[np.int64], places: NDArray[np.int64], path: Path) -> None:
    """Refuse a graph that has a node label twice."""
    pairs, counts = np.unique(np.stack([graph, places]), axis=1, return_counts=True)
    if (counts > 1).any():
        first, label = pairs[:, counts > 1][:, 0].tolist()
        raise ValueError(
            f"a node label must name one place in every graph, but graph {first + 1} of {path} has "
            f"label {label} twice: such graphs have no common nodes to compare."
        )


def check_file(path: Path) -> None:
    """Refuse a path without a file."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: check the path.")


def in_order(labels: tuple[str, ...]) -> list[str]:
    """The different labels, numbers by size and before words by the alphabet.

    >>> in_order(("10", "2", "-1", "b", "a", "2"))
    ['-1', '2', '10', 'a', 'b']
    """

    def place(label: str) -> tuple[bool, float, str]:
        try:
            size = float(label)
        except ValueError:
            size = math.nan
        return (False, size, label) if math.isfinite(size) else (True, 0.0, label)

    return sorted(set(labels), key=place)


def read_file(path: Path, keys: Keys = KEYS) -> Graphs:
    """The networks of a file of any kind: npz, mat, or a zip of the TUDataset collection."""
    match path.suffix.lower():
        case ".npz":
            return read_npz(path, keys)
        case ".mat":
            return read_mat(path, keys)
        case ".zip":
            return read_tu(path)
        case other:
            raise ValueError(
                "networks are read from .npz, .mat or .zip (TUDataset) files, got "
                f"{other or path.name!r}."
            )


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """What a file of graphs means, and how its graphs become pairs.

    `keys` says how the file calls its arrays. `classes` says which label belongs to which class,
    and graphs with other labels are left out; without it every label is a class. `nodes` names the
    nodes if the file does not. `centred` takes the training graphs' mean from all.
    """

    file: str = ""
    """Its name under a data root, of one that is known by name."""
    keys: Keys = KEYS
    classes: Mapping[str, str] | None = None
    target: str = "label"
    source: str = "the user's own file"
    stand_in: str = ""
    nodes: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    centred: bool = True
    pairing: Pairing = PAIRING


OWN_FILE = GraphFile()


def read_graphs(path: Path, *, name: str, about: GraphFile = OWN_FILE) -> Dataset:
    """The graphs of a file (see `read_file`) as a data set of pairs.

    Give one graph for each person: of two, one could be tested after training on the other.
    """
    graphs = read_file(path, about.keys)
    graphs = replace(graphs, nodes=graphs.nodes or about.nodes)
    known = in_order(graphs.labels)
    class_of = {label: label for label in known} if about.classes is None else about.classes
    for label in class_of:
        if label not in known:
            raise ValueError(f"{path} has no network labelled {label!r}: {nearest(label, known)}")
    classes = list(dict.fromkeys(class_of.values()))
    kept = [place for place, label in enumerate(graphs.labels) if label in class_of]
    x = graphs.upper[kept]
    check_bounds(x, about.bounds, path)
    return Dataset(
        name=name,
        x=x,
        y=torch.tensor(
            [classes.index(class_of[graphs.labels[place]]) for place in kept], dtype=torch.int64
        ),
        structure=ItemStructure(
            piece=Piece(shape=(graphs.size, graphs.size), symmetric=True),
            pairs=True,
            bounds=about.bounds,
            nodes=graphs.nodes,
            centred=about.centred,
        ),
        classes=tuple(classes),
        target=about.target,
        source=about.source,
        stand_in=about.stand_in,
        divide=partial(folded_pairs, name=name, pairing=about.pairing),
    )


def check_bounds(items: Tensor, bounds: tuple[float, float] | None, path: Path) -> None:
    """Refuse values outside the bounds."""
    if bounds is None or not items.numel():
        return
    low, high = float(items.min()), float(items.max())
    if not bounds[0] <= low <= high <= bounds[1]:
        raise ValueError(
            f"the edges in {path} must lie in {bounds[0]:g}..{bounds[1]:g}, got {low:g}..{high:g}: "
            "give other bounds, or None for none."
        )


PAIRED_REGIONS = (
    "Precentral Frontal_Sup Frontal_Sup_Orb Frontal_Mid Frontal_Mid_Orb Frontal_Inf_Oper "
    "Frontal_Inf_Tri Frontal_Inf_Orb Rolandic_Oper Supp_Motor_Area Olfactory Frontal_Sup_Medial "
    "Frontal_Med_Orb Rectus Insula Cingulum_Ant Cingulum_Mid Cingulum_Post Hippocampus "
    "ParaHippocampal Amygdala Calcarine Cuneus Lingual Occipital_Sup Occipital_Mid Occipital_Inf "
    "Fusiform Postcentral Parietal_Sup Parietal_Inf SupraMarginal Angular Precuneus "
    "Paracentral_Lobule Caudate Putamen Pallidum Thalamus Heschl Temporal_Sup Temporal_Pole_Sup "
    "Temporal_Mid Temporal_Pole_Mid Temporal_Inf Cerebelum_Crus1 Cerebelum_Crus2 Cerebelum_3 "
    "Cerebelum_4_5 Cerebelum_6 Cerebelum_7b Cerebelum_8 Cerebelum_9 Cerebelum_10"
)
MIDDLE_REGIONS = "Vermis_1_2 Vermis_3 Vermis_4_5 Vermis_6 Vermis_7 Vermis_8 Vermis_9 Vermis_10"
AAL = (
    *(f"{region}_{side}" for region in PAIRED_REGIONS.split() for side in "LR"),
    *MIDDLE_REGIONS.split(),
)
"""The 116 regions of the AAL atlas in its order (Tzourio-Mazoyer et al. 2002)."""


ABIDE = (
    "Autism Brain Imaging Data Exchange, Di Martino et al. (2014), Molecular Psychiatry 19, 659; "
    "correlations in the AAL atlas; no licence stated with the file, not part of this package."
)
CNP = (
    "UCLA Consortium for Neuropsychiatric Phenomics, Poldrack et al. (2016), Scientific Data 3, "
    "160110; correlations of 125 components; no licence stated with the file, not part of this "
    "package."
)
PAN = (
    "TUDataset, Morris et al. (2020); graphs of ADHD-200 by Pan et al. (2017), IEEE Transactions "
    "on Cybernetics 47, 744; no licence stated with the file, not part of this package."
)


def site(file: str) -> GraphFile:
    """The graphs of one site of the ADHD-200 study.

    Pan et al. (2017) joined regions of the CC200 atlas whose correlation exceeds a threshold, and
    made two classes of a score or trait of each person: not the diagnosis. The archives number the
    regions as they first appear, so that one number means another region at another site.
    """
    return GraphFile(
        file=file,
        classes={"-1": "negative", "1": "positive"},
        target="score or trait",
        source=PAN,
        stand_in=f"{file.removesuffix('.zip')} graphs instead of ADHD: same study, but one site, "
        "another atlas (190 nodes), thresholded edges without weights, and two classes of a score "
        "or trait instead of the diagnosis.",
        bounds=(0.0, 1.0),
        centred=False,
    )


STORED: dict[str, GraphFile] = {
    "abide": GraphFile(
        file="abide_aal116.npz",
        bounds=(-1.0, 1.0),
        keys=Keys(upper="fc_upper", labels="age_group"),
        classes={
            "11-": "under 18",
            "12_17": "under 18",
            "18_25": "18 or older",
            "25+": "18 or older",
        },
        target="age",
        source=ABIDE,
        stand_in="ABIDE brain networks instead of ADHD: same atlas (AAL, 116 nodes), but another "
        "study, and age instead of a diagnosis.",
        nodes=AAL,
    ),
    "abide-diagnosis": GraphFile(
        file="abide_aal116.npz",
        bounds=(-1.0, 1.0),
        keys=Keys(upper="fc_upper", labels="y"),
        classes={"0": "control", "1": "autism"},
        target="diagnosis",
        source=ABIDE,
        stand_in="ABIDE brain networks instead of ADHD: same atlas (AAL, 116 nodes), but another "
        "study and another diagnosis.",
        nodes=AAL,
    ),
    "cnp": GraphFile(
        file="cnp_component125.npz",
        bounds=(-1.0, 1.0),
        keys=Keys(matrices="fc", labels="dx", nodes="roi"),
        classes={"CONTROL": "control", "BIPOLAR": "bipolar"},
        target="diagnosis",
        source=CNP,
        stand_in="CNP brain networks instead of BP: same diagnosis, but other people and 125 nodes "
        "of another parcellation instead of 82.",
    ),
    "kki": site("KKI.zip"),
    "ohsu": site("OHSU.zip"),
    "peking": site("Peking_1.zip"),
}
"""The files of graphs beside the project: what their labels mean, and what they stand in for."""


def load_graphs(root: Path | None, *, name: str) -> Dataset:
    """The stored graphs of that name, from their file under a data root."""
    about = STORED[name]
    places = (f"brain/{about.file}", about.file)
    path = find(root, places, what=name, source=about.source.rstrip("."))
    return read_graphs(path, name=name, about=about)
