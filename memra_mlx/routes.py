"""Read-only routes, and which dialect a path speaks."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from urllib.parse import unquote

from sanic import HTTPResponse
from sanic import Request as HttpRequest

from memra_mlx import catalog, guard, metrics_view
from memra_mlx.admission.admit import prompt_tokens, ready_model
from memra_mlx.admission.services import Services
from memra_mlx.dialects import chat, messages
from memra_mlx.errors import ApiError
from memra_mlx.gauges import gauges
from memra_mlx.http import headers, json_response, read_object
from memra_mlx.models import Entry

_OPENAI_PATHS = ("/v1/chat/", "/v1/completions", "/v1/responses")


def dialect_of(http: HttpRequest) -> ModuleType:
    """The dialect in which this path, or on shared paths this client, reads errors."""
    path = http.path
    if path.startswith("/v1/messages"):
        return messages
    openai = path.startswith(_OPENAI_PATHS)
    return messages if "anthropic-version" in http.headers and not openai else chat


def services(http: HttpRequest) -> Services:
    """The services of the running server."""
    value: Services = http.app.ctx.services
    return value


async def count_tokens(http: HttpRequest) -> HTTPResponse:
    """POST /v1/messages/count_tokens: exactly what the same request would use as its prompt."""
    here = services(http)
    request = messages.parse_count(read_object(http, here.config.body_limit), headers(http))
    model = await ready_model(here.models, here.models.resolve(request.model))
    prompt = await prompt_tokens(model, request, here.keyring.ring.caller(headers(http)))
    return json_response({"input_tokens": len(prompt.ids)}, 200)


async def root(http: HttpRequest) -> HTTPResponse:
    """GET and HEAD /: Claude Code probes it before its first message."""
    return json_response({"name": "memra-mlx", "docs": "/v1/models"}, 200)


async def livez(http: HttpRequest) -> HTTPResponse:
    """503 while the first model loads, when an engine is gone or stalled; 200 otherwise, also while draining."""
    here = services(http)
    states = engine_states(here)
    alive = states[0]["phase"] == "ready" and all(s["phase"] in ("ready", "unloaded", "loading") for s in states)
    status = "draining" if here.slots.draining else ("ok" if alive else states[0]["phase"])
    return _health(alive, status, states)


async def readyz(http: HttpRequest) -> HTTPResponse:
    """200 only if requests are served now."""
    here = services(http)
    states = engine_states(here)
    ready = not here.slots.draining and states[0]["phase"] == "ready"
    return _health(ready, "draining" if here.slots.draining else states[0]["phase"], states)


def _health(good: bool, status: str, states: list[dict[str, Any]]) -> HTTPResponse:
    return json_response(
        {"status": status, "engines": states}, 200 if good else 503, {} if good else {"retry-after": "2"}
    )


def engine_states(here: Services) -> list[dict[str, Any]]:
    """One row a model: its phase, and its engine's own report where it has one."""
    return [_engine_state(entry) for entry in here.models.entries.values()]


def _engine_state(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"model": entry.spec.id, "phase": entry.phase}
    if entry.engine:
        state = entry.engine.status()
        row |= {"generation": state.generation, "beat_age_s": round(state.beat_age_s, 1), "reason": state.reason}
        row |= {"step_age_s": round(state.step_age_s, 1), "longest_step_s": round(state.longest_step_s, 1)}
        row |= {"live": state.live, "waiting": state.waiting}
    return row


async def metrics(http: HttpRequest) -> HTTPResponse:
    """GET /metrics: Prometheus text, or JSON for who accepts that; a tenant's key sees its own counts."""
    here = services(http)
    tenant = guard.metrics_of(here.config, here.keyring.ring, headers(http))
    if tenant is None:
        view = metrics_view.for_operator(here.metrics, gauges(here))
    else:
        view = metrics_view.for_tenant(here.metrics, tenant)
    if "application/json" in http.headers.get("accept", ""):
        return json_response(metrics_view.json(view), 200)
    return HTTPResponse(metrics_view.text(view), content_type=metrics_view.TEXT_TYPE)


async def list_models(http: HttpRequest) -> HTTPResponse:
    """GET /v1/models: one body that OpenAI, Anthropic and Codex clients all read."""
    here = services(http)
    query = {name: values[-1] for name, values in http.args.items()}
    return json_response(catalog.page(catalog.rows(here.models, here.config), query), 200)


async def show_model(http: HttpRequest, model_id: str) -> HTTPResponse:
    """GET /v1/models/{id}; the id may hold slashes, raw or as %2F."""
    name = unquote(model_id)
    try:
        entry = services(http).models.resolve(name)
    except ApiError as fault:
        raise ApiError("path", fault.message, param="model", code="model_not_found") from fault
    return json_response(catalog.row(entry, name), 200)
