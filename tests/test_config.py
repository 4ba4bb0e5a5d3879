"""Precedence, parsing and the messages of a bad configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memra_mlx import config
from memra_mlx.config import Alias, ConfigError, ModelSpec


def load(flags=None, env=None, toml: str | None = None, tmp_path: Path | None = None):
    file = None
    if toml is not None:
        assert tmp_path is not None
        file = tmp_path / "config.toml"
        file.write_text(toml)
    return config.load(flags or {}, file, env or {})


def test_flag_beats_environment_beats_file_beats_default(tmp_path):
    toml = 'port = 1\nhost = "::1"\ncontext = 7'
    loaded = load({"port": "3"}, {"MEMRA_PORT": "2", "MEMRA_HOST": "127.0.0.2"}, toml, tmp_path)
    assert (loaded.port, loaded.host, loaded.context, loaded.drain_s) == (3, "127.0.0.2", 7, 30.0)
    chosen = {name: loaded.sources[name] for name in ("port", "host", "context", "drain_s")}
    assert chosen == {"port": "flag", "host": "environment", "context": "config.toml", "drain_s": "default"}


def test_address_variable_sets_host_and_port():
    loaded = load(env={"MEMRA_ADDR": "0.0.0.0:99"})
    assert (loaded.host, loaded.port) == ("0.0.0.0", 99)
    assert load(env={"MEMRA_ADDR": "0.0.0.0:99", "MEMRA_PORT": "5"}).port == 5


def test_without_models_the_embedded_one_is_served():
    loaded = load()
    assert loaded.embedded
    assert (Path(loaded.models[0].location) / "config.json").exists()


def test_models_from_any_layer(tmp_path):
    wanted = (ModelSpec("a", "org/x"), ModelSpec("org/y", "org/y"), ModelSpec(tmp_path.name, str(tmp_path)))
    assert load({"models": ("a=org/x", "org/y", str(tmp_path))}).models == wanted
    assert load(env={"MEMRA_MODELS": f"a=org/x, org/y,{tmp_path}"}).models == wanted


def test_aliases_from_flags_and_tables(tmp_path):
    wanted = (Alias("claude-*", "a"), Alias("gpt", "b"))
    assert load({"aliases": ("claude-*=a", "gpt=b")}).aliases == wanted
    assert load(toml='[aliases]\n"claude-*" = "a"\ngpt = "b"', tmp_path=tmp_path).aliases == wanted


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("64M", 64 << 20), ("64 MiB", 64 << 20), ("1.5g", 3 << 29), ("2kb", 2048)]
)
def test_sizes(text, size):
    assert load({"body_limit": text}).body_limit == size


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "70000"}, "port (flag)"),
        ({"port": "x"}, "port (flag)"),
        ({"context": "-1"}, "context (flag)"),
        ({"drain_s": "soon"}, "drain_s (flag)"),
        ({"aliases": ("claude",)}, "must be NAME=MODEL"),
        ({"models": ("a=x", "a=y")}, "twice"),
    ],
)
def test_a_bad_value_names_its_option_and_source(flags, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(flags)


def test_file_errors_name_the_key_or_the_file(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'prot'"):
        load(toml="prot = 1", tmp_path=tmp_path)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load(toml="port = ", tmp_path=tmp_path)
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        config.load({}, tmp_path / "missing.toml", {})
