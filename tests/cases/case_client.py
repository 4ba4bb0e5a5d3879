"""A plain HTTP client that notes when each piece of an answer arrived, and can leave early."""

import contextlib
import gzip
import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import zstandard
from case_answers import Answer, parse_events

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Call:
    """One request, ready to be sent. The client leaves after `close_after_ms` or `close_after_events`, if set;
    `on_events` is called once, when that many events have come."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    close_after_ms: float | None = None
    close_after_events: int | None = None
    on_events: tuple[int, Callable[[], None]] | None = None


def encoded(body: bytes, coding: str) -> bytes:
    return gzip.compress(body) if coding == "gzip" else zstandard.compress(body)


def send(base: str, call: Call) -> Answer:
    """Send `call` to the server at `base` and read to the end. Raises OSError where the server is gone."""
    began = time.monotonic()
    timeout = call.close_after_ms / 1000 if call.close_after_ms else TIMEOUT_S
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=timeout)
    try:
        _put(connection, call)
        return _read(connection, call, began)
    except TimeoutError:
        if call.close_after_ms is None:
            raise
        return Answer(0, {}, path=call.path, began=began, total_ms=_since(began), cut=True)
    finally:
        connection.close()


def _since(began: float) -> float:
    return (time.monotonic() - began) * 1000


def _put(connection: http.client.HTTPConnection, call: Call) -> None:
    headers = {name.lower(): value for name, value in call.headers.items()}
    connection.putrequest(call.method, call.path, skip_host="host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if call.body is not None:
        connection.putheader("content-length", str(len(call.body)))
    connection.endheaders()
    # A server may answer before it has read all; its answer is still there to be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(call.body or b"")


def _read(connection: http.client.HTTPConnection, call: Call, began: float) -> Answer:
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    at_headers, chunks, cut = _since(began), [], False
    told = call.on_events is None
    try:
        while piece := response.read1(65536):
            chunks.append((_since(began), piece))
            seen = len(list(parse_events(tuple(chunks)))) if call.close_after_events or not told else 0
            if not told and seen >= call.on_events[0]:
                told = True
                call.on_events[1]()
            if (call.close_after_events and seen >= call.close_after_events) or _over(call, began):
                cut = True
                break
    except (http.client.IncompleteRead, ConnectionResetError, TimeoutError):
        cut = True
    return Answer(response.status, headers, tuple(chunks), call.path, began, at_headers, _since(began), cut)


def _over(call: Call, began: float) -> bool:
    return call.close_after_ms is not None and _since(began) >= call.close_after_ms
