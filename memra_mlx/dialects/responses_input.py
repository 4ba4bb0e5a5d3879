"""The input items of a Responses request as messages.

Reasoning, assistant text and calls that follow each other are one assistant turn; anything else closes it. What is
unknown is left out with a warning; what points at state that we don't keep is refused.
"""

from __future__ import annotations

from typing import Any

from memra_mlx.dialects.content import UNSEALED, CallIds, Notes, arguments, image_url, note_for
from memra_mlx.dialects.fields import child, item, unknown, validate
from memra_mlx.dialects.responses_tools import Offer
from memra_mlx.dialects.responses_wire import CallItem, MessageItem, OutputItem, Part, ReasoningItem, Typed
from memra_mlx.errors import ApiError, invalid
from memra_mlx.request import Conversation, Image, Message, Reasoning, Role, Text, ToolCall, ToolResult
from memra_mlx.request import Part as TurnPart

"""Stands in `encrypted_content` where there is no sealed state: some clients drop a reasoning item without one."""

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def conversation(
    sent: str | list[dict[str, Any]], instructions: str | None, offer: Offer, notes: Notes
) -> Conversation:
    """All turns, instructions first. Raises a 400 that names the item which can't be used, or for no items at all."""
    if not sent:
        raise invalid("input", "must not be empty; send the whole conversation", "invalid_argument")
    head = (Message("system", (Text(instructions),)),) if instructions else ()
    if isinstance(sent, str):
        return Conversation((*head, Message("user", (Text(sent),))))
    history = _History(offer, notes)
    for index, body in enumerate(sent):
        history.add(body, item("input", index))
    messages = history.finish()
    if not messages:
        raise invalid("input", "holds no item that could be shown to the model", "invalid_argument")
    return Conversation((*head, *messages))


class _History:
    """Items in, in order; messages out."""

    def __init__(self, offer: Offer, notes: Notes) -> None:
        self._offer = offer
        self._notes = notes
        self._ids = CallIds()
        self._turn: list[TurnPart] = []
        self._messages: list[Message] = []

    def add(self, body: dict[str, Any], at: str) -> None:
        """Take one item. Raises a 400 that names what is wrong in it."""
        match validate(Typed, body, at).type:
            case "message":
                self._message(validate(MessageItem, body, at), at)
            case None if "role" in body:
                self._message(validate(MessageItem, body, at), at)
            case "reasoning":
                self._reasoning(validate(ReasoningItem, body, at))
            case "function_call" | "custom_tool_call" as kind:
                self._call(validate(CallItem, body, at), kind)
            case "function_call_output" | "custom_tool_call_output":
                self._output(validate(OutputItem, body, at), at)
            case "item_reference":
                raise invalid(at, "item_reference needs stored items, and nothing is stored here; send the item itself")
            case None:
                raise invalid(child(at, "type"), "this field is required", "missing_argument")
            case kind:
                self._notes.skipped(at, kind)

    def finish(self) -> list[Message]:
        """Close the open turn; all messages."""
        self._close()
        return self._messages

    def _close(self) -> None:
        if self._turn:
            self._messages.append(Message("assistant", tuple(self._turn)))
            self._turn = []

    def _message(self, sent: MessageItem, at: str) -> None:
        parts = self._parts(sent.content, child(at, "content"))
        if sent.role == "assistant":
            self._turn += parts
            return
        self._close()
        if parts:
            self._messages.append(Message(_ROLES[sent.role], parts))

    def _reasoning(self, sent: ReasoningItem) -> None:
        texts = [part.text for part in (sent.content or sent.summary or []) if part.text]
        sealed = sent.encrypted_content if sent.encrypted_content != UNSEALED else None
        if texts or sealed:
            self._turn.append(Reasoning("\n\n".join(texts), sealed or None))

    def _call(self, sent: CallItem, kind: str) -> None:
        name = self._offer.shown(sent.name, sent.namespace)
        given = arguments(sent.arguments) if kind == "function_call" else sent.input or ""
        self._turn.append(ToolCall(self._ids.called(sent.call_id or sent.id), name, given))

    def _output(self, sent: OutputItem, at: str) -> None:
        call_id = self._ids.answered(sent.call_id)
        if call_id is None:
            raise invalid(child(at, "call_id"), "says which call this answers, and no call is open", "missing_argument")
        self._close()
        parts = self._parts(sent.output, child(at, "output"), in_output=True)
        self._messages.append(Message("tool", (ToolResult(call_id, parts),)))

    def _parts(self, sent: str | list[Part] | None, at: str, *, in_output: bool = False) -> tuple[Text | Image, ...]:
        if isinstance(sent, str):
            return (Text(sent),)
        found: list[Text | Image] = []
        for index, part in enumerate(sent or []):
            here = item(at, index)
            match part.type:
                case "input_text" | "output_text" | "text":
                    found.append(Text(_text(part.text, child(here, "text"))))
                case "refusal":
                    found.append(Text(_text(part.refusal, child(here, "refusal"))))
                case "input_image":
                    found.append(self._image(part, here, in_output))
                case "input_file" | "input_audio" as kind if not in_output:
                    raise unknown(child(here, "type"), kind, "input_text or input_image")
                case kind:
                    self._notes.skipped(here, kind)
        return tuple(found)

    def _image(self, part: Part, at: str, in_output: bool) -> Text | Image:
        """A picture; one that can't be used is a note in a tool's output, since a refusal would end the session."""
        try:
            return _image(part, at)
        except ApiError as fault:
            if not in_output:
                raise
            self._notes.add("image", fault.message)
            return Text(note_for(fault))


def _text(text: str | None, at: str) -> str:
    if text is None:
        raise invalid(at, "this field is required", "missing_argument")
    return text


def _image(part: Part, at: str) -> Image:
    url = part.image_url.get("url") if isinstance(part.image_url, dict) else part.image_url
    if not isinstance(url, str):
        name = "file_id" if part.file_id else "image_url"
        raise invalid(child(at, name), "an image must be a data URL in image_url; nothing is stored here")
    return image_url(url, child(at, "image_url"))
