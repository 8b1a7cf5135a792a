import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "r2et"
LEVELS = [
    {"core"},
    {"explainers", "perturbations", "models", "data"},
    {"actionable"},
    {"attacks", "metrics", "certification", "preflight", "integrations"},
    {"methods", "theory"},
    {"training"},
    {"evaluation", "sklearn"},
    {"auditing"},
    {"experiments"},
    {"report"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def imported(path: Path) -> set[str]:
    """The parts of the package that a file imports, by the names of their top folders or files."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports by dots: name the package in full."
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {name.split(".")[1] for name in found if name.startswith("r2et.")} - {"__version__"}


def test_imports_point_downwards() -> None:
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in LEVEL, f"{own} has no level yet: say what it may import."
        for other in imported(path) - {own}:
            assert LEVEL[other] < LEVEL[own], f"{path.relative_to(SOURCE)} imports {other}"
