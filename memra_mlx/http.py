"""The one generating handler: bytes in, a JSON body or an SSE stream out, whatever the dialect.

Before the stream is committed an error is a real status; after it, the dialect's own error frame. A stream is committed
by its first content, or `commit_s` after the body was read.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from types import ModuleType
from typing import Any

import msgspec
import zstandard
from sanic import HTTPResponse
from sanic import Request as HttpRequest

from memra_mlx.admission.admit import Call, admit
from memra_mlx.admission.services import Services
from memra_mlx.admission.ticket import Ticket
from memra_mlx.choices import Chosen, chosen
from memra_mlx.deadline import Deadline
from memra_mlx.errors import ApiError
from memra_mlx.events import Answer, Begin, BlockDelta, BlockStart, Event, Fail, Order, fold
from memra_mlx.metrics import Retired

log = logging.getLogger("memra.http")

Body = bytes | bytearray
_PIECE = 1 << 20
INTERNAL = "an internal error ended this request; the server log has the details under its request id"


async def serve(http: HttpRequest, dialect: ModuleType) -> None:
    """Serve one generating request; `dialect` is a module of `memra_mlx.dialects`. Raises `ApiError`."""
    services: Services = http.app.ctx.services
    call = Call(http.path, http.ctx.request_id, headers(http))
    begin_at = Deadline.after_ms(round(services.config.commit_s * 1000))
    try:
        request = dialect.parse(read_object(http, services.config.body_limit), call.headers)
        async with admit(services, request, call) as ticket:
            if request.stream:
                await Stream(http, dialect, ticket, services.config.keepalive_s).send(begin_at)
            else:
                await answer(http, dialect, ticket, begin_at)
    except ApiError as error:
        if not call.receipt:
            services.metrics.retire(Retired(call.route, "", "rejected", error.code or error.kind))
        raise


async def answer(http: HttpRequest, dialect: ModuleType, ticket: Ticket, begin_at: Deadline) -> None:
    """Send the whole answer at once, while the request still has its place: a drain waits for it."""
    run = ticket.run
    keepalive_s = http.app.ctx.services.config.keepalive_s
    batches = [batch async for batch in chosen(run, begin_at, keepalive_s)]
    first, *others = folded([pair for batch in batches for pair in batch], run.request.n)
    created = int(time.time())
    body = dialect.body(run.request, first, created, others) if others else dialect.body(run.request, first, created)
    await ticket.settle()
    extra = {**ticket.rate.headers(), **warning_header(run.warnings)}
    response: Any = await http.respond(json_response(body, 200, extra))
    await response.eof()


def folded(pairs: list[Chosen], n: int) -> list[Answer]:
    """The `n` answers that these events tell. Raises the `ApiError` of a `Fail`, whichever answer it ended."""
    if pairs and isinstance(pairs[-1][1], Fail):
        raise pairs[-1][1].error
    orders = [Order() for _ in range(n)]
    return [fold(orders[i].check(event) for at, event in pairs if at == i) for i in range(n)]


class Stream:
    """Writes one event stream to its client."""

    def __init__(self, http: HttpRequest, dialect: ModuleType, ticket: Ticket, keepalive_s: float):
        self._http = http
        self._ticket = ticket
        self._run = ticket.run
        self._frames = dialect.Frames(self._run.request, int(time.time()))
        self._keepalive_s = keepalive_s
        self._orders = [Order() for _ in range(self._run.request.n)]
        self._response: Any = None
        self._written = self._content = time.monotonic()

    async def send(self, begin_at: Deadline) -> None:
        """Send the whole stream. Raises `ApiError` for a failure before it is committed, and nothing after."""
        held: list[Chosen] = []
        try:
            async with aclosing(chosen(self._run, begin_at, self._keepalive_s)) as batches:
                async for batch in batches:
                    held += batch
                    if self._response is None and not await self._commit([event for _, event in held], begin_at):
                        continue
                    await self._write(held)
                    held = []
        except ApiError:
            raise
        except Exception:
            if self._response is None:
                raise
            log.exception("a stream broke")
            self._run.meter.outcome = "crashed"
            await self._write([(0, Fail(ApiError("engine", INTERNAL)))])
        await self._response.eof()

    async def _commit(self, held: list[Event], begin_at: Deadline) -> bool:
        if held and isinstance(held[-1], Fail) and not any(isinstance(e, BlockStart) for e in held):
            raise held[-1].error
        if begin_at.left_s() > 0 and all(isinstance(e, Begin) for e in held):
            return False
        extra = {"cache-control": "no-cache", **self._ticket.rate.headers(), **warning_header(self._run.warnings)}
        self._response = await self._http.respond(content_type="text/event-stream", headers=extra)
        return True

    async def _write(self, pairs: list[Chosen]) -> None:
        data = b"".join(self._push(index, event) for index, event in pairs)
        if any(isinstance(event, Fail) for _, event in pairs) or all(order.state == "over" for order in self._orders):
            await self._ticket.settle()
        now = time.monotonic()
        if data and any(isinstance(event, BlockStart | BlockDelta) for _, event in pairs):
            self._content = now
        if not data and now - self._written >= self._keepalive_s * 0.9:
            data = self._frames.keepalive(now - self._content)
        if data:
            self._written = now
            await self._response.send(data)

    def _push(self, index: int, event: Event) -> bytes:
        """Only the dialects that know several choices take a number."""
        frames, checked = self._frames, self._orders[index].check(event)
        data: bytes = frames.push(checked, index) if index else frames.push(checked)
        return data


def headers(http: HttpRequest) -> Mapping[str, str]:
    """Request headers by lower-case name; the last of a repeated one wins."""
    return {name.lower(): value for name, value in http.headers.items()}


def json_response(body: object, status: int, extra: Mapping[str, str] | None = None) -> HTTPResponse:
    """A JSON answer."""
    return HTTPResponse(
        msgspec.json.encode(body), status=status, headers=dict(extra or {}), content_type="application/json"
    )


def warning_header(warnings: tuple[str, ...]) -> dict[str, str]:
    """`x-memra-warning`, in characters that a header can carry."""
    text = " | ".join(" ".join(warning.split()) for warning in warnings)
    return {"x-memra-warning": text.encode("ascii", "replace").decode()[:4000]} if text else {}


def read_object(http: HttpRequest, limit: int) -> dict[str, Any]:
    """The JSON object in the body. Raises a 400 for anything else, 413 past `limit` bytes after decompression."""
    data = decompress(http.body or b"", http.headers.get("content-encoding", ""), limit)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ApiError("invalid", f"the body is not valid JSON: {fault}", code="invalid_json") from fault
    if not isinstance(value, dict):
        raise ApiError("invalid", f"the body must be a JSON object, not {type(value).__name__}", code="invalid_json")
    return value


def decompress(data: Body, encoding: str, limit: int) -> Body:
    """Undo `Content-Encoding` (gzip, deflate, zstd; several in a row), never past `limit` bytes."""
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        try:
            data = _inflate(data, name, limit)
        except (zlib.error, zstandard.ZstdError) as fault:
            raise ApiError("invalid", f"content-encoding: the body is not valid {name}: {fault}") from fault
    if len(data) > limit:
        raise ApiError("too_large", f"the body is larger than {limit} bytes; raise --body-limit to send more")
    return data


def _inflate(data: Body, name: str, limit: int) -> Body:
    """One encoding undone in pieces, so that a bomb costs no more than `limit` and a piece."""
    out = bytearray()
    for piece in _pieces(data, name):
        out += piece
        if len(out) > limit:
            break
    return out


def _pieces(data: Body, name: str) -> Iterator[bytes]:
    if name in ("gzip", "x-gzip", "deflate"):
        stream = zlib.decompressobj(wbits=47 if name != "deflate" else 15)
        while not stream.eof:
            piece = stream.decompress(data, _PIECE)
            if not piece and not stream.eof:
                raise zlib.error("the data ends too early")
            yield piece
            data = stream.unconsumed_tail
    elif name == "zstd":
        yield from zstandard.ZstdDecompressor().read_to_iter(bytes(data), write_size=_PIECE)
    else:
        raise ApiError("media_type", f"content-encoding: {name!r} is not supported; accepted: gzip, deflate, zstd")
