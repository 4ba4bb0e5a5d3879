"""The conversation of `/v1/chat/completions` as messages of ours."""

from __future__ import annotations

from typing import Any

from memra_mlx.dialects import chat_wire as wire
from memra_mlx.dialects.content import CallIds, Notes, arguments, image_url, note_for
from memra_mlx.dialects.fields import child, item, unknown, validate
from memra_mlx.errors import ApiError, invalid
from memra_mlx.request import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult


class History:
    """Collects `messages` (ours) and `notes` while it reads theirs."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.notes = Notes()
        self._ids = CallIds()

    def turn(self, sent: dict[str, Any], at: str) -> None:
        """One message."""
        if sent.get("role") == "function":
            raise unknown(child(at, "role"), "function", "tool, with tool_call_id")
        turn = validate(wire.Turn, sent, at)
        match turn.role:
            case "system" | "developer":
                self.messages.append(Message("system", self._content(turn, at) or (Text(""),)))
            case "user":
                self.messages.append(Message("user", self._content(turn, at) or (Text(""),)))
            case "assistant":
                self.messages.append(Message("assistant", self._assistant(turn, at) or (Text(""),)))
            case "tool":
                self.messages.append(Message("tool", (self._result(turn, at),)))

    def _content(self, turn: wire.Turn, at: str) -> tuple[Text | Image, ...]:
        """Content of a turn that must have some."""
        if turn.content is None:
            raise invalid(child(at, "content"), "this field is required", "missing_argument")
        return self._parts(turn, child(at, "content"))

    def _assistant(self, turn: wire.Turn, at: str) -> tuple[Part, ...]:
        if turn.function_call is not None:
            raise invalid(child(at, "function_call"), "the older form is not supported; use tool_calls")
        thought = turn.reasoning_content or turn.reasoning
        calls = enumerate(turn.tool_calls or ())
        return (
            *((Reasoning(thought),) if thought else ()),
            *self._parts(turn, child(at, "content")),
            *((Text(turn.refusal),) if turn.refusal else ()),
            *(self._call(call, item(child(at, "tool_calls"), index)) for index, call in calls),
        )

    def _call(self, sent: dict[str, Any], at: str) -> ToolCall:
        kind = sent.get("type") or "function"
        if kind == "custom":
            custom = validate(wire.CustomCall, sent, at)
            return ToolCall(self._ids.called(custom.id), custom.custom.name, custom.custom.input or "")
        if kind != "function":
            raise unknown(child(at, "type"), kind, "function or custom")
        call = validate(wire.FunctionCall, sent, at)
        return ToolCall(self._ids.called(call.id), call.function.name, arguments(call.function.arguments))

    def _result(self, turn: wire.Turn, at: str) -> ToolResult:
        call_id = self._ids.answered(turn.tool_call_id)
        if call_id is None:
            raise invalid(child(at, "tool_call_id"), "this field is required", "missing_argument")
        return ToolResult(call_id, self._parts(turn, child(at, "content")) or (Text(""),))

    def _parts(self, turn: wire.Turn, at: str) -> tuple[Text | Image, ...]:
        """The parts of any content; empty texts are left out."""
        if isinstance(turn.content, str):
            return (Text(turn.content),) if turn.content else ()
        found = (self._part(part, turn.role, item(at, index)) for index, part in enumerate(turn.content or ()))
        return tuple(part for part in found if part is not None)

    def _part(self, sent: dict[str, Any], role: str, at: str) -> Text | Image | None:
        match sent.get("type"):
            case "text":
                text = validate(wire.Text, sent, at).text
                return Text(text) if text else None
            case "refusal" if role == "assistant":
                return Text(validate(wire.Refusal, sent, at).refusal)
            case "image_url" if role in ("user", "tool"):
                return self._image(sent, role, at)
            case "image_url" | "input_audio" | "file" as kind:
                raise invalid(at, f"a part of type {kind} can't be read in a message of role {role}")
            case kind:
                self.notes.skipped(at, kind)
                return None

    def _image(self, sent: dict[str, Any], role: str, at: str) -> Text | Image:
        """In a tool result a refusal would end the session for good, so there a bad picture becomes a note."""
        part, at = validate(wire.ImagePart, sent, at).image_url, child(at, "image_url")
        url, at = (part, at) if isinstance(part, str) else (part.url, child(at, "url"))
        try:
            return image_url(url, at)
        except ApiError as fault:
            if role != "tool":
                raise
            self.notes.add("image", fault.message)
            return Text(note_for(fault))
