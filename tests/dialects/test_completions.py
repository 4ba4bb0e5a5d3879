"""/v1/completions: what a request becomes, its chunks and its body."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Completion

from memra_mlx.dialects import completions
from memra_mlx.dialects.completions_wire import Body
from memra_mlx.errors import ApiError
from memra_mlx.events import Begin, BlockDelta, BlockEnd, BlockStart, Event, Fail, Finish, TokenLogprob, Usage, fold
from memra_mlx.request import RawPrompt, Request

BEGIN = Begin("cmpl-1", "m", 5, 2)
FINISH = Finish("end_turn", Usage(5, 2, 3))
SCORES = (TokenLogprob(" up", 3, -0.5, ((" up", 3, -0.5), (" on", 4, -1.0))), TokenLogprob("on", 5, -0.25))
SCORED: list[Event] = [BEGIN, BlockStart(0, "text"), BlockDelta(0, " upon", SCORES), BlockEnd(0), FINISH]
PLAIN: list[Event] = [
    BEGIN,
    BlockStart(0, "text"),
    *(BlockDelta(0, piece) for piece in (" upon", "", " a time")),
    BlockEnd(0),
    FINISH,
]


def parse(**fields: Any) -> Request:
    return completions.parse({"model": "m", "prompt": "Once", **fields}, {})


def render(events: list[Event], **fields: Any) -> bytes:
    frames = completions.Frames(parse(stream=True, **fields), 1000)
    return b"".join(frames.push(event) for event in events)


def chunks(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def blocking(events: list[Event], **fields: Any) -> dict[str, Any]:
    return completions.body(parse(**fields), fold(events), 1000)


@pytest.mark.parametrize(
    ("prompt", "content"), [("Once", "Once"), (["Once"], "Once"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))]
)
def test_one_prompt_in_every_form(prompt: Any, content: Any) -> None:
    assert parse(prompt=prompt).input == RawPrompt(content)


def test_fields() -> None:
    sent = {
        "max_tokens": 7,
        "echo": True,
        "n": 2,
        "best_of": 2,
        "stop": ["a", "b"],
        "seed": 1,
        "user": "u",
        "suffix": "",
    }
    request = parse(**sent, logit_bias={"5": -100}, stream=True, stream_options={"include_usage": True})
    assert request.input == RawPrompt("Once", echo=True)
    assert (request.dialect, request.max_tokens, request.n, request.stop) == ("completions", 7, 2, ("a", "b"))
    assert (request.sampling.logit_bias, request.sampling.seed, request.affinity) == (((5, -100.0),), 1, "u")
    assert request.stream_usage


def test_null_is_not_set_and_the_published_default_holds() -> None:
    nulls = dict.fromkeys(name for name in Body.model_fields if name not in ("model", "prompt"))
    assert parse(**nulls) == parse(brand_new=1)
    assert parse().max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, -2]}, "prompt[1]"),
        ({"prompt": [[1, "a"]]}, "prompt[0][1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert (caught.value.kind, caught.value.param) == ("invalid", param)


def test_a_stream_ends_with_a_reason_and_done() -> None:
    data = render(PLAIN)
    found = chunks(data)
    assert data.endswith(b"data: [DONE]\n\n")
    assert [chunk["choices"][0]["text"] for chunk in found] == [" upon", " a time", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None, None, "stop"]
    assert {(chunk["id"], chunk["object"], chunk["created"]) for chunk in found} == {
        ("cmpl-1", "text_completion", 1000)
    }
    assert not any("usage" in chunk for chunk in found)


def test_usage_on_a_stream_when_asked() -> None:
    *others, last = chunks(render(PLAIN, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"] == blocking(PLAIN)["usage"]
    assert last["usage"]["total_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in others)


def test_a_fault_is_an_error_chunk_without_done() -> None:
    data = render([*PLAIN[:3], Fail(ApiError("engine", "it broke"))])
    assert chunks(data)[-1]["error"]["code"] == "engine_error"
    assert b"[DONE]" not in data


def test_token_ids_are_echoed_as_the_text_that_the_model_read() -> None:
    request = parse(prompt=[1, 2], echo=True)
    assert isinstance(request.input, RawPrompt)
    read = replace(request, input=replace(request.input, shown="Once"))
    assert completions.body(read, fold(PLAIN), 0)["choices"][0]["text"] == "Once upon a time"


def test_echo_leads_the_text() -> None:
    assert blocking(PLAIN, echo=True)["choices"][0]["text"] == "Once upon a time"
    streamed = chunks(render(PLAIN, echo=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == "Once upon a time"


def test_logprobs_in_the_lists_of_this_api() -> None:
    scores = blocking(SCORED, logprobs=2)["choices"][0]["logprobs"]
    assert scores == {
        "tokens": [" up", "on"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{" up": -0.5, " on": -1.0}, {"on": -0.25}],
        "text_offset": [0, 3],
    }
    assert chunks(render(SCORED, logprobs=2))[0]["choices"][0]["logprobs"] == scores
    assert blocking(SCORED)["choices"][0]["logprobs"] is None


def test_text_offsets_run_on_over_the_chunks() -> None:
    pieces = [BlockDelta(0, entry.token, (entry,)) for entry in SCORES]
    found = chunks(render([BEGIN, BlockStart(0, "text"), *pieces, BlockEnd(0), FINISH], logprobs=0))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in found[:2]] == [[0], [3]]


def test_several_choices_share_a_stream_and_a_body() -> None:
    request = parse(n=2, stream=True)
    frames = completions.Frames(request, 1000)
    data = b"".join(frames.push(event, choice) for event in PLAIN for choice in (0, 1))
    assert data.count(b"[DONE]") == 1
    for choice in (0, 1):
        texts = [chunk["choices"][0]["text"] for chunk in chunks(data) if chunk["choices"][0]["index"] == choice]
        assert "".join(texts) == " upon a time"
    body = completions.body(request, fold(PLAIN), 1000, [fold(PLAIN)])
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 6)


@pytest.mark.parametrize(("reason", "sent"), [("end_turn", "stop"), ("stop", "stop"), ("length", "length")])
def test_finish_reasons(reason: Any, sent: str) -> None:
    body = blocking([BEGIN, Finish(reason, Usage(5, 0, 0), warnings=("w",))])
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["text"]) == (sent, "")
    assert body["warnings"] == ["w"]


def test_keepalive_is_a_comment() -> None:
    assert completions.Frames(parse(stream=True), 0).keepalive(5.0).startswith(b":")


@pytest.fixture
def client() -> Iterator[OpenAI]:
    def answer(http: httpx.Request) -> httpx.Response:
        sent = json.loads(http.content)
        request = completions.parse(sent, http.headers)
        if not request.stream:
            return httpx.Response(200, json=completions.body(request, fold(SCORED), 1000))
        frames = completions.Frames(request, 1000)
        data = b"".join(frames.push(event) for event in SCORED)
        return httpx.Response(200, content=data, headers={"content-type": "text/event-stream"})

    transport = httpx.MockTransport(answer)
    with OpenAI(api_key="k", base_url="http://test/v1", http_client=httpx.Client(transport=transport)) as found:
        yield found


def test_sdk(client: OpenAI) -> None:
    whole = client.completions.create(model="m", prompt="Once", logprobs=2)
    assert Completion.model_validate(whole.model_dump(), strict=True).choices[0].text == " upon"
    options = {"include_usage": True}
    pieces = list(client.completions.create(model="m", prompt="Once", stream=True, stream_options=options))  # type: ignore[call-overload]
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == " upon"
    assert pieces[-1].usage.total_tokens == 8
