"""Wiring: configuration to a listening server, and its life until it has drained.

One process, one asyncio loop. `run` returns the exit status: 0 after a drain, 1 where the first model cannot be loaded,
70 (EX_SOFTWARE) once engines have died more often than allowed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from sanic import HTTPResponse, Sanic
from sanic import Request as HttpRequest
from sanic.exceptions import MethodNotAllowed, NotFound, PayloadTooLarge, SanicException

from memra_mlx import cors, guard, ids, logs, routes
from memra_mlx import http as handler
from memra_mlx.admission.services import Services
from memra_mlx.config import Config
from memra_mlx.deadline import Deadline
from memra_mlx.dialects import chat, completions, messages, responses
from memra_mlx.engine import spawn
from memra_mlx.errors import ApiError
from memra_mlx.models import Models

log = logging.getLogger("memra")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_KILL_S = 2.0  # for what was ended to say so to its client

GENERATING: tuple[tuple[str, ModuleType], ...] = (
    ("/v1/chat/completions", chat),
    ("/v1/completions", completions),
    ("/v1/messages", messages),
    ("/v1/responses", responses),
)


def build(services: Services) -> Sanic[Any, Any]:
    """The Sanic app over `services`."""
    app: Sanic[Any, Any] = Sanic(f"memra-{ids.request_id()}", configure_logging=False)
    app.config.update(
        REQUEST_MAX_SIZE=services.config.body_limit,
        REQUEST_MAX_HEADER_SIZE=16384,
        RESPONSE_TIMEOUT=7 * 24 * 3600,  # our own deadlines rule
        REQUEST_TIMEOUT=300,
        FALLBACK_ERROR_FORMAT="json",
    )
    app.ctx.services = services
    app.on_request(partial(_enter, services))
    app.on_response(partial(_leave, services))
    app.error_handler.add(Exception, _failed)
    for path, dialect in GENERATING:
        app.add_route(_generating(dialect), path, methods=["POST"], name=path.strip("/").replace("/", "_"))
    app.add_route(routes.count_tokens, "/v1/messages/count_tokens", methods=["POST"])
    app.add_route(routes.root, "/", methods=["GET", "HEAD"])
    for path, route in (("/livez", routes.livez), ("/health", routes.livez), ("/readyz", routes.readyz)):
        app.add_route(route, path, methods=["GET", "HEAD"], name=path.strip("/"))
    app.add_route(routes.metrics, "/metrics", methods=["GET"])
    for path in ("/v1/models", "/models"):
        app.add_route(routes.list_models, path, methods=["GET"], name=path.strip("/").replace("/", "_"))
    app.add_route(routes.show_model, "/v1/models/<model_id:path>", methods=["GET"])
    return app


def _generating(dialect: ModuleType) -> Callable[[HttpRequest], Any]:
    async def generate(http: HttpRequest) -> None:
        await handler.serve(http, dialect)

    return generate


async def _enter(services: Services, http: HttpRequest) -> HTTPResponse | None:
    sent = handler.headers(http)
    name = sent.get("x-request-id", "")
    http.ctx.request_id = name if _REQUEST_ID.fullmatch(name) else ids.request_id()
    logs.REQUEST_ID.set(http.ctx.request_id)
    if cors.is_preflight(http.method, sent) and cors.allowed(services.config.cors_origins, sent):
        return HTTPResponse(status=204, headers=cors.preflight(sent))
    guard.check(services.config, services.keyring.ring, http.path, sent)
    return None


async def _leave(services: Services, http: HttpRequest, response: HTTPResponse) -> None:
    name = getattr(http.ctx, "request_id", "") or ids.request_id()
    response.headers["x-request-id"] = response.headers["request-id"] = name
    response.headers.update(cors.allowed(services.config.cors_origins, handler.headers(http)))


async def _failed(http: HttpRequest, fault: Exception) -> HTTPResponse:
    """Any exception as the dialect's error body. The one place where an unknown one becomes a 500."""
    error = _as_error(http, fault)
    dialect = routes.dialect_of(http)
    extra = error.response_headers()
    if isinstance(fault, MethodNotAllowed):
        extra["allow"] = ", ".join(sorted(fault.headers.get("Allow", "").replace(" ", "").split(",")))
    name = getattr(http.ctx, "request_id", "") or ids.request_id()
    http.ctx.request_id = name
    return handler.json_response(dialect.error(error, name), dialect.status(error), extra)


def _as_error(http: HttpRequest, fault: Exception) -> ApiError:
    match fault:
        case ApiError():
            return fault
        case NotFound():
            return ApiError("path", f"{http.method} {http.path} does not exist; see /v1/models and the API table")
        case MethodNotAllowed():
            return ApiError("method", f"{http.path} does not take {http.method}")
        case PayloadTooLarge():
            limit = http.app.config.REQUEST_MAX_SIZE
            return ApiError("too_large", f"the body is larger than {limit} bytes; raise --body-limit to send more")
        case SanicException(status_code=code) if 400 <= code < 500:
            return ApiError("invalid", str(fault))
        case _:
            log.error("unexpected error in %s %s", http.method, http.path, exc_info=fault)
            return ApiError("engine", handler.INTERNAL, code="internal_error")


class Server:
    """One listening server: it binds at once, answers 503 while the first model loads, and drains on request."""

    def __init__(self, config: Config):
        self.config = config
        self._end: asyncio.Future[int] | None = None
        self._now = asyncio.Event()  # a second signal: do not wait any more
        self.models = Models(config, partial(spawn.command, config), self._engine_failed)
        self.services = Services.of(config, self.models)
        guard.check_bind(config, self.services.keyring.ring)
        self.port = 0

    def _engine_failed(self, reason: str) -> None:
        log.critical("the engine is unrecoverable: %s", reason)
        self.stop(70)

    def stop(self, status: int) -> None:
        """Begin to end; `status` is what `run` returns. Callable from the loop's thread, more than once."""
        if self._end and not self._end.done():
            self._end.set_result(status)

    def _signalled(self) -> None:
        if self._end and self._end.done():
            self._now.set()
        self.stop(0)

    async def run(self, announce: Callable[[str], None]) -> int:
        """Serve until stopped; `announce` gets the one line that says the server is ready."""
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._signalled)
        sock = bind(self.config.host, self.config.port)
        self.port = sock.getsockname()[1]
        await self.services.ledger.start()
        app = build(self.services)
        server: Any = await app.create_server(sock=sock, return_asyncio_server=True)
        await server.startup()
        await server.start_serving()
        first = asyncio.create_task(self._load_first(announce))
        try:
            status = await self._end
            if status == 0:
                await self._drain()
            await self._end_requests()
            return status
        finally:
            first.cancel()
            await self.models.close(0)
            server.close()
            await _hang_up(server.connections)
            await self.services.ledger.close()
            Sanic.unregister_app(app)

    async def _load_first(self, announce: Callable[[str], None]) -> None:
        try:
            await self.models.get(self.models.default)
        except ApiError as fault:
            log.critical("%s cannot be loaded: %s", self.models.default.spec.location, fault.message)
            self.stop(1)
        else:
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            announce(f"ready on http://{host}:{self.port}")

    async def _drain(self) -> None:
        slots = self.services.slots
        slots.drain()
        log.info("draining: %d running, %.0f s at most", slots.live, self.config.drain_s)
        waits = [asyncio.create_task(event.wait()) for event in (slots.idle, self._now)]
        await asyncio.wait(waits, timeout=self.config.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _end_requests(self) -> None:
        """End what still runs, in its dialect's words; a client that does not read is not waited for."""
        slots, running = self.services.slots, self.services.running
        if not slots.live:
            return
        log.warning("%d requests were still running at the end of the drain", slots.live)
        self.services.kill(ApiError("draining", "the server shut down before this request was done; send it again"))
        with suppress(TimeoutError):
            await asyncio.wait_for(slots.idle.wait(), _KILL_S)
        tasks = [riding.task for riding in running if riding.task]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_KILL_S)


async def _hang_up(connections: set[Any]) -> None:
    """Close all connections once what was written to them is on its way."""
    deadline = Deadline.after_ms(round(_KILL_S * 1000))
    while connections and deadline.left_s():
        for connection in list(connections):
            connection.close_if_idle()
        await asyncio.sleep(0.01)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `OSError` with the address in its message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as fault:
        sock.close()
        raise OSError(
            fault.errno, f"cannot listen on {host}:{port}: {fault.strerror}; choose another --port"
        ) from fault
    return sock
