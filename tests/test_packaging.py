"""The wheel: what is in it, and that a server runs from it in an environment of its own."""

import http.client
import json
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from served import Served, Settings

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, tree / name)
    for name in ("memra_mlx", "cli", "cache", "fixtures"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, tree)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bin_dir(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a new environment with the wheel installed; the dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("env")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "zz_dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin"


def run(*argv: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(arg) for arg in argv], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_names(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"memra_mlx"}
    wanted = ("cli/main.py", "cache/__init__.py", "fixtures/__init__.py", "fixtures/tiny/model.safetensors", "py.typed")
    assert {f"memra_mlx/{name}" for name in wanted} <= set(names)
    assert len(names) == len(set(names))


def test_it_is_lean(wheel: Path) -> None:
    below = {name.split("/")[2] for name in zipfile.ZipFile(wheel).namelist() if name.startswith("memra_mlx/fixtures/")}
    assert not {"training", "cases", "streams", "wire"} & below
    assert wheel.stat().st_size < 10 << 20


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(name).decode()
    assert "Requires-Dist: mlx[cpu]" in text
    assert 'sys_platform == "linux"' in text


def test_nothing_else_in_site_packages(bin_dir: Path) -> None:
    (packages,) = bin_dir.parent.glob("lib/python*/site-packages")
    assert not {"cli", "cache", "fixtures", "tests"} & {path.name for path in packages.iterdir()}
    where = run(bin_dir / "python", "-c", "import memra_mlx.cli as m; print(m.__file__)", cwd=bin_dir)
    assert where.startswith(str(packages))


def test_version(bin_dir: Path, tmp_path: Path) -> None:
    version = run(bin_dir / "python", "-c", "import memra_mlx; print(memra_mlx.__version__)", cwd=tmp_path).strip()
    assert version in run(bin_dir / "memra-mlx", "--version", cwd=tmp_path)


def test_it_serves(bin_dir: Path, tmp_path: Path) -> None:
    server = Served(tmp_path, Settings(["--port", "0"], command=(str(bin_dir / "memra-mlx"),)))
    try:
        body = json.dumps({"model": server.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})
        connection = http.client.HTTPConnection(urlsplit(server.base).netloc, timeout=60)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["choices"][0]["message"]["content"]
    finally:
        assert server.close() == 0, server.output
