"""Scenarios about speed: one stream, several clients, a stream that a long prompt disturbs, constrained answers."""

from __future__ import annotations

import statistics
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from memra_mlx.bench.inprocess import InProcess
from memra_mlx.bench.plan import Plan
from memra_mlx.bench.stats import Sample, percentile
from memra_mlx.bench.text import question, words
from memra_mlx.bench.wire import (
    Ask,
    BenchError,
    Endpoint,
    Reply,
    Stream,
    aggregate,
    busy_gaps,
    decoding,
    fetch,
    quiet_gaps,
    together,
)

DECODE = "decode tok/s"
DISTURBED = "disturbed / quiet gap"
ALONE = "constrained / free tok/s, alone"
BATCHED = "constrained / free tok/s, batch of 4"
_PROMPT = 64  # tokens of the short prompts here
_QUIET = 40  # tokens of a stream before it is disturbed
_ENDLESS = 4096
_BATCH = 4
_NUMBERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "values": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 512}
    },
    "required": ["values"],
    "additionalProperties": False,
}


def single(who: Endpoint | InProcess, plan: Plan, round_: int) -> list[Sample]:
    """One stream after a raw prompt, alone: through a server, or without one."""
    prompt, answer = words(plan.words(_PROMPT), plan.seed("single", round_)), plan.sizes.answer
    match who:
        case Endpoint():
            reply = fetch(who, Ask.text(prompt, answer))
            ttft_s, rate = reply.ttft_s, decoding([reply])
        case InProcess():
            decoded = who.decode(prompt, answer)
            ttft_s, rate = decoded.ttft_s, decoded.rate
    return [Sample(DECODE, rate), Sample("TTFT ms", ttft_s * 1000)]


def concurrent(endpoint: Endpoint, plan: Plan, round_: int) -> list[Sample]:
    """Raw prompts of several clients at once, all tokens over all time."""
    samples = []
    for clients in plan.sizes.clients:
        seeds = [plan.seed("concurrent", clients, client, round_) for client in range(clients)]
        asks = [Ask.text(words(plan.words(_PROMPT), seed), plan.sizes.answer) for seed in seeds]
        samples.append(Sample(throughput(clients), aggregate(together(endpoint, asks))))
    return samples


def throughput(clients: int) -> str:
    """The metric of `concurrent`."""
    return f"tok/s, {clients} at once"


def stall(endpoint: Endpoint, plan: Plan, round_: int) -> list[Sample]:
    """Gaps in a running stream, quiet and while a long prompt arrives."""
    running = Ask.text(words(plan.words(_PROMPT), plan.seed("stall", round_)), _ENDLESS)
    long = Ask.text(words(plan.words(plan.sizes.stall), plan.seed("stall-long", round_)), 1)
    return _stall_samples(*disturb(endpoint, running, long))


def disturb(endpoint: Endpoint, running: Ask, long: Ask) -> tuple[list[float], Reply]:
    """Send `long` while `running` generates; the times of its tokens, and the answer to `long`. Raises `BenchError`."""
    with ThreadPoolExecutor(1) as pool, Stream(endpoint, running) as stream:
        disturbed: Future[Reply] | None = None
        for number, _ in enumerate(stream):
            if number == _QUIET:
                disturbed = pool.submit(fetch, endpoint, long)
            if disturbed is not None and disturbed.done():
                break
    if disturbed is None:
        raise BenchError(f"{endpoint.name}: a stream ended after {len(stream.times)} pieces, before it was disturbed")
    return stream.times, disturbed.result()


def _stall_samples(times: list[float], long: Reply) -> list[Sample]:
    quiet = statistics.median(quiet_gaps(times, long.sent))
    worst = busy_gaps(times, long.sent, long.first)
    p95 = percentile(worst, 0.95) if worst else long.ttft_s
    return [
        Sample("quiet gap p50 ms", quiet * 1000),
        Sample("disturbed gap p95 ms", p95 * 1000),
        Sample(DISTURBED, p95 / quiet),
        Sample("TTFT of the long prompt ms", long.ttft_s * 1000),
    ]


def constrained(endpoint: Endpoint, plan: Plan, round_: int) -> list[Sample]:
    """The same questions with a JSON schema and without, alone and in a batch."""
    schema = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": _NUMBERS, "strict": True}}
    fetch(endpoint, Ask.chat([question(8, plan.seed("compile", round_))], 4, response_format=schema))
    samples = []
    for clients, metric in ((1, ALONE), (_BATCH, BATCHED)):
        asked = [question(plan.words(_PROMPT), plan.seed("constrained", clients, i, round_)) for i in range(clients)]
        free = together(endpoint, [Ask.chat([q], plan.sizes.answer) for q in asked])
        bound = together(endpoint, [Ask.chat([q], plan.sizes.answer, response_format=schema) for q in asked])
        samples.append(Sample(metric, decoding(bound) / decoding(free)))
        # A model that soon ends its free answers gives a rate that says little.
        samples.append(Sample(f"free tokens, {clients} at once", sum(reply.completion for reply in free)))
    return samples
