"""Reading bodies: encodings, limits, JSON."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from memra_mlx.errors import ApiError
from memra_mlx.http import decompress, read_object, warning_header

LIMIT = 1 << 20
CODERS = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.ZstdCompressor().compress}


def body(data: bytes, encoding: str = ""):
    return SimpleNamespace(body=data, headers={"content-encoding": encoding} if encoding else {})


@pytest.mark.parametrize("encoding", CODERS)
def test_encodings_round_trip(encoding):
    assert decompress(CODERS[encoding](b"x" * 5000), encoding, LIMIT) == b"x" * 5000


def test_several_encodings_are_undone_in_reverse():
    assert decompress(gzip.compress(zlib.compress(b"abc")), "deflate, gzip", LIMIT) == b"abc"


@pytest.mark.parametrize("encoding", CODERS)
def test_a_bomb_is_413_without_being_unpacked(encoding):
    with pytest.raises(ApiError) as caught:
        decompress(CODERS[encoding](b"\0" * (64 << 20)), encoding, LIMIT)
    assert caught.value.rule.status == 413


@pytest.mark.parametrize("encoding", CODERS)
def test_broken_data_is_400(encoding):
    for data in (b"nonsense", CODERS[encoding](b"x" * 5000)[:-6]):
        with pytest.raises(ApiError) as caught:
            read_object(body(data, encoding), LIMIT)
        assert caught.value.rule.status == 400


def test_an_unknown_encoding_is_415():
    with pytest.raises(ApiError) as caught:
        decompress(b"", "br", LIMIT)
    assert caught.value.rule.status == 415


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'"x"', b"null", b"1", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_anything_but_a_json_object_is_400_invalid_json(data):
    with pytest.raises(ApiError) as caught:
        read_object(body(data), LIMIT)
    assert (caught.value.rule.status, caught.value.code) == (400, "invalid_json")


@given(st.binary(max_size=200), st.sampled_from(["", *CODERS]))
def test_no_bytes_raise_anything_else(data, encoding):
    with contextlib.suppress(ApiError):
        read_object(body(data, encoding), LIMIT)


def test_warnings_fit_into_a_header():
    assert warning_header(()) == {}
    assert warning_header(("a\r\nb", "ü")) == {"x-memra-warning": "a b | ?"}
