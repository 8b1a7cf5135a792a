"""Which way imports point, part by part and file by file."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "r2et"
LEVELS = [
    {"core"},
    {"explainers", "perturbations", "models", "data"},
    {"actionable", "attacks", "metrics", "certification", "preflight"},
    {"methods", "theory", "integrations", "bands"},
    {"training", "trees"},
    {"evaluation", "sklearn"},
    {"auditing"},
    {"experiments"},
    {"report"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
LONGEST = 9  # imports from a file through others to one that imports none


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {_name(path): path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"}


@cache
def imported(name: str) -> frozenset[str]:
    """The files of the package that a file imports, anywhere in it: lazy imports count, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by dots: name the package in full."
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {each if _inside(each) in FILES else str(node.module) for each in modules}
    return frozenset({_inside(each) for each in found} & FILES.keys() - {name})


def _inside(module: str) -> str:
    return module.removeprefix("r2et.") if module.startswith("r2et.") else ""


def chain(name: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The longest way from a file to one that imports none of the others."""
    assert name not in above, f"imports go round: {' -> '.join((*above, name))}"
    if name not in CHAINS:
        ways = [chain(each, (*above, name)) for each in imported(name)]
        CHAINS[name] = (name, *max(ways, key=len, default=()))
    return CHAINS[name]


CHAINS: dict[str, tuple[str, ...]] = {}


def test_imports_point_downwards() -> None:
    for name in FILES:
        part = name.split(".")[0]
        assert part in LEVEL, f"{part} has no level yet: say what it may import."
        for other in {each.split(".")[0] for each in imported(name)} - {part}:
            assert LEVEL[other] < LEVEL[part], f"{name} imports {other}"


def test_chains_of_imports_are_short_and_never_go_round() -> None:
    longest = max((chain(name) for name in FILES), key=len)
    assert len(longest) - 1 <= LONGEST, " -> ".join(longest)


def test_no_module_is_hidden_by_a_function_of_its_name() -> None:
    for name, path in FILES.items():
        package = path.parent if path.name != "__init__.py" else path.parent.parent
        text = (package / "__init__.py").read_text(encoding="utf-8")
        itself = ".".join(("r2et", *package.relative_to(SOURCE).parts))
        exported = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and node.module != itself
            for alias in node.names
        }
        hidden = name.split(".")[-1] in exported and package != SOURCE
        assert not hidden, f"{package.name}/__init__ hides the module {name} by what it imports"


def test_files_of_tests_have_names_of_their_own() -> None:
    # Two of one name cannot be collected in one run, whichever folders they are in.
    names = [path.name for path in Path(__file__).parent.rglob("*.py")]
    assert sorted(set(names)) == sorted(names)
