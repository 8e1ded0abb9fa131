"""How many small faults the fast tests of an area notice, planted at random one at a time in a copy of the tree.

    nice -n 10 python -m measurements.mutants --seed 1 --number 5 detect federation edge intake fleet

A fault flips a comparison, swaps `and` and `or` or two operators, drops a `not` or a sign, changes a constant by one,
or returns None. Every place in the area's code where one is possible is equally likely. A fault that is not noticed is
either equivalent, which only a reader can say, or asks for a test, or stands in code that can go.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LIMIT = 900.0
"""Seconds after which tests count as hung, and the fault as noticed."""

AREAS = {
    "detect": (["src/fedkad/detect"], ["tests/detect"]),
    "federation": (
        ["src/fedkad/federation"],
        ["tests/federation", "tests/fleet/test_secure.py", "tests/fleet/test_masking.py", "tests/fleet/test_wire.py"],
    ),
    "edge": (["src/fedkad/edge"], ["tests/edge"]),
    "intake": (["src/fedkad/intake", "src/fedkad/tables"], ["tests/intake", "tests/tables"]),
    "fleet": (["src/fedkad/fleet"], ["tests/fleet", "tests/cli/test_fleet.py"]),
}
"""The folders of each area, and its tests beside the examples in these folders."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Fault:
    """A node of a file and what takes its place."""

    path: Path
    node: ast.expr
    instead: ast.expr

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}: {ast.unparse(self.node)}  ->  {ast.unparse(self.instead)}"

    def plant(self, tree: Path) -> None:
        """Change the file in a copy of the tree."""
        lines = (HERE / self.path).read_bytes().splitlines(keepends=True)
        node, first, last = self.node, self.node.lineno - 1, (self.node.end_lineno or 0) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [before + f"({ast.unparse(self.instead)})".encode() + after]
        (tree / self.path).write_bytes(b"".join(lines))


def changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The expressions of one node that a fault may replace, each with its replacement."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield node, _with(node, ops=[SWAPPED[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in SWAPPED:
        yield node, _with(node, op=SWAPPED[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield node, ast.Constant(node.value + 1)
        yield node, ast.Constant(node.value - 1)
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield node.value, ast.Constant(None)


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def code_of(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree without annotations, which no test can notice, and without those in texts."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "format_spec") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from code_of(child)


def faults_of(folders: list[str]) -> list[Fault]:
    """All faults that are possible in these folders."""
    paths = sorted(path for folder in folders for path in (HERE / folder).rglob("*.py"))
    return [
        Fault(path.relative_to(HERE), node, instead)
        for path in paths
        for part in code_of(ast.parse(path.read_bytes()))
        for node, instead in changes(part)
    ]


def nearest_first(tests: list[str], module: str) -> list[str]:
    """The files of tests, those first that name a module: they are the likeliest to notice its faults."""
    files = [
        path for test in tests for path in ([HERE / test] if test.endswith(".py") else (HERE / test).rglob("*.py"))
    ]
    named = {str(path.relative_to(HERE)): module in path.read_text() for path in files if path.name.startswith("test_")}
    return sorted(named, key=lambda name: (not named[name], name))


def tests_fail(tree: Path, tests: list[str]) -> bool:
    """Whether the fast tests fail in a copy of the tree, or hang."""
    options = ["-x", "-m", "not slow", "--hypothesis-profile", "fast", "-p", "no:cacheprovider"]
    paths = [tree / "src", tree / "fedkad-bench" / "src", tree]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(LIMIT) != 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def copy_tree(tree: Path) -> None:
    """Copy all files that git knows."""
    listed = subprocess.run(["git", "-C", str(HERE), "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (HERE / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / name, tree / name)


def main() -> None:
    """Plant the faults, and print for each whether it was noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", default=list(AREAS), help=", ".join(AREAS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=5, help="faults of each area")
    chosen = parser.parse_args()
    noticed = 0
    for area in chosen.areas:
        folders, tests = AREAS[area]
        candidates = faults_of(folders)
        print(f"{area}: {chosen.number} of {len(candidates):,} possible faults, seed {chosen.seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            copy_tree(tree)
            if tests_fail(tree, [*tests, *folders]):
                sys.exit(f"The tests of {area} fail without a fault; mend them first.")
            for fault in random.Random(f"{area} {chosen.seed}").sample(candidates, chosen.number):
                fault.plant(tree)
                is_noticed = tests_fail(tree, [*nearest_first(tests, fault.path.stem), *folders])
                shutil.copy(HERE / fault.path, tree / fault.path)
                noticed += is_noticed
                print(f"  {'noticed    ' if is_noticed else 'NOT noticed'}  {fault}", flush=True)
    print(f"{noticed} of {chosen.number * len(chosen.areas)} noticed")


if __name__ == "__main__":
    main()
