"""The layers of the package, checked over the syntax tree of every module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "memra_mlx"
PURE = {f"{PACKAGE}.{name}" for name in ("request", "events", "errors", "deadline")}
DIALECTS = ("chat", "completions", "messages", "responses")
SANIC = {f"{PACKAGE}.{name}" for name in ("app", "http", "routes")}
ENGINE_WITHOUT_MLX = ("client", "channel", "protocol", "script", "spawn", "supervisor")


@dataclass(frozen=True)
class Import:
    """One imported name, in full, and its line."""

    name: str
    line: int


def modules() -> dict[str, Path]:
    """Module name -> file, for all that is importable below the package; the links to top-level folders included."""
    roots = {PACKAGE: ROOT / PACKAGE, **{f"{PACKAGE}.{name}": ROOT / name for name in ("cli", "cache")}}
    found = {}
    for package, folder in roots.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = file
    found[f"{PACKAGE}.fixtures"] = ROOT / "fixtures" / "__init__.py"
    return {name: file for name, file in found.items() if not name.startswith(f"{PACKAGE}.fixtures.")}


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every import; `from a import b` counts as both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield Import(node.module or "", node.lineno)
            yield from (Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def dialect(module: str) -> str | None:
    """The dialect that a module of `dialects/` belongs to; None for what they share."""
    prefix, _, stem = module.rpartition(".")
    if prefix != f"{PACKAGE}.dialects":
        return None
    return next((d for d in DIALECTS if stem == d or stem.startswith(d + "_")), None)


def may_use_mlx(module: str) -> bool:
    parts = module.split(".")[1:]
    if parts[:1] == ["engine"]:
        return len(parts) < 2 or not parts[1].startswith(ENGINE_WITHOUT_MLX)
    if parts[:1] == ["bench"]:
        return parts[1:] == ["local"]  # a process of its own
    return parts[:1] == ["prompt"] or (parts[:1] == ["cache"] and parts[1:2] != [] and parts[1].startswith("kv"))


def forbidden_import(module: str, name: str) -> str | None:
    """Why `module` may not import `name`; None if it may."""
    if module in PURE and inside(name, PACKAGE) and not any(inside(name, pure) for pure in PURE) and name != PACKAGE:
        return "a pure module imports only pure modules of ours"
    ours, theirs = dialect(module), dialect(name) or dialect(name.rpartition(".")[0])
    if ours and theirs and ours != theirs:
        return f"the {ours} dialect imports the {theirs} dialect"
    if inside(name, "sanic") and module not in SANIC:
        return "only app, http and routes import sanic"
    if inside(name, "click") and not inside(module, f"{PACKAGE}.cli"):
        return "only cli imports click"
    if (inside(name, "mlx") or inside(name, "mlx_lm")) and not may_use_mlx(module):
        return "only the engine, cache/kv and prompt import mlx"
    if name in ("os.environ", "os.environb", "os.getenv") and module != f"{PACKAGE}.config":
        return "only config reads the environment"
    return None


def environment_reads(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
            yield node.lineno


def faults(module: str, source: str) -> list[str]:
    """What breaks a layer rule in `source`, as `line: why`."""
    tree = ast.parse(source)
    found = {(i.line, why) for i in imports(tree) if (why := forbidden_import(module, i.name))}
    found |= {(n.lineno, "relative import") for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level}
    if module != f"{PACKAGE}.config":
        found |= {(line, "only config reads the environment") for line in environment_reads(tree)}
    return [f"{line}: {why}" for line, why in sorted(found)]


@pytest.mark.parametrize("module", sorted(modules()))
def test_layers(module: str) -> None:
    assert faults(module, modules()[module].read_text()) == []


def test_all_modules_are_seen() -> None:
    assert {f"{PACKAGE}.request", f"{PACKAGE}.cli", f"{PACKAGE}.cache", f"{PACKAGE}.engine.protocol"} <= set(modules())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("memra_mlx.request", "from memra_mlx.config import Config"),
        ("memra_mlx.events", "from memra_mlx import config"),
        ("memra_mlx.dialects.chat", "from memra_mlx.dialects import messages_wire"),
        ("memra_mlx.dialects.chat_wire", "from memra_mlx.dialects.responses import parse"),
        ("memra_mlx.dialects.chat", "from . import sse"),
        ("memra_mlx.generation", "import sanic.response"),
        ("memra_mlx.models", "def f():\n    import click"),
        ("memra_mlx.http", "from mlx_lm.tokenizer_utils import load"),
        ("memra_mlx.engine.client", "import mlx.core as mx"),
        ("memra_mlx.engine.scripted_worker", "import mlx.core as mx"),
        ("memra_mlx.cache.transcripts", "import mlx.core as mx"),
        ("memra_mlx.models", "import os\nx = os.environ.get('A')"),
        ("memra_mlx.models", "from os import getenv"),
    ],
)
def test_a_broken_rule_is_found(module: str, source: str) -> None:
    assert faults(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("memra_mlx.request", "from memra_mlx.errors import ApiError\nimport dataclasses"),
        ("memra_mlx.dialects.chat", "from memra_mlx.dialects import chat_wire, sse"),
        ("memra_mlx.engine.worker", "import mlx.core as mx\nfrom mlx_lm import load"),
        ("memra_mlx.cache.kv_disk", "import mlx.core as mx"),
        ("memra_mlx.prompt.tokens", "from mlx_lm.tokenizer_utils import load"),
        ("memra_mlx.cli.main", "import click"),
        ("memra_mlx.config", "import os\nx = os.environ"),
    ],
)
def test_a_kept_rule_passes(module: str, source: str) -> None:
    assert faults(module, source) == []


def test_pure_parts_import_without_mlx_or_sanic() -> None:
    names = sorted(PURE | {f"{PACKAGE}.dialects.{d}" for d in DIALECTS} | {f"{PACKAGE}.engine.protocol"})
    heavy = "{'mlx', 'mlx_lm', 'sanic', 'click'} & {name.partition('.')[0] for name in sys.modules}"
    code = f"import sys, {', '.join(names)}\nfound = {heavy}\nsys.exit(str(found) if found else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
