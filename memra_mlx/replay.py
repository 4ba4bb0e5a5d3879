"""What `/v1/responses` promises about calls that come back: known ones go on, the others are refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from memra_mlx import ids
from memra_mlx.cache.canonical import digest_of_system, digest_of_tools
from memra_mlx.cache.transcripts import Space, Transcript, Transcripts
from memra_mlx.errors import ApiError, invalid
from memra_mlx.prompt import effort
from memra_mlx.prompt.conversation import Turn, turns
from memra_mlx.request import Message, Request, Text, ToolCall, ToolResult

AT = 2
"""Behind how many turns of `answered_by` the answer ends."""


def orphans(messages: Sequence[Message]) -> list[str]:
    """The ids of outputs whose call is not in the request."""
    calls = {part.id for message in messages for part in message.parts if isinstance(part, ToolCall)}
    results = [part.call_id for message in messages for part in message.parts if isinstance(part, ToolResult)]
    return list(dict.fromkeys(call_id for call_id in results if call_id not in calls))


def called(store: Transcripts, space: Space, call_ids: Sequence[str]) -> Transcript:
    """The newest transcript whose answer made all these calls. Raises a 400 that names what is not known, or gone."""
    for call_id in call_ids:
        if not store.knows_call(space, call_id):
            raise invalid(
                "input",
                f"unknown tool output call_id {call_id!r:.80}: it answers no call in this input and none that was "
                "made here; replay the full history, with the call that it answers",
            )
    found = store.called(space, call_ids[0])
    for transcript in found:
        if {call_id for call_id, _ in transcript.calls}.issuperset(call_ids):
            return transcript
    raise needs_full_input(call_ids[0], "different turns made these calls" if found else "its state is gone")


def check_outputs_alone(request: Request, call_ids: Sequence[str], found: Transcript) -> None:
    """Raise a 400 unless the request has nothing before its outputs but the instructions that the call was made
    under."""
    messages = request.input.messages  # type: ignore[union-attr]
    spoken = [message for message in messages if message.role != "system"]
    if spoken[0].role != "tool" or any(m.role == "assistant" for m in messages):
        raise needs_full_input(call_ids[0], "there is other history, without the call")
    system = digest_of_system(turns([m for m in messages if m.role == "system"], request.dialect)[0])
    if system and system != found.system:
        raise needs_full_input(call_ids[0], "the instructions are not those under which the call was made")
    tools = digest_of_tools(request.tools)
    if tools and tools != found.tools:
        raise needs_full_input(call_ids[0], "the tools are not those with which the call was made")


def answered_by(found: Transcript, messages: Sequence[Message]) -> list[Message]:
    """A conversation that ends like the one in `found`, and goes on with `messages`. What it begins with stands for the
    rest: its tokens are known."""
    calls = tuple(ToolCall(call_id, name, "{}") for call_id, name in found.calls)
    rest = [message for message in messages if message.role != "system"]
    return [Message("user", (Text("."),)), Message("assistant", calls), *rest]


def refuse_without_reasoning(request: Request, spoken: Sequence[Turn]) -> None:
    """Raise a 400 for a turn that calls, had reasoned, and comes back without it; to be asked where no transcript has
    it. Turns of other servers count as reasoned if the request is one for reasoning."""
    wanted = effort.wanted(request.thinking)
    asked = wanted is True or (wanted is None and request.sealed_reasoning)
    for turn in spoken:
        if turn.role != "assistant" or turn.reasoning or turn.sealed:
            continue
        for call in turn.calls:
            had = ids.reasoned(call.id)
            if wanted is not False and (had or (had is None and asked)):
                raise invalid(
                    "input",
                    f"the replay is missing reasoning state: the turn that makes call {call.id!r:.80} has no reasoning "
                    "item, and its state is not known here any more; replay the full input with its reasoning items",
                )


def answered(spoken: Sequence[Turn]) -> int:
    """How many results stand at the beginning of these turns."""
    return next((n for n, turn in enumerate(spoken) if turn.role != "tool"), len(spoken))


def needs_full_input(call_id: str, why: str) -> ApiError:
    """A call is known, but can't be continued."""
    return invalid(
        "input",
        f"the output of call {call_id!r:.80} needs the state of its turn ({why}); replay the full input instead",
    )
