"""The ordered path that every generating request takes, whatever its dialect; undone in reverse.

model -> key -> lane -> deadline -> load -> prompt -> context -> receipt, budget -> slot -> queue -> submit

What is refused before the receipt costs nothing and leaves no row; everything after it ends in exactly one outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec

from memra_mlx import ids, logs
from memra_mlx.admission import capture, lanes, resolve
from memra_mlx.admission.keyring import Caller
from memra_mlx.admission.lanes import Lane, Steps
from memra_mlx.admission.meter import Meter
from memra_mlx.admission.outcomes import Receipt, reservation
from memra_mlx.admission.pressure import Pressure
from memra_mlx.admission.services import Riding, Services
from memra_mlx.admission.ticket import Ticket
from memra_mlx.deadline import Deadline
from memra_mlx.engine.protocol import Submit
from memra_mlx.errors import ApiError, context_overflow, invalid
from memra_mlx.generation import Generation
from memra_mlx.models import Entry, Loaded, Models
from memra_mlx.prompt.text_model import Prompt
from memra_mlx.request import Request

log = logging.getLogger("memra.meter")

_BLOCKING_MS = (1000, 90_000)
_STREAM_MS_MIN = 1000
_DEFAULT_MS = {True: 90_000, False: 600_000}  # by: do requests need a key
_PARTIAL = ("chat", "completions")
_INPUT = {"chat": "messages", "messages": "messages", "responses": "input", "completions": "prompt"}


@dataclass(slots=True)
class Call:
    """The HTTP side of a request. `receipt` is set once there is one."""

    route: str
    request_id: str
    headers: Mapping[str, str]
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that has passed all checks which need no place."""

    request: Request
    call: Call
    caller: Caller
    lane: Lane
    deadline: Deadline
    model: Loaded
    prompt: Prompt
    grammar: str

    @property
    def most_tokens(self) -> int:
        """The most tokens that one answer to it may have."""
        return resolve.max_tokens(self.request, len(self.prompt.ids), self.model.facts.context)


@asynccontextmanager
async def admit(services: Services, request: Request, call: Call) -> AsyncIterator[Ticket]:
    """Admit `request` and run it; leaving early cancels it. Raises `ApiError` for every refusal."""
    admission = await check(services, request, call)
    async with AsyncExitStack() as undo:
        ticket = await undo.enter_async_context(accounted(services, admission))
        rate = undo.enter_context(services.slots.enter(admission.caller.tenant, concurrency(admission.caller)))
        queue = services.queue(admission.model.id)
        undo.enter_context(queued(queue, ticket.receipt, admission.deadline))
        log_admission(admission, ticket.receipt, queue)
        run = start(services, admission, Seen(queue, services.steps, ticket.receipt))
        undo.callback(run.cancel)
        undo.enter_context(services.riding(Riding(run, asyncio.current_task())))
        ticket.ride(run, rate)
        yield ticket


async def check(services: Services, request: Request, call: Call) -> Admission:
    """All that comes before the receipt."""
    services.slots.refuse_if_draining()
    entry = services.models.resolve(request.model)
    ring = services.keyring.ring
    caller = ring.caller(call.headers)
    lane = lanes.choose(call.headers.get("x-lane"), caller.key)
    services.gate.check(lane, services.steps.quantiles(time.monotonic(), 0.99)[0])
    deadline = Deadline.after_ms(timeout_ms(request, services, closed=ring.closed))
    model = await ready_model(services.models, entry, request.ctx_size or 0)
    prompt = await prompt_tokens(model, request, caller)
    request = resolve.echoing(request, model.text)
    grammar = await asyncio.to_thread(model.text.grammar, request, prompt, all_tools=services.config.constrain_tools)
    return Admission(request, call, caller, lane, deadline, model, prompt, grammar)


@asynccontextmanager
async def accounted(services: Services, admission: Admission) -> AsyncIterator[Ticket]:
    """Reserve what the request may cost and hold its receipt, which is settled in the end."""
    receipt = receipt_of(admission)
    await services.ledger.open(receipt, admission.caller.terms.budget)
    admission.call.receipt = receipt.id
    ticket = Ticket(receipt, services.ledger, services.metrics)
    try:
        if services.capture and admission.caller.terms.capture:
            await asyncio.to_thread(keep_prompt, services.capture, admission, receipt)
        yield ticket
    except BaseException as fault:
        await ticket.settle(fault)
        raise
    else:
        await ticket.settle()
    finally:
        services.slots.served(time.monotonic() - ticket.opened)


def receipt_of(admission: Admission) -> Receipt:
    """The receipt of a request, with the most that it can cost."""
    caller, request, prompt = admission.caller, admission.request, len(admission.prompt.ids)
    prices = caller.terms.prices
    return Receipt(
        id=ids.receipt_id(),
        request_id=admission.call.request_id,
        route=admission.call.route,
        tenant=caller.tenant,
        key_id=caller.key.id if caller.key else "",
        model=admission.model.id,
        lane=admission.lane,
        stream=request.stream,
        prompt_tokens=prompt,
        opened=time.time(),
        prices=prices,
        reserved=reservation(prices, prompt, admission.most_tokens * request.n),
    )


def keep_prompt(store: capture.Capture, admission: Admission, receipt: Receipt) -> None:
    """Capture the request and its prompt, as the model reads it."""
    rendered = admission.model.text.decode(admission.prompt.ids)
    store.write(capture.row(receipt.id, receipt.tenant, admission.request, rendered))


def concurrency(caller: Caller) -> int | None:
    """What the caller's key narrows the server's places to."""
    return caller.key.concurrency if caller.key else None


@contextmanager
def queued(queue: Pressure, receipt: Receipt, deadline: Deadline) -> Iterator[None]:
    """Wait for the first token in `queue`. Raises a 429 where that would take too long."""
    queue.check(deadline.left_s())
    queue.enter(receipt.id, receipt.prompt_tokens, time.monotonic())
    try:
        yield
    finally:
        queue.leave(receipt.id)


@dataclass(frozen=True, slots=True)
class Seen:
    """Tells the queue and the lanes what a running request shows of the engine's speed."""

    queue: Pressure
    steps: Steps
    receipt: Receipt

    def started(self, cached: int) -> None:
        """The engine has begun with it."""
        self.queue.started(self.receipt.id, cached)

    def progress(self, done: int) -> None:
        """Prefill goes on."""
        self.queue.progress(self.receipt.id, done)

    def first_token(self, now: float) -> None:
        """It waits no more."""
        self.queue.first_token(self.receipt.id, now)

    def step(self, now: float, gap_s: float, tokens: int) -> None:
        """Only interactive steps have a bound."""
        if self.receipt.lane == "interactive":
            self.steps.note(now, gap_s * 1000, tokens)


def start(services: Services, admission: Admission, seen: Seen) -> Generation:
    """Submit to the engine. Raises a 503 while it restarts."""
    request, prompt, model = admission.request, admission.prompt, admission.model
    think = prompt.think
    if think is not None and request.thinking.budget is not None:
        think = msgspec.structs.replace(think, budget=request.thinking.budget)
    submit = Submit(
        id=seen.receipt.id,
        prompt_ids=prompt.ids,
        max_tokens=admission.most_tokens,
        sampling=resolve.sampling(request.sampling, model.defaults),
        segment_ends=prompt.segment_ends,
        stop_ids=list(request.stop_token_ids),
        think=think,
        grammar=admission.grammar,
        namespace=admission.caller.namespace(request.cache_salt),
        lane=admission.lane,
    )
    limits = tuple(resolve.warnings(request, len(prompt.ids), model.facts.context))

    def generation(submit: Submit, prompt: Prompt) -> Generation:
        parser = model.text.parser(
            request, prompt, lambda: ids.call_id(request.dialect, reasoned=parser.reasoning_tokens > 0)
        )
        return Generation(
            id=ids.response_id(request.dialect),
            request=request,
            prompt=prompt,
            parser=parser,
            channel=model.engine.submit(submit),
            deadline=admission.deadline,
            warnings=(*request.warnings, *prompt.warnings, *limits),
            again=generation,
            meter=Meter(seen),
            partial=services.config.deadline_partial and request.dialect in _PARTIAL,
        )

    return generation(submit, prompt)


def timeout_ms(request: Request, services: Services, *, closed: bool) -> int:
    """The deadline of `request` in milliseconds. Raises a 400 where an explicit one is out of range."""
    config = services.config
    longest_stream = config.stream_ttft_ms_max or _DEFAULT_MS[closed]
    if request.timeout_ms is None:
        return longest_stream if request.stream else config.blocking_ms_max or _DEFAULT_MS[closed]
    low, high = (_STREAM_MS_MIN, longest_stream) if request.stream else _BLOCKING_MS
    if not low <= request.timeout_ms <= high:
        raise invalid("timeout_ms", f"{request.timeout_ms} is out of range; accepted: {low} to {high} milliseconds")
    return request.timeout_ms


async def ready_model(models: Models, entry: Entry, ctx_size: int = 0) -> Loaded:
    """The model of `entry`, loaded with a context of `ctx_size` tokens (0: its own) if this loads it.

    While the first model still loads the answer is a 503 with a time to retry.
    """
    if entry is models.default and entry.loaded is None and entry.phase == "loading":
        raise ApiError("unavailable", f"{entry.spec.id} is loading", code="model_loading", retry_after_s=2)
    return await models.get(entry, ctx_size)


async def prompt_tokens(model: Loaded, request: Request, caller: Caller) -> Prompt:
    """Render and tokenise in a worker thread, and check that it fits the context."""
    prompt = await asyncio.to_thread(model.history.prompt, request, caller.namespace(request.cache_salt))
    if len(prompt.ids) >= model.facts.context:
        raise context_overflow(len(prompt.ids), model.facts.context, _INPUT[request.dialect])
    return prompt


def log_admission(admission: Admission, receipt: Receipt, queue: Pressure) -> None:
    """The meter line: one for each admitted request, no text."""
    logs.line(
        log,
        "meter",
        receipt=receipt.id,
        route=receipt.route,
        tenant=receipt.tenant,
        key=receipt.key_id,
        model=receipt.model,
        lane=receipt.lane,
        stream=receipt.stream,
        prompt=receipt.prompt_tokens,
        max_tokens=admission.most_tokens,
        deadline_s=admission.deadline.left_s(),
        queue=queue.depth,
        wait_s=queue.estimate_s(),
        reserved=receipt.reserved,
    )
