"""The ordered path that every generating request takes, whatever its dialect; undone in reverse.

model -> deadline -> features -> load -> prompt -> context -> slot -> submit
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from memra_mlx import ids
from memra_mlx.admission import resolve
from memra_mlx.admission.slots import Slots
from memra_mlx.config import Config
from memra_mlx.deadline import Deadline
from memra_mlx.engine.protocol import Submit
from memra_mlx.errors import ApiError, context_overflow, invalid
from memra_mlx.generation import Generation
from memra_mlx.models import Entry, Loaded, Models
from memra_mlx.prompt.text_model import Prompt
from memra_mlx.request import Request

log = logging.getLogger("memra.admit")

_BLOCKING_MS = (1000, 90_000)
_STREAM_MS_MIN = 1000
_INPUT = {"chat": "messages", "messages": "messages", "responses": "input", "completions": "prompt"}
_FORMAT = {"chat": "response_format", "messages": "output_config.format", "responses": "text.format"}


@dataclass(frozen=True, slots=True)
class Services:
    """What admission needs; one value for the life of the server."""

    config: Config
    models: Models
    slots: Slots


@asynccontextmanager
async def admit(services: Services, request: Request) -> AsyncIterator[Generation]:
    """Admit `request` and run it; leaving early cancels it. Raises `ApiError` for every refusal."""
    entry = services.models.resolve(request.model)
    deadline = Deadline.after_ms(timeout_ms(request, services.config))
    refuse_unsupported(request)
    model = await ready_model(services.models, entry)
    prompt = await prompt_tokens(model, request)
    with services.slots.enter("default"):
        run = start(model, request, prompt, deadline)
        try:
            yield run
        finally:
            run.channel.cancel()
            log_outcome(run)


def start(model: Loaded, request: Request, prompt: Prompt, deadline: Deadline) -> Generation:
    """Submit to the engine. Raises a 503 while it restarts."""
    think = prompt.think
    if think is not None and request.thinking.budget is not None:
        think = msgspec.structs.replace(think, budget=request.thinking.budget)
    submit = Submit(
        id=ids.request_id(),
        prompt_ids=prompt.ids,
        max_tokens=resolve.max_tokens(request, len(prompt.ids), model.facts.context),
        sampling=resolve.sampling(request.sampling, model.defaults),
        segment_ends=prompt.segment_ends,
        stop_ids=list(request.stop_token_ids),
        think=think,
        namespace=request.cache_salt,
    )
    parser = model.text.parser(request, prompt, lambda: ids.call_id(request.dialect))
    channel = model.engine.submit(submit)
    warnings = (*request.warnings, *prompt.warnings)
    return Generation(ids.response_id(request.dialect), request, prompt, parser, channel, deadline, warnings)


def timeout_ms(request: Request, config: Config) -> int:
    """The deadline of `request` in milliseconds. Raises a 400 where an explicit one is out of range."""
    if request.timeout_ms is None:
        return (config.stream_ttft_ms_max if request.stream else config.blocking_ms_max) or 600_000
    low, high = (_STREAM_MS_MIN, config.stream_ttft_ms_max or 600_000) if request.stream else _BLOCKING_MS
    if not low <= request.timeout_ms <= high:
        raise invalid("timeout_ms", f"{request.timeout_ms} is out of range; accepted: {low} to {high} milliseconds")
    return request.timeout_ms


def refuse_unsupported(request: Request) -> None:
    """Raise a 400 for what no dialect can be served yet: constrained decoding, several choices."""
    if request.n > 1:
        raise invalid("n", f"{request.n} choices are not supported; send n: 1, or several requests")
    if request.tool_choice.mode == "required" or request.tool_choice.names:
        raise invalid("tool_choice", "forcing or restricting tools needs constrained decoding, which is not built yet")
    if request.format is not None:
        param = _FORMAT[request.dialect]
        raise invalid(param, "structured output needs constrained decoding, which is not built yet; send plain text")


async def ready_model(models: Models, entry: Entry) -> Loaded:
    """The model of `entry`, loaded. While the first model still loads the answer is a 503 with a time to retry."""
    if entry is models.default and entry.loaded is None and entry.phase == "loading":
        raise ApiError("unavailable", f"{entry.spec.id} is loading", code="model_loading", retry_after_s=2)
    return await models.get(entry)


async def prompt_tokens(model: Loaded, request: Request) -> Prompt:
    """Render and tokenise in a worker thread, and check that it fits the context."""
    prompt = await asyncio.to_thread(model.text.prompt, request)
    if len(prompt.ids) >= model.facts.context:
        raise context_overflow(len(prompt.ids), model.facts.context, _INPUT[request.dialect])
    return prompt


def log_outcome(run: Generation) -> None:
    """One line per admitted request: sizes, times and outcome, no text."""
    meter, request = run.meter, run.request
    ttft = (meter.first_token - meter.began) * 1000 if meter.first_token else -1
    log.info(
        "%s %s %s prompt=%d cached=%d source=%s completion=%d ttft_ms=%.0f outcome=%s",
        run.id, request.dialect, request.model, len(run.prompt.ids), meter.cached, meter.source,
        run.parser.completion_tokens, ttft, meter.outcome,
    )  # fmt: skip
