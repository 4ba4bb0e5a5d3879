"""From an engine's messages to the event stream of one request.

Sans-HTTP: `batches` yields lists of events as they come, and an empty list for every stretch of silence, so that the
HTTP layer can send keep-alives without a task or a timer of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

from memra_mlx.admission.meter import Meter
from memra_mlx.admission.outcomes import Outcome
from memra_mlx.deadline import Deadline
from memra_mlx.engine.client import Channel
from memra_mlx.engine.protocol import Ended, Fault, Progress, Started, Submit, Token
from memra_mlx.errors import ApiError, ErrorKind
from memra_mlx.events import Begin, Event, Fail, Finish, Usage
from memra_mlx.prompt.parser import OutputParser
from memra_mlx.prompt.text_model import Prompt
from memra_mlx.request import Request

log = logging.getLogger("memra.generation")

# Of several answers the one that ended worst tells how the request did.
_WORST_FIRST: tuple[Outcome, ...] = (
    "crashed", "drain_killed", "deadline_exceeded", "rejected", "abandoned", "deadline_partial", "completed",
)  # fmt: skip
_FAULTS: dict[str, ErrorKind] = {"request": "engine", "engine": "engine", "memory": "invalid"}


@dataclass(slots=True)
class Generation:
    """One running request: what `batches` needs, and what it leaves in `meter`.

    `partial`: a blocking answer that runs out of time is delivered as far as it is. `killed`: why the server ends it.
    `again` begins another answer, `others` are those beside this one (see `choices`).
    """

    id: str
    request: Request
    prompt: Prompt
    parser: OutputParser
    channel: Channel
    deadline: Deadline
    warnings: tuple[str, ...]
    again: Callable[[Submit, Prompt], Generation]
    meter: Meter = field(default_factory=Meter)
    partial: bool = False
    killed: ApiError | None = None
    others: list[Generation] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """How it ended, with all answers beside it."""
        found: set[Outcome] = {self.meter.outcome, *(run.meter.outcome for run in self.others)}
        if len(self.others) < self.request.n - 1:
            found.add("abandoned")
        return min(found, key=_WORST_FIRST.index)

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of all answers."""
        return sum(run.parser.completion_tokens for run in (self, *self.others))

    def begin(self) -> Begin:
        """The first event, with what is known now."""
        return Begin(self.id, self.request.model, len(self.prompt.ids), self.meter.cached)

    def usage(self) -> Usage:
        """Tokens so far."""
        parser = self.parser
        return Usage(len(self.prompt.ids), self.meter.cached, parser.completion_tokens, parser.reasoning_tokens)

    def finish(self, reason: str) -> list[Event]:
        """Flush the parser and end the stream."""
        end: Literal["stop", "length"] = "length" if reason == "length" else "stop"
        events = self.parser.finish(end)
        self.meter.outcome = "completed"
        return [*events, Finish(self.parser.finish_reason, self.usage(), self.parser.stopped, self.warnings)]

    def cancel(self) -> None:
        """Stop generating, all answers."""
        for run in (self, *self.others):
            run.channel.cancel()

    def kill(self, error: ApiError) -> None:
        """End all answers with `error`; `batches` yields that at once."""
        for run in (self, *self.others):
            run.killed = error
            run.channel.cancel()
            run.channel.put(Fault(run.channel.submit.id, "engine", error.message))


async def batches(run: Generation, begin_at: Deadline, tick_s: float) -> AsyncIterator[list[Event]]:
    """All events of `run`, in lists. `Begin` comes when the engine starts, or at `begin_at` if that is earlier.

    The deadline is for the first token of a stream and for the whole of a blocking answer.
    """
    begun = False
    while True:
        wait = min(tick_s, begin_at.left_s() or (tick_s if begun else 0.0))
        if deadline_applies(run):
            wait = min(wait, run.deadline.left_s())
        try:
            messages = await asyncio.wait_for(run.channel.receive(), wait)
        except TimeoutError:
            messages = []
        out, over = _take(run, messages)
        if not over and deadline_applies(run) and run.deadline.left_s() == 0:
            out, over = [*out, *_expired(run)], True
        if run.prompt.thread:
            out = await run.prompt.thread.follow(run.prompt, run.parser, messages, out)
        if not begun and (begin_at.left_s() == 0 or any(isinstance(m, Started) for m in messages)):
            begun = True
            out = out if out and isinstance(out[0], Fail) else [run.begin(), *out]
        yield out
        if over:
            return


def deadline_applies(run: Generation) -> bool:
    """A stream is on time once its first token is out; a blocking answer only when it is whole."""
    return not run.request.stream or run.meter.first_token is None


def _take(run: Generation, messages: list[Started | Progress | Token | Ended | Fault]) -> tuple[list[Event], bool]:
    """Turn messages into events; the flag says whether the stream is over."""
    if run.killed:
        run.meter.outcome = "drain_killed"
        return [Fail(run.killed)], True
    out: list[Event] = []
    count_tokens(run.meter, messages)
    for message in messages:
        match message:
            case Started(cached=cached, source=source):
                run.meter.started(cached, source)
            case Progress(done=done):
                run.meter.progress(done)
            case Token():
                out += run.parser.push(message)
                if run.parser.done:
                    run.channel.cancel(run.parser.visible_tokens)
                    return out + run.finish("stop"), True
            case Ended(reason=reason):
                return out + run.finish(reason), True
            case Fault(kind=kind, message=text):
                run.meter.outcome = "rejected"
                return [*out, Fail(ApiError(_FAULTS[kind], text))], True
    return out, False


def count_tokens(meter: Meter, messages: list[Started | Progress | Token | Ended | Fault]) -> None:
    """Tell the meter how many tokens have come together."""
    if count := sum(isinstance(message, Token) for message in messages):
        meter.tokens(time.monotonic(), count)


def _expired(run: Generation) -> list[Event]:
    if run.partial and run.meter.first_token is not None:
        run.channel.cancel(run.parser.visible_tokens)
        events = run.finish("length")
        run.meter.outcome = "deadline_partial"
        return events
    run.channel.cancel()
    run.meter.outcome = "deadline_exceeded"
    what = "first token" if run.request.stream else "answer"
    message = f"the {what} was not ready within the request's deadline; raise timeout_ms or send less"
    return [Fail(ApiError("timeout", message))]
