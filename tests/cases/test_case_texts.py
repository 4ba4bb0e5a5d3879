"""Text variables and body recipes of the case files."""

import gzip
import json
import zlib
from pathlib import Path

import case_fit
import pytest
from case_setup import Unsupported, environment
from case_texts import expand, raw_body


def test_variables() -> None:
    variables = {"CTX": 3, "MODEL": "m", "N": 2, "ID:0": "call_1"}
    assert expand("${LONG:${CTX}}x", variables) == "lorem lorem lorem x"
    assert expand(["${REPEAT:a:3}", {"k": "${MODEL}-${N}"}, "${ID:0}", 5], variables) == [
        "aaa",
        {"k": "m-2"},
        "call_1",
        5,
    ]
    assert expand("${REPEAT:<|im_end|>:2}", variables) == "<|im_end|><|im_end|>"


def test_a_number_stays_a_number_and_unknown_names_stay() -> None:
    assert expand("${CTX}", {"CTX": 7}) == 7
    assert expand("${CTX} tokens", {"CTX": 7}) == "7 tokens"
    assert expand("${WHAT} ${MODEL:x}", {"MODEL": "m"}) == "${WHAT} ${MODEL:x}"


def test_recipes() -> None:
    assert raw_body("{") == b"{"
    assert raw_body({"hex": "7bff"}) == b"{\xff"
    assert raw_body({"repeat": "ab", "bytes": 5}) == b"ababa"
    assert json.loads(raw_body({"nest": "[", "depth": 3, "wrap": '{"a":%s}'})) == {"a": [[[]]]}
    assert gzip.decompress(raw_body({"gzip_of": "text"})) == b"text"
    packed = raw_body({"gzip_of": "3 MiB of spaces"})
    assert gzip.decompress(packed) == b" " * (3 << 20)
    assert zlib.decompressobj(31).decompress(packed) == b" " * (3 << 20)
    with pytest.raises(ValueError, match="unknown recipe"):
        raw_body({"nope": 1})


def test_settings_that_do_not_exist_are_refused() -> None:
    assert environment({"engine": "any", "ctx": 512, "drain_s": 3}) == {"MEMRA_CONTEXT": "512", "MEMRA_DRAIN_S": "3"}
    with pytest.raises(Unsupported, match=r"needs\.colour"):
        environment({"engine": "any", "colour": "red"})


def test_every_committed_case_can_be_read(pytestconfig: pytest.Config) -> None:
    folder: Path = pytestconfig.rootpath / "fixtures" / "cases"
    ids = [json.loads(file.read_text())["id"] for file in sorted(folder.glob("*.json"))]
    assert len(ids) == len(set(ids)) > 100


def test_filler_of_an_exact_length() -> None:
    body = {"messages": [{"content": "${FIT:ctx-1}!"}], "max_tokens": 9}
    assert case_fit.wanted(json.dumps(body), 512) == 511
    assert case_fit.wanted("${LONG:3}", 512) is None
    assert case_fit.filler(lambda words: 20 + words, 25) == " a" * 5
    assert case_fit.filled(body, " a")["messages"][0]["content"] == " a!"
    assert case_fit.probe(body, 2) == {"messages": [{"content": " a a!"}], "max_tokens": 16, "stream": False}
    with pytest.raises(ValueError, match="exactly 20 tokens"):
        case_fit.filler(lambda words: 21 + 3 * words, 20)
