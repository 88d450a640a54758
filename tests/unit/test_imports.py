"""Modules import downwards only, heavy packages have one home, and importing us is cheap."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpumagic

PACKAGE = Path(gpumagic.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    {"magics", "cli", "__main__", "integrations", "autoload", "doctor"},
    {"watch", "watch_content", "watch_status"},
    {"measurement", "footers", "cell_profiles", "cell_growth", "grown_names", "allocator_look"},
    {"session"},
    {"settings"},
    {"views", "sinks"},
    {"profiles"},
    {"alerts", "diagnosis", "waterfall", "memory", "tracing"},
    {"summary", "energy", "throttling", "coverage", "figures", "sampler"},
    {"sources", "devices"},
    {"recording", "series", "tracks", "codec", "options"},
    {"sample", "clock"},
    {"metrics", "units", "errors", "front_ends"},
)
"""From the top down; a module imports its own layer and those below."""

UPWARDS = {
    ("profiles", "views"): "a profile shows itself, so it calls its renderer when asked to",
    ("session", "watch"): "the session stops the view that it keeps",
    ("memory", "views"): "a memory report shows itself, so it calls its renderer when asked to",
    ("options", "views"): "a list of strips is checked against the strips there are",
}
"""Imports against the order; they have to be inside a function."""

HOMES = {
    "pynvml": ("sources/nvml", "doctor"),
    "psutil": ("sources/host", "doctor"),
    "torch": (),
    "bqplot": ("views/live", "doctor"),
    "ipywidgets": ("views/live", "doctor"),
    "PIL": ("views/png",),
    "prometheus_client": ("sinks/prometheus",),
    "numpy": ("views/live",),
    "pandas": ("recording", "memory/live"),
    "IPython": ("magics/", "session", "watch", "autoload", "doctor"),
}
"""Where each heavy package may be imported: the beginnings of paths in the package."""

HEAVY = ("torch", "bqplot", "ipywidgets", "numpy", "pandas", "PIL", "psutil", "pynvml")


@dataclass(frozen=True)
class Import:
    """One import statement of a module, by the name imported."""

    module: str
    name: str
    line: int
    inside: bool
    typing: bool


def imports(path: Path) -> Iterator[Import]:
    """Yield the imports of a module, relative ones as ``gpumagic.x.y``."""
    module = path.relative_to(PACKAGE).with_suffix("").as_posix()
    package = ["gpumagic", *path.relative_to(PACKAGE).parts[:-1]]

    def walk(node: ast.AST, inside: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, inside, typing)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    base = ".".join([*package[: len(package) - child.level + 1], base]).rstrip(".")
                for alias in child.names:
                    yield Import(module, f"{base}.{alias.name}", child.lineno, inside, typing)
            else:
                function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                yield from walk(child, inside or function, typing or guard)

    return walk(ast.parse(path.read_text("utf-8")), False, False)


ALL = [one for path in MODULES for one in imports(path)]


def room(name: str) -> str:
    """Return the first part of a path in the package."""
    return name.split("/")[0].split(".")[0]


def layer(name: str) -> int:
    found = [n for n, names in enumerate(LAYERS) if name in names]
    assert len(found) == 1, f"give {name} its place in LAYERS"
    return found[0]


def test_every_module_has_its_layer() -> None:
    """No module stands outside the order."""
    for path in MODULES:
        name = room(path.relative_to(PACKAGE).with_suffix("").as_posix())
        if name != "__init__":
            layer(name)


def test_modules_import_downwards() -> None:
    """An import leads to the same layer or to a lower one; exceptions are few and named."""
    wrong = []
    for one in ALL:
        if one.typing or not one.name.startswith("gpumagic.") or room(one.module) == "__init__":
            continue
        here, there = room(one.module), one.name.split(".")[1]
        if there.startswith("__") or layer(here) <= layer(there):
            continue
        if (here, there) in UPWARDS and one.inside:
            continue
        wrong.append(f"{one.module}:{one.line} imports {one.name}")
    assert wrong == []


@pytest.mark.parametrize("package", sorted(HOMES))
def test_a_heavy_package_has_its_home(package: str) -> None:
    """Only its own modules import a heavy package; torch is taken from sys.modules only."""
    wrong = [
        f"{one.module}:{one.line}"
        for one in ALL
        if one.name.split(".")[0] == package
        and not one.typing
        and not one.module.startswith(HOMES[package])
    ]
    assert wrong == []


def test_pandas_is_imported_when_asked_for() -> None:
    """pandas is imported inside functions only."""
    assert [one for one in ALL if one.name == "pandas" and not (one.inside or one.typing)] == []


def test_all_names_what_there_is() -> None:
    """Each module's __all__ lists names that it defines, each once."""
    for path in MODULES:
        tree = ast.parse(path.read_text("utf-8"))
        listed = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        ]
        if not listed or path == PACKAGE / "__init__.py":
            continue
        (names,) = listed
        defined: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.ImportFrom):
                defined.update(alias.asname or alias.name for alias in node.names)
        assert set(names) <= defined, path.name
        assert len(set(names)) == len(names), path.name


def test_the_public_names_are_those_of_all() -> None:
    """from gpumagic import * gives __all__, and so does dir; another name is an error."""
    space: dict[str, object] = {}
    exec("from gpumagic import *", space)
    assert {name for name in space if name != "__builtins__"} == set(gpumagic.__all__)
    assert dir(gpumagic) == sorted(gpumagic.__all__)
    assert all(getattr(gpumagic, name) is space[name] for name in gpumagic.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpumagic.nothing


LOADED = """
import json, sys
sys.path.insert(0, {path!r})
before = set(sys.modules)
{statement}
loaded = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(loaded)))
"""


@pytest.mark.parametrize("statement", ["import gpumagic", "import IPython, gpumagic.magics"])
def test_importing_us_pulls_in_nothing_heavy(statement: str) -> None:
    """Neither the package nor its magics load a heavy package before it is needed."""
    text = LOADED.format(path=str(PACKAGE.parent), statement=statement)
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 0, outcome.stderr
    loaded = json.loads(outcome.stdout)
    assert "gpumagic" in loaded
    assert sorted(set(loaded) & set(HEAVY)) == []


def test_the_package_itself_loads_itself_only() -> None:
    """import gpumagic loads one module of ours and nothing but the standard library."""
    text = LOADED.format(path=str(PACKAGE.parent), statement="import gpumagic").replace(
        "print(", "print(json.dumps([m for m in sys.modules if m.startswith('gpumagic')])); print("
    )
    outcome = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    ours, loaded = map(json.loads, outcome.stdout.splitlines())
    assert ours == ["gpumagic"]
    assert set(loaded) - {"gpumagic"} <= set(sys.stdlib_module_names)
