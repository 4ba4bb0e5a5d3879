"""A request inside the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
from mlx_lm.generate import StopSequences

from memra_mlx.engine.grammar import Compiled, Constraint
from memra_mlx.engine.plan import LANES
from memra_mlx.engine.protocol import Submit
from memra_mlx.engine.reasoning import ThinkBudget
from memra_mlx.engine.sampling import Drawn, Guard, Processor, Sampler, Trouble, penalties


@dataclass(slots=True, eq=False)
class Job:
    """`cache` holds the state of the first `done` tokens while the prefill runs; later the batch has it."""

    submit: Submit
    arrival: int
    limit: int  # most tokens of the answer
    grammar: Compiled | None = None
    hit: int = 0  # tokens that a look-up at arrival found
    passed: int = 0
    done: int = 0
    cache: list[Any] | None = None
    announced: bool = False
    rebuilds: int = 0
    generated: list[int] = field(default_factory=list)
    trouble: Trouble = field(default_factory=Trouble)
    sampler: Sampler | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.submit.id

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer so far."""
        return [*self.submit.prompt_ids, *self.generated]

    @property
    def length(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.submit.prompt_ids) + len(self.generated)

    @property
    def lane(self) -> int:
        """Rank of its lane."""
        return LANES[self.submit.lane]

    @property
    def remaining(self) -> int:
        """Tokens to prefill: all but the last one, which starts the decoding."""
        return self.length - 1 - max(self.done, self.hit if self.cache is None else 0)

    @property
    def left(self) -> int:
        """Tokens that the answer may still have."""
        return self.limit - len(self.generated)

    @property
    def ends(self) -> list[int]:
        """Boundaries at which state is worth keeping: those asked for, and the prompt but its last token."""
        return [*self.submit.segment_ends, len(self.submit.prompt_ids) - 1]

    def arm(self, eos_ids: Sequence[int]) -> tuple[Sampler, list[Processor]]:
        """Fresh sampler and processors that go on from here; the grammar must be compiled."""
        self.sampler = Sampler(self.submit.sampling, len(self.generated), self.trouble)
        processors = penalties(self.submit.sampling)
        start, think, constraint = len(self.submit.prompt_ids), self.submit.think, None
        if self.grammar is not None:
            constraint = Constraint(self.grammar.matcher(), start, (*eos_ids, *self.submit.stop_ids))
            processors.append(constraint)
        if think is not None and think.budget >= 0 and think.end_ids:
            processors.append(_ThinkProcessor(ThinkBudget(think), start, constraint))
        return self.sampler, [Guard(processor, self.trouble) for processor in processors]

    def draw(self) -> Drawn:
        """What is known of the token that the decoder gave last."""
        assert self.sampler is not None
        return self.sampler.take()

    def stops(self, eos_ids: Sequence[int]) -> StopSequences:
        """What ends the answer."""
        return StopSequences([[token] for token in {*eos_ids, *self.submit.stop_ids}])


class _ThinkProcessor:
    """Reads the tokens back only when the budget can be used up: each reading waits for the step before. A token that
    the answer's grammar does not take, in the middle of a character, is forced a step later."""

    def __init__(self, budget: ThinkBudget, prompt_length: int, constraint: Constraint | None) -> None:
        self._budget = budget
        self._constraint = constraint
        self._seen = prompt_length
        self._due = prompt_length

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if len(tokens) < self._due:
            return logits
        self._budget.feed(cast(list[int], tokens[self._seen :].tolist()))
        self._seen = len(tokens)
        forced = self._budget.forced()
        self._due = self._seen + self._budget.slack()
        if forced is None or (self._constraint is not None and not self._constraint.permits(forced)):
            return logits
        return _only(forced, logits)


def _only(token: int, logits: mx.array) -> mx.array:
    return mx.where(mx.arange(logits.shape[-1]) == token, mx.zeros_like(logits), -mx.inf)
