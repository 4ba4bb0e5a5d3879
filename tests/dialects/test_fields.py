from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from memra_mlx.dialects.content import CallIds, Notes, affinity, arguments, image, image_url, unique
from memra_mlx.dialects.fields import Count, Temperature, Wire, brief, stops, top_k, validate
from memra_mlx.errors import ApiError
from memra_mlx.request import Tool


class Inner(Wire):
    name: str


class Outer(Wire):
    count: Count | None = None
    temperature: Temperature | None = None
    text: str | list[Inner] | None = None
    word: Literal["a", "b"] | None = None
    items: Annotated[list[Inner], Field(min_length=1)] | None = None
    must: bool


@pytest.mark.parametrize(
    ("body", "param", "code", "words"),
    [
        ({}, "must", "missing_argument", "required"),
        ({"must": None}, "must", "invalid_argument", "true or false, not null"),
        ({"must": 1}, "must", "invalid_argument", "true or false, not 1"),
        ({"must": True, "count": True}, "count", "invalid_argument", "an integer, not true"),
        ({"must": True, "count": 1.5}, "count", "invalid_argument", "an integer, not 1.5"),
        ({"must": True, "count": "7"}, "count", "invalid_argument", 'an integer, not "7"'),
        ({"must": True, "count": 0}, "count", "invalid_argument", "at least 1, not 0"),
        ({"must": True, "count": 10**30}, "count", "invalid_argument", "at most"),
        ({"must": True, "temperature": 2.5}, "temperature", "invalid_argument", "at most 2.0, not 2.5"),
        ({"must": True, "temperature": False}, "temperature", "invalid_argument", "a number, not false"),
        ({"must": True, "text": 5}, "text", "invalid_argument", "a string or a list, not 5"),
        ({"must": True, "text": [{"name": "x"}, {}]}, "text[1].name", "missing_argument", "required"),
        ({"must": True, "text": ["x"]}, "text[0]", "invalid_argument", 'an object, not "x"'),
        ({"must": True, "word": "c"}, "word", "invalid_argument", "'a' or 'b', not \"c\""),
        ({"must": True, "items": []}, "items", "invalid_argument", "at least 1, not a list of 0"),
        ({"must": True, "items": [{"name": 7}]}, "items[0].name", "invalid_argument", "a string, not 7"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_accepted(body: dict[str, Any], param: str, code: str, words: str):
    with pytest.raises(ApiError) as fault:
        validate(Outer, body)
    error = fault.value
    assert (error.kind, error.param, error.code) == ("invalid", param, code)
    assert words in error.message
    assert error.message.startswith(f"{param}: ")


def test_a_path_starts_where_the_value_stands():
    with pytest.raises(ApiError) as fault:
        validate(Inner, {"name": None}, "messages[3].content[0]")
    assert fault.value.param == "messages[3].content[0].name"


def test_unknown_fields_and_nulls_are_nothing_and_an_int_is_a_number():
    sent = validate(Outer, {"must": False, "count": None, "new": {"a": 1}, "temperature": 1})
    assert sent == Outer(must=False, temperature=1.0)


def test_brief_is_short_for_anything():
    assert brief("x" * 10**6) == '"' + "x" * 56 + "..."
    assert brief({"a": 1}) == "an object"
    assert brief(2**80) == str(2**80)


def test_stops():
    assert stops(None, "stop") == stops([], "stop") == ()
    assert stops("a", "stop") == ("a",)
    with pytest.raises(ApiError, match=r"^stop\[1\]: "):
        stops(["a", ""], "stop")


def test_top_k_has_two_ways_to_say_off():
    assert [top_k(value) for value in (None, -1, 0, 5)] == [None, 0, 0, 5]


def test_arguments_are_always_the_text_of_an_object():
    assert arguments('{"a": 1}') == '{"a": 1}'
    assert arguments("") == arguments(None) == arguments("  ") == arguments({}) == "{}"
    assert arguments({"a": [1]}) == '{"a":[1]}'
    assert arguments('{"a": ') == '{"input":"{\\"a\\": "}'
    assert arguments("[1]") == '{"input":"[1]"}'


def test_images():
    assert image("aGk=", "image/png", "x").data == b"hi"
    assert image("aG\r\nk=", "IMAGE/PNG", "x").media_type == "image/png"
    assert image_url("data:image/jpeg;charset=utf-8;base64,aGk=", "x").data == b"hi"
    for data, kind in (("aGk", "image/png"), ("é", "image/png"), ("", "image/png"), ("aGk=", "image/bmp")):
        with pytest.raises(ApiError, match=r"^x: "):
            image(data, kind, "x")
    for url in ("http://h/x.png", "file:///etc/passwd", "x.png", "data:image/png,hi", "data:text/html;base64,aGk=", ""):
        with pytest.raises(ApiError, match=r"^x: "):
            image_url(url, "x")


def test_call_ids_are_made_up_only_where_they_lack():
    ids = CallIds()
    assert [ids.called("a"), ids.called(None), ids.called("")] == ["a", "call_2", "call_3"]
    assert [ids.answered(None), ids.answered("call_3"), ids.answered(None)] == ["a", "call_3", "call_2"]
    assert ids.answered(None) is None
    assert ids.answered("ghost") == "ghost"


def test_a_repeated_tool_is_one_tool_and_a_contradiction_is_refused():
    a, b = Tool("a", "", {}), Tool("b", "", {})
    assert unique([a, b, a], "tools") == (a, b)
    with pytest.raises(ApiError, match=r"^tools\[1\]\.name: "):
        unique([a, Tool("a", "other", {})], "tools")


def test_notes_say_each_kind_once():
    notes = Notes()
    notes.skipped("messages[0].content[0]", "video")
    notes.skipped("messages[1].content[0]", "video")
    assert notes.texts == ('messages[0].content[0]: a part of type "video" is not known here and was left out',)


def test_affinity_prefers_the_body():
    headers = {"x-session-id": "h"}
    assert affinity(headers, None, "u") == "u"
    assert affinity(headers, None) == "h"
    assert affinity({}) is None
