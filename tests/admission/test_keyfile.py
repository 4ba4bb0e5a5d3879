"""The keyring on disk: reload, broken rewrites, and the edits of `memra-mlx keys`."""

from __future__ import annotations

import logging
import os
import stat

import pytest
from click.testing import CliRunner

from memra_mlx import config
from memra_mlx.admission import keyfile
from memra_mlx.admission.keyfile import Keyring
from memra_mlx.admission.keyring import KeyringError, digest_of
from memra_mlx.cli.keys import keys
from memra_mlx.errors import ApiError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "keys.toml"


def rewrite(file, text):
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    os.replace(fresh, file)  # a new inode, so that the change shows at any resolution of the clock


def test_a_rewrite_holds_from_the_next_request_on(file):
    first = keyfile.generate(file, "acme", "interactive", None)
    ring = Keyring(file)
    assert ring.ring.caller({"x-api-key": first}).tenant == "acme"
    second = keyfile.generate(file, "beta", "batch", 2)
    assert ring.ring.caller({"x-api-key": second}).key.concurrency == 2


def test_a_broken_rewrite_keeps_the_old_ring_and_logs_once(file, caplog):
    key = keyfile.generate(file, "acme", "interactive", None)
    ring = Keyring(file)
    rewrite(file, "[[keys]]\nsha256 = ")
    with caplog.at_level(logging.ERROR, "memra.keys"):
        assert ring.ring.caller({"x-api-key": key}).tenant == "acme"
        assert ring.ring.closed
    assert len(caplog.records) == 1


@pytest.mark.parametrize("change", ["empty", "gone"])
def test_a_closed_server_never_opens(file, change):
    keyfile.generate(file, "acme", "interactive", None)
    ring = Keyring(file)
    rewrite(file, "") if change == "empty" else file.unlink()
    with pytest.raises(ApiError):
        ring.ring.caller({})


def test_the_first_key_closes_a_running_server(file):
    ring = Keyring(file)
    assert not ring.ring.closed
    keyfile.generate(file, "acme", "interactive", None)
    assert ring.ring.closed


def test_keys_of_the_environment_survive_a_reload(file):
    settings = config.load({"keys_file": str(file), "api_key": "one", "keys": "acme=two"}, None, {})
    ring = Keyring.of(settings)
    keyfile.generate(file, "beta", "interactive", None)
    assert [ring.ring.caller({"x-api-key": key}).tenant for key in ("one", "two")] == ["default", "acme"]
    assert len(ring.ring.keys) == 3


def test_a_broken_ring_is_a_config_error_at_the_start(file):
    file.parent.mkdir()
    file.write_text("x = 1")
    with pytest.raises(config.ConfigError, match=r"keys\.toml"):
        Keyring.of(config.load({"keys_file": str(file)}, None, {}))


def test_the_file_is_private_and_has_no_plaintext(file):
    key = keyfile.generate(file, "acme", "interactive", 4)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key.startswith("mk-acme-")
    assert len(key) == len("mk-acme-") + 48
    assert key not in file.read_text()
    assert list(file.parent.iterdir()) == [file]


def test_revoking_keeps_everything_else(file):
    first = keyfile.generate(file, "acme", "interactive", 4)
    second = keyfile.generate(file, "acme", "interactive", None)
    text = "# my keys\n" + file.read_text() + "\n[tenants.acme]\nbudget = 1\n"
    file.write_text(text)
    keyfile.revoke(file, digest_of(first)[:12])
    after = file.read_text()
    assert after.startswith("# my keys\n")
    assert after.count("enabled = false") == 1
    ring = keyfile.listing(file)
    assert ring.terms("acme").budget == 1_000_000
    assert ring.caller({"x-api-key": second}).key.enabled
    with pytest.raises(ApiError, match="disabled"):
        ring.caller({"x-api-key": first})


@pytest.mark.parametrize("id", ["ffff", ""])
def test_an_id_must_name_one_key(file, id):
    keyfile.generate(file, "acme", "interactive", None)
    keyfile.generate(file, "acme", "interactive", None)
    with pytest.raises(KeyringError):
        keyfile.revoke(file, id)


def test_the_commands(file):
    run = CliRunner().invoke
    made = run(keys, ["gen", "acme", "--class", "batch", "--file", str(file)])
    assert made.exit_code == 0
    listed = run(keys, ["ls", "--file", str(file)]).output
    key_id = listed.split()[0]
    assert key_id == digest_of(made.output.strip())[:12]
    assert "acme  batch  enabled" in listed
    assert run(keys, ["revoke", key_id, "--file", str(file)]).exit_code == 0
    assert "disabled" in run(keys, ["ls", "--file", str(file)]).output
    failed = run(keys, ["gen", "a b", "--file", str(file)])
    assert failed.exit_code == 1
    assert "letters" in failed.output
