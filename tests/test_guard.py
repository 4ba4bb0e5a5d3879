"""Who may speak: addresses, names, keys."""

from __future__ import annotations

import pytest

from memra_mlx import config, guard
from memra_mlx.admission.keyring import Key, Ring, digest_of
from memra_mlx.errors import ApiError

OPEN = config.load({}, None, {})
KEYED = config.load({"api_key": "mk-secret", "metrics_token": "see-all"}, None, {})
NOBODY = Ring()
RING = Ring((Key(digest_of("mk-secret"), "acme"),), closed=True)


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "[::1]", "a.localhost:5"]
)
def test_loopback_names_pass_on_an_open_server(host):
    guard.check(OPEN, NOBODY, "/v1/messages", {"host": host})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[2001:db8::1]:80"])
def test_foreign_names_are_403_on_an_open_server(host):
    with pytest.raises(ApiError, match="host") as caught:
        guard.check(OPEN, NOBODY, "/", {"host": host})
    assert caught.value.rule.status == 403


def test_an_allowed_host_passes():
    guard.check(config.load({"allow_hosts": "box.lan"}, None, {}), NOBODY, "/", {"host": "Box.lan:8080"})


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/v1/messages/count_tokens", "/nowhere"])
def test_other_routes_need_a_key(path):
    guard.check(KEYED, RING, path, {"x-api-key": "mk-secret", "host": "box.lan"})
    with pytest.raises(ApiError) as caught:
        guard.check(KEYED, RING, path, {"x-api-key": "wrong"})
    assert caught.value.rule.status == 401


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/health", *guard.GENERATING])
def test_probes_need_none_and_admission_asks_by_itself(path):
    guard.check(KEYED, RING, path, {})


@pytest.mark.parametrize(
    ("headers", "tenant"), [({"authorization": "Bearer see-all"}, None), ({"x-api-key": "mk-secret"}, "acme")]
)
def test_who_sees_which_counts(headers, tenant):
    assert guard.metrics_of(KEYED, RING, headers) == tenant


def test_counts_need_a_key_on_a_closed_server_only():
    assert guard.metrics_of(OPEN, NOBODY, {}) is None
    for settings, headers in ((KEYED, {"x-api-key": "other"}), (OPEN, {"x-api-key": ""}), (OPEN, {})):
        with pytest.raises(ApiError) as caught:
            guard.metrics_of(settings, RING, headers)
        assert caught.value.rule.status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.5", "box.lan"])
def test_an_address_that_others_reach_needs_keys(host):
    settings = config.load({"host": host}, None, {})
    with pytest.raises(config.ConfigError, match="keys gen"):
        guard.check_bind(settings, NOBODY)
    guard.check_bind(settings, RING)
    guard.check_bind(config.load({"host": host, "insecure_open": True}, None, {}), NOBODY)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_may_be_open(host):
    guard.check_bind(config.load({"host": host}, None, {}), NOBODY)
