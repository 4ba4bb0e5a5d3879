"""A streaming client that only looks at the clock: OpenAI's chat and text completions over HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from memra_mlx.bench.stats import gaps

_TIMEOUT_S = 600.0
_CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls")

Message = dict[str, str]


class BenchError(Exception):
    """A server that does not answer as it should; the message names it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: `base` is its URL without /v1."""

    name: str
    base: str
    model: str
    key: str = "local"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, greedy and streaming."""

    path: str
    body: dict[str, Any]

    @classmethod
    def chat(cls, messages: Sequence[Message], max_tokens: int, **more: object) -> Ask:
        """A chat completion."""
        return cls("/v1/chat/completions", {"messages": list(messages), "max_tokens": max_tokens, **more})

    @classmethod
    def text(cls, prompt: str, max_tokens: int) -> Ask:
        """A raw completion: no template."""
        return cls("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens})


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Times are seconds of `time.perf_counter`; `times` has one for each piece of content, `cached` is None
    where the server does not tell."""

    sent: float
    times: tuple[float, ...]
    ended: float
    text: str
    prompt: int
    cached: int | None
    completion: int

    @property
    def first(self) -> float:
        """When the first byte of content came; the end where there was none."""
        return self.times[0] if self.times else self.ended

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first - self.sent


@dataclass(slots=True)
class Stream:
    """A running request. Iterate over its pieces of content; leaving the `with` block hangs up."""

    endpoint: Endpoint
    ask: Ask
    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _usage: dict[str, Any] = field(default_factory=dict)
    _connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._connection is not None:
            self._connection.close()

    def __iter__(self) -> Iterator[str]:
        """Send the request and yield its content as it comes. Raises `BenchError`."""
        try:
            yield from self._pieces()
        except (OSError, http.client.HTTPException) as fault:
            raise BenchError(f"{self.endpoint.name}: {self.ask.path}: {fault or type(fault).__name__}") from fault

    def reply(self) -> Reply:
        """The whole answer, once the pieces are over."""
        if "prompt_tokens" not in self._usage:
            raise BenchError(f"{self.endpoint.name}: {self.ask.path}: the stream ended without usage")
        details = self._usage.get("prompt_tokens_details") or {}
        return Reply(
            sent=self.sent,
            times=tuple(self.times),
            ended=time.perf_counter(),
            text="".join(self._text),
            prompt=int(self._usage["prompt_tokens"]),
            cached=details.get("cached_tokens"),
            completion=int(self._usage["completion_tokens"]),
        )

    def _pieces(self) -> Iterator[str]:
        for data in self._events(self._send()):
            self._usage = data.get("usage") or self._usage
            for choice in data.get("choices") or ():
                delta = choice.get("delta") or {}
                if choice.get("text") or any(delta.get(name) for name in _CONTENT):
                    self.times.append(time.perf_counter())
                    piece = str(choice.get("text") or delta.get("content") or "")
                    self._text.append(piece)
                    yield piece

    def _send(self) -> http.client.HTTPResponse:
        fixed = {"model": self.endpoint.model, "stream": True, "temperature": 0}
        body = json.dumps({**fixed, "stream_options": {"include_usage": True}, **self.ask.body})
        self._connection = connect(self.endpoint.base)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.endpoint.key}"}
        self.sent = time.perf_counter()
        self._connection.request("POST", self.ask.path, body, headers)
        response = self._connection.getresponse()
        if response.status != 200:
            answer = response.read(2000).decode("utf-8", "replace")
            raise BenchError(f"{self.endpoint.name}: {self.ask.path}: status {response.status}: {answer}")
        return response

    def _events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        while line := response.readline():
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                event = json.loads(data)
                if "error" in event:
                    raise BenchError(f"{self.endpoint.name}: {self.ask.path}: {event['error']}")
                yield event


def connect(base: str) -> http.client.HTTPConnection:
    """A connection to the server at `base`, not yet open."""
    url = urlsplit(base)
    secure = url.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return kind(url.hostname or "", url.port, timeout=_TIMEOUT_S)


def fetch(endpoint: Endpoint, ask: Ask) -> Reply:
    """Send one request and read it to its end."""
    with Stream(endpoint, ask) as stream:
        for _ in stream:
            pass
        return stream.reply()


def together(endpoint: Endpoint, asks: Sequence[Ask]) -> list[Reply]:
    """Send all requests at once, each from a client of its own."""
    barrier = Barrier(len(asks))

    def one(ask: Ask) -> Reply:
        barrier.wait()
        return fetch(endpoint, ask)

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(one, asks))


def aggregate(replies: Sequence[Reply]) -> float:
    """Tokens a second of all together, from the first request to the last token."""
    began, over = min(r.sent for r in replies), max(r.times[-1] if r.times else r.ended for r in replies)
    return sum(r.completion for r in replies) / (over - began)


def decoding(replies: Sequence[Reply]) -> float:
    """Tokens a second of all together, from the first token on."""
    began, over = min(r.first for r in replies), max(r.times[-1] if r.times else r.ended for r in replies)
    return sum(r.completion - 1 for r in replies) / max(over - began, 1e-9)


def quiet_gaps(times: Sequence[float], before: float) -> list[float]:
    """Gaps of a stream up to the time `before`, the first one left out."""
    return gaps([t for t in times if t < before][1:])


def busy_gaps(times: Sequence[float], began: float, over: float) -> list[float]:
    """Gaps of a stream that end between `began` and `over`, or that reach over the end."""
    ends = zip(times[1:], gaps(times), strict=True)
    return [gap for end, gap in ends if end >= began and end - gap <= over]


def model_of(base: str, key: str) -> str:
    """The id of a server's first model. Raises `BenchError`."""
    connection = connect(base)
    try:
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        return str(json.loads(connection.getresponse().read())["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as fault:
        raise BenchError(f"{base}/v1/models: {fault or type(fault).__name__}; name a model with --model") from fault
    finally:
        connection.close()
