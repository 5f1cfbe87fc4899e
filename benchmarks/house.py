"""Measures the house: how many files, how they are named, how long functions are, and whether imports point down.

    python benchmarks/house.py              # one table
    python benchmarks/house.py --offenders  # and what exceeds a limit, by package

What is counted, and how:

files               Python files of `kinfed/`.
duplicates          base names of files that occur twice, besides `__init__`.
participles         functions and methods, neither properties nor dunder, whose first word is a past participle (it
                    ends in -ed, or is one of IRREGULAR) or a present participle (it ends in -ing); FINITE lists
                    words that only look so, and nouns of the field.
ignores             comments `type: ignore`.
contract            public members of `kinfed.method.Method`: fields, methods and properties.
method file         all lines of a file that defines a registered method.
body                lines of a function's body that hold code: no docstring, no comment, no blank line.
cycles              modules that import each other when they are loaded; imports inside functions do not count.
layers              imports that do not point down in LAYERS; they count wherever they stand.
"""

import ast
import inspect
import io
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS = [  # a module may import its own name and the lines above it
    {"errors"},
    {"registry", "params", "files", "processes", "threads", "keys", "checks", "quality", "targets", "gpu_memory"},
    {"learning_tasks", "ranges", "copies"},
    {"client", "per_client", "ledger", "cuda_graphs", "aggregation", "kernels"},
    {"models", "data", "clustering"},
    {"privacy", "replies"},
    {"fastpath", "enrolment"},
    {"training", "federation"},
    {"signatures"},
    {"relatedness"},
    {"method", "capabilities"},
    {"client_tasks"},
    {"methods"},
    {"engines", "metrics"},
    {"checkpoint"},
    {"experiment"},
    {"config"},
    {"progress", "trackers"},
    {"runs"},
    {"comparison", "bench"},
    {"report"},
    {"sweeps"},
    {"recipes"},
    {"deployment"},
    {"serving"},
    {"api"},
    {"cli"},
    {"__main__", "__init__"},
]
FORBIDDEN = {"engines": ("kinfed.methods",), "methods": ("kinfed.engines", "flwr")}  # though a layer may permit it
LIMITS = {
    "files": 287,
    "duplicates": 0,
    "participles": 19,
    "ignores": 14,
    "contract": 7,
    "median method file": 72,
    "median body": 5,
    "cycles": 0,
    "layers": 0,
}
FINITE = {"embed", "seed", "feed", "need", "speed", "exceed", "proceed", "succeed", "shed", "bed", "red",
          "string", "bring", "ring", "sing", "ping", "king", "spring", "nothing",
          "training", "clustering", "embedding", "padding", "timing"}  # fmt: skip
IRREGULAR = {
    "beaten", "begun", "bent", "bitten", "blown", "born", "bought", "bound", "broken", "brought", "built", "caught",
    "chosen", "done", "drawn", "driven", "drunk", "eaten", "fallen", "fed", "felt", "forgotten", "fought", "found",
    "frozen", "given", "gone", "got", "grown", "heard", "held", "hidden", "kept", "known", "laid", "led", "left",
    "lent", "lost", "made", "meant", "met", "overwritten", "paid", "redrawn", "rewritten", "ridden", "risen",
    "said", "seen", "sent", "shaken", "shown", "slept", "sold", "sought", "spent", "spoken", "spun", "stolen",
    "stood", "struck", "stuck", "swept", "sworn", "taken", "taught", "thought", "thrown", "told", "torn",
    "understood", "undone", "unknown", "went", "withdrawn", "won", "worn", "wound", "woven", "written",
}  # fmt: skip


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path
    root: Path  # the folder of the package

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def place(self) -> str:
        """The package or module of `kinfed` it belongs to, as LAYERS names it."""
        return self.path.relative_to(self.root).parts[0].removesuffix(".py")

    @property
    def short(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def name(self) -> str:
        """The name it is imported by."""
        parts = self.path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class Function:
    """A function or method, and where it stands."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def is_property(self) -> bool:
        names = {ast.unparse(decorator).split(".")[-1] for decorator in self.node.decorator_list}
        return bool(names & {"property", "cached_property", "setter"})

    @property
    def is_participle(self) -> bool:
        if self.is_property or self.node.name.startswith("__"):
            return False
        word = self.node.name.strip("_").split("_")[0]
        return word in IRREGULAR or (word not in FINITE and word.endswith(("ed", "ing")))

    @property
    def length(self) -> int:
        """Lines of the body that hold code."""
        body = self.node.body[1:] if ast.get_docstring(self.node) is not None else self.node.body
        if not body:
            return 0
        lines = self.module.text.splitlines()[body[0].lineno - 1 : self.node.end_lineno]
        return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))

    def __str__(self) -> str:
        return f"{self.module.short}:{self.node.lineno} {self.node.name}"


@dataclass(frozen=True)
class House:
    """All modules of a package."""

    root: Path = REPOSITORY / "kinfed"

    @cached_property
    def modules(self) -> list[Module]:
        return [Module(path, self.root) for path in sorted(self.root.rglob("*.py"))]

    @cached_property
    def functions(self) -> list[Function]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [Function(m, node) for m in self.modules for node in ast.walk(m.tree) if isinstance(node, kinds)]

    def duplicates(self) -> list[str]:
        """Files whose base name another file has."""
        own = [m for m in self.modules if m.path.name != "__init__.py"]
        count = Counter(m.path.name for m in own)
        return [m.short for m in sorted(own, key=lambda m: m.path.name) if count[m.path.name] > 1]

    def participles(self) -> list[str]:
        return [str(function) for function in self.functions if function.is_participle]

    def ignores(self) -> list[str]:
        return [f"{m.short}:{line}" for m in self.modules for line, said in comments(m.text) if "type: ignore" in said]

    def lengths(self) -> list[int]:
        """Of all bodies with any statement."""
        return [length for length in (function.length for function in self.functions) if length]

    def layer_violations(self) -> list[str]:
        return [said for module in self.modules for said in upward(module)]

    def cycles(self) -> list[str]:
        """Each as the modules that import each other."""
        known = {m.name for m in self.modules}
        graph = {m.name: {resolve(name, known) for name in loads(m)} & known - {m.name} for m in self.modules}
        return [" <-> ".join(sorted(found)) for found in components(graph) if len(found) > 1]


def comments(text: str) -> Iterator[tuple[int, str]]:
    """The comments of a source file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """All that these statements import, with what they import from it: `kinfed.a` and `kinfed.a.b`."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def upward(module: Module) -> list[str]:
    """The imports of a module that do not point down."""
    rank = {name: level for level, names in enumerate(LAYERS) for name in names}
    if module.place not in rank:
        return [f"{module.short}: '{module.place}' is in no layer"]
    found = []
    for name in sorted(imports(ast.walk(module.tree))):
        there = name.split(".")[1] if name.startswith("kinfed.") else module.place
        is_up = there in rank and there != module.place and rank[there] >= rank[module.place]
        if is_up or name.startswith(FORBIDDEN.get(module.place, ("//",))):
            found.append(f"{module.short} imports {name}")
    return found


def loads(module: Module) -> set[str]:
    """What is imported when the module is: nothing inside functions, nor for type checkers alone."""
    return imports(statements(module.tree.body))


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from statements(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def resolve(name: str, known: set[str]) -> str:
    """The module that an imported name is, or is in."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def components(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components: modules that import each other, directly or not."""
    below = {name: descendants(graph, name) for name in graph}
    found: dict[str, set[str]] = {}
    for name in graph:
        found.setdefault(min({name} | {other for other in below[name] if name in below[other]}), set()).add(name)
    return list(found.values())


def descendants(graph: Mapping[str, set[str]], name: str) -> set[str]:
    """All that a module imports, directly or not."""
    found: set[str] = set()
    todo = [name]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def contract() -> list[str]:
    """The public members of the contract."""
    from kinfed.method import Method

    bases = [kind for kind in Method.__mro__ if kind.__module__.startswith("kinfed")]
    names = {name for kind in bases for name in (*vars(kind), *inspect.get_annotations(kind))}
    return sorted(name for name in names if not name.startswith("_"))


def method_files() -> dict[str, int]:
    """The lines of each file that defines a method or baseline of a paper; `auto` follows no algorithm box."""
    from kinfed.methods import METHODS

    paths = {Path(inspect.getfile(kind)) for name, kind in METHODS.items() if name != "auto"}
    return {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(paths)}


def measure(house: House) -> dict[str, float]:
    """All numbers of the house."""
    files, lengths = method_files(), house.lengths()
    return {
        "files": len(house.modules),
        "duplicates": len({Path(name).name for name in house.duplicates()}),
        "participles": len(house.participles()),
        "ignores": len(house.ignores()),
        "contract": len(contract()),
        "median method file": statistics.median(files.values()),
        "longest method file": max(files.values()),
        "median body": statistics.median(lengths),
        "longest body": max(lengths),
        "functions": len(house.functions),
        "cycles": len(house.cycles()),
        "layers": len(house.layer_violations()),
    }


def offenders(house: House) -> Iterator[str]:
    """What there is to mend, by package."""
    lists = {
        "base name twice": house.duplicates(),
        "participle": house.participles(),
        "type: ignore": house.ignores(),
        "body over 30 lines": [f"{f} ({f.length})" for f in house.functions if f.length > 30],
        "layer": house.layer_violations(),
    }
    by_package: dict[str, list[str]] = defaultdict(list)
    for kind, found in lists.items():
        for said in found:
            by_package[re.split(r"[/:]", said)[0].removesuffix(".py")].append(f"{kind}: {said}")
    count = Counter(module.place for module in house.modules)
    for package in sorted(count):
        yield f"\n{package}: {count[package]} files"
        yield from (f"  {said}" for said in by_package[package])
    yield f"\ncontract: {', '.join(contract())}"
    yield "method files: " + ", ".join(f"{name} {lines}" for name, lines in method_files().items())
    yield from (f"cycle: {said}" for said in house.cycles())


def main() -> None:
    house = House()
    for name, number in measure(house).items():
        limit = f"limit {LIMITS[name]}" if name in LIMITS else ""
        missed = "  <- exceeded" if number > LIMITS.get(name, number) else ""
        print(f"{name:<20} {number:>6g}  {limit}{missed}")
    if "--offenders" in sys.argv[1:]:
        print("\n".join(offenders(house)))


if __name__ == "__main__":
    main()
