"""Keys, tenants and terms: parsing, and who a request is from."""

from __future__ import annotations

import pytest

from memra_mlx.admission import keyring
from memra_mlx.admission.keyring import KeyringError, Prices, digest_of
from memra_mlx.errors import ApiError

TEXT = f"""
[tenants.acme]
budget = 2.5
prices = {{ prompt = 1.0, completion = 4 }}
capture = true
[[keys]]
sha256 = "{digest_of("mk-a")}"
tenant = "acme"
concurrency = 3
[[keys]]
sha256 = "{digest_of("mk-bulk")}"
tenant = "acme"
class = "batch"
[[keys]]
sha256 = "{digest_of("mk-old")}"
tenant = "beta"
enabled = false
"""
RING = keyring.parse(TEXT)


def test_terms_are_read():
    caller = RING.caller({"x-api-key": "mk-a"})
    assert (caller.tenant, caller.key.concurrency, caller.terms.capture) == ("acme", 3, True)
    assert caller.terms.budget == 2_500_000
    assert caller.terms.prices == Prices(1_000_000, 1_000_000, 4_000_000)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer mk-a"},
        {"authorization": "bearer  mk-a "},
        {"x-api-key": "mk-a"},
        {"authorization": "Bearer wrong", "x-api-key": "mk-a"},
        {"authorization": "Bearer mk-a", "x-api-key": "wrong"},
        {"authorization": "Bearer mk-old", "x-api-key": "mk-a"},
    ],
)
def test_either_usable_key_wins(headers):
    assert RING.caller(headers).tenant == "acme"


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "é"}, {"authorization": "mk-a"}, {"authorization": "Bearer "}])
def test_an_unknown_key_is_401_and_not_echoed(headers):
    with pytest.raises(ApiError) as caught:
        RING.caller(headers)
    assert (caught.value.rule.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.response_headers()["www-authenticate"] == "Bearer"
    assert "mk-" not in caught.value.message


def test_a_disabled_key_is_403():
    with pytest.raises(ApiError) as caught:
        RING.caller({"x-api-key": "mk-old", "authorization": "Bearer nobody"})
    assert (caught.value.rule.status, caught.value.code) == (403, "key_disabled")


def test_an_open_server_asks_nobody():
    ring = keyring.parse("[tenants.default]\ncapture = true")
    assert not ring.closed
    caller = ring.caller({"x-api-key": "anything"})
    assert (caller.tenant, caller.key, caller.terms.capture) == ("default", None, True)
    assert caller.namespace("salt") == "salt"


def test_no_salt_can_name_another_tenant():
    caller = RING.caller({"x-api-key": "mk-a"})
    assert caller.namespace("") == "t:acme\x1f"
    assert caller.namespace("t:beta\x1f") != "t:beta\x1f"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[[keys]]\ntenant='a'", "keys[0].sha256"),
        (f"[[keys]]\nsha256='{'0' * 64}'\ntenant='a b'", "keys[0].tenant"),
        (f"[[keys]]\nsha256='{'0' * 64}'\ntenant='a'\nclass='bulk'", "keys[0].class"),
        (f"[[keys]]\nsha256='{'0' * 64}'\ntenant='a'\nconcurrency=0", "keys[0].concurrency"),
        (f"[[keys]]\nsha256='{'0' * 64}'\ntenant='a'\nenabeld=false", "enabeld"),
        ("[tenants.a]\nbudget=-1", "tenants.a.budget"),
        ("[tenants.a]\nprices={input=1}", "input"),
        ("keys = 3", "keys"),
        ("[[keys", ""),
    ],
)
def test_a_fault_names_its_place(text, where):
    with pytest.raises(KeyringError) as caught:
        keyring.parse(text)
    assert where in str(caught.value)


def test_inline_keys():
    made = "mk-ac-me-" + "0" * 48
    keys = keyring.parse_inline(f"acme=secret, acme/batch=sha256:{digest_of('bulk')},{made}")
    assert [(k.tenant, k.lane_class) for k in keys] == [
        ("acme", "interactive"),
        ("acme", "batch"),
        ("ac-me", "interactive"),
    ]
    ring = keyring.with_keys(RING, keys)
    assert ring.caller({"x-api-key": "bulk"}).key.lane_class == "batch"
    assert ring.caller({"x-api-key": made}).tenant == "ac-me"
    with pytest.raises(KeyringError):
        keyring.parse_inline("secret")


@pytest.mark.parametrize(
    ("tokens", "cost"),
    [((1_000_000, 0, 0), 500_000), ((1_000_000, 1_000_000, 0), 50_000), ((0, 0, 3), 6), ((1, 0, 0), 1), ((0, 0, 0), 0)],
)
def test_costs_are_rounded_up_once(tokens, cost):
    assert Prices(500_000, 50_000, 2_000_000).cost(*tokens) == cost
