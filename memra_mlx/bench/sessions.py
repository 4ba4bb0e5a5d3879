"""Scenarios about what a conversation pays for again: one that grows, two interleaved, one over a restart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from memra_mlx.bench.plan import Plan
from memra_mlx.bench.process import Serving
from memra_mlx.bench.stats import Sample
from memra_mlx.bench.text import opening, question
from memra_mlx.bench.wire import Ask, Endpoint, Message, Reply, fetch

PAID = "prefilled / new tokens"
WARM = "warm TTFT ms"
COLD = "cold TTFT ms"
COLD_OVER_WARM = "cold / warm TTFT"
OVER_LOCAL = "warm TTFT / in-process"
COLD_OVER_RESUMED = "cold / resumed TTFT"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a session. `new` is how many tokens of its prompt neither the prompt nor the answer before it had."""

    reply: Reply
    new: int

    @property
    def prefilled(self) -> int | None:
        """Prompt tokens that were computed, as the server says."""
        return None if self.reply.cached is None else self.reply.prompt - self.reply.cached


class Talk:
    """A conversation as an agent holds it: it sends back all that was said."""

    def __init__(self, endpoint: Endpoint, plan: Plan, seed: str):
        self._endpoint = endpoint
        self._plan = plan
        self._seed = seed
        self._length = 0
        self.messages: list[Message] = opening(plan.words(plan.sizes.prompt), seed)
        self.turns: list[Turn] = []

    def turn(self) -> Turn:
        """Ask once more."""
        if self.turns:
            said = {"role": "assistant", "content": self.turns[-1].reply.text}
            words = self._plan.words(self._plan.sizes.turn)
            self.messages += [said, question(words, f"{self._seed}-{len(self.turns)}")]
        reply = fetch(self._endpoint, Ask.chat(self.messages, self._plan.sizes.answer))
        turn = Turn(reply, reply.prompt - self._length)
        self._length = reply.prompt + reply.completion
        self.turns.append(turn)
        return turn

    def cold(self) -> Reply:
        """As long a prompt that begins with other words."""
        other = opening(self._plan.words(self._plan.sizes.prompt), f"{self._seed}-cold")
        return fetch(self._endpoint, Ask.chat([other[0], *self.messages[1:]], 1))


def session(endpoint: Endpoint, plan: Plan, round_: int) -> list[Sample]:
    """One session that grows turn by turn; then its last prompt, cold."""
    talk = Talk(endpoint, plan, plan.seed("session", round_))
    over_local = []
    for number in range(plan.sizes.turns):
        turn = talk.turn()
        if number and plan.local and turn.prefilled and turn.reply.cached is not None:
            over_local.append(turn.reply.ttft_s / plan.local.first_token(turn.reply.cached, turn.prefilled))
    warm, cold = _warm(talk.turns), talk.cold().ttft_s
    samples = [Sample(WARM, warm * 1000), Sample(COLD, cold * 1000), Sample(COLD_OVER_WARM, cold / warm)]
    if over_local:
        samples.append(Sample(OVER_LOCAL, statistics.median(over_local)))
    return [*samples, *_paid(talk.turns)]


def interleaved(endpoint: Endpoint, plan: Plan, round_: int) -> list[Sample]:
    """Two sessions, turn by turn."""
    talks = [Talk(endpoint, plan, plan.seed("interleaved", name, round_)) for name in "ab"]
    for _ in range(plan.sizes.turns):
        for talk in talks:
            talk.turn()
    turns = [turn for talk in talks for turn in talk.turns]
    warm = statistics.median(_warm(talk.turns) for talk in talks)
    return [Sample(WARM, warm * 1000), *_paid(turns)]


def restart(endpoint: Endpoint, plan: Plan, round_: int) -> list[Sample]:
    """Two turns, a restart of the server, a third; then a prompt as long as the third, cold."""
    talk = Talk(endpoint, plan, plan.seed("restart", round_))
    greeting = Ask.chat([{"role": "user", "content": "Hello"}], 2)
    with Serving(plan.serve, endpoint.base):
        talk.turn()
        talk.turn()
    with Serving(plan.serve, endpoint.base):
        fetch(endpoint, greeting)
        resumed = talk.turn()
        cold = talk.cold()
    samples = [
        Sample("resumed TTFT ms", resumed.reply.ttft_s * 1000),
        Sample(COLD, cold.ttft_s * 1000),
        Sample(COLD_OVER_RESUMED, cold.ttft_s / resumed.reply.ttft_s),
    ]
    return [*samples, *_paid([resumed])]


def _warm(turns: Sequence[Turn]) -> float:
    """Median time to first token of all turns but the first, in seconds."""
    return statistics.median(turn.reply.ttft_s for turn in turns[1:] or turns)


def _paid(turns: Sequence[Turn]) -> list[Sample]:
    prefilled = [turn.prefilled for turn in turns if turn.prefilled is not None]
    new = sum(turn.new for turn in turns)
    return [Sample(PAID, sum(prefilled) / new)] if len(prefilled) == len(turns) and new else []
