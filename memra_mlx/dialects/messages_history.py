"""The conversation of `/v1/messages`: system prompt, turns and blocks as messages of ours."""

from __future__ import annotations

from typing import Any

from memra_mlx.dialects import messages_wire as wire
from memra_mlx.dialects.content import UNSEALED, CallIds, Notes, arguments, image, note_for
from memra_mlx.dialects.fields import brief, child, item, validate
from memra_mlx.errors import ApiError, invalid
from memra_mlx.request import Image, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

BILLING = "x-anthropic-billing-header:"

_HOME: dict[str, Role] = {
    "image": "user",
    "document": "user",
    "tool_result": "user",
    "tool_use": "assistant",
    "thinking": "assistant",
}


class History:
    """Collects `messages` (ours) and `notes` while it reads theirs."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.notes = Notes()
        self._ids = CallIds()

    def system(self, sent: str | list[dict[str, Any]], at: str) -> None:
        """The system prompt. A client's billing line changes with each request: it must not reach the prompt."""
        parts = [Text(_without_billing(part.text)) for part in self._texts(sent, at)]
        self._add("system", [part for part in parts if part.text])

    def turn(self, sent: dict[str, Any], at: str) -> None:
        """One message. Tool results come before the rest of their message, each as a message of its own."""
        turn, at = validate(wire.Turn, sent, at), child(at, "content")
        if isinstance(turn.content, str):
            self.messages.append(Message(turn.role, (Text(turn.content),)))
            return
        before = len(self.messages)
        blocks = [(block, item(at, index)) for index, block in enumerate(turn.content)]
        for block, place in blocks:
            if block.get("type") == "tool_result":
                self._belongs(block, turn.role, place)
                self.messages.append(Message("tool", (self._result(block, place),)))
        parts: list[Part] = []
        for block, place in blocks:
            if block.get("type") == "mid_conv_system":
                self._add(turn.role, parts)
                self._late_system(block, place)
                parts = []
            elif (part := self._part(block, turn.role, place)) is not None:
                parts.append(part)
        self._add(turn.role, parts)
        if len(self.messages) == before:
            self.messages.append(Message(turn.role, (Text(""),)))

    def _add(self, role: Role, parts: list[Part] | list[Text]) -> None:
        if parts:
            self.messages.append(Message(role, tuple(parts)))

    def _part(self, block: dict[str, Any], role: Role, at: str) -> Part | None:
        """A block as a part; None for what has no content of its own or is not known."""
        self._belongs(block, role, at)
        match block.get("type"):
            case "text":
                text = validate(wire.Text, block, at).text
                return Text(text) if text else None
            case "image":
                return _image(block, at)
            case "tool_use":
                call = validate(wire.ToolUse, block, at)
                return ToolCall(self._ids.called(call.id), call.name, arguments(call.input))
            case "thinking":
                return _reasoning(validate(wire.Thought, block, at))
            case "document":
                return self._document(block, at)
            case "tool_result" | "redacted_thinking":
                return None
            case kind:
                self.notes.skipped(at, kind)
                return None

    def _belongs(self, block: dict[str, Any], role: Role, at: str) -> None:
        home = _HOME.get(str(block.get("type")), role)
        if home != role:
            raise invalid(at, f"a {block['type']} block can't stand in a message of role {role}")

    def _result(self, block: dict[str, Any], at: str) -> ToolResult:
        sent = validate(wire.ToolResult, block, at)
        call_id = self._ids.answered(sent.tool_use_id)
        if call_id is None:
            raise invalid(child(at, "tool_use_id"), "this field is required", "missing_argument")
        at = child(at, "content")
        if isinstance(sent.content, str):
            found: list[Text | Image] = [Text(sent.content)]
        else:
            blocks = enumerate(sent.content or ())
            found = [part for index, b in blocks if (part := self._result_part(b, item(at, index))) is not None]
        return ToolResult(call_id, tuple(found) or (Text(""),), bool(sent.is_error))

    def _result_part(self, block: dict[str, Any], at: str) -> Text | Image | None:
        """A refusal here would end the session for good, so a picture that can't be used becomes a note."""
        match block.get("type"):
            case "text":
                return Text(validate(wire.Text, block, at).text)
            case "image":
                try:
                    return _image(block, at)
                except ApiError as fault:
                    self.notes.add("image", fault.message)
                    return Text(note_for(fault))
            case "tool_reference":
                return Text(f"The tool {validate(wire.ToolReference, block, at).tool_name} is available now.")
            case "document":
                return self._document(block, at)
            case kind:
                self.notes.skipped(at, kind)
                return None

    def _document(self, block: dict[str, Any], at: str) -> Text | None:
        """Plain text is read; other documents are left out."""
        sent = validate(wire.Sourced, block, at)
        if sent.source.type == "text" and sent.source.data:
            return Text(f"{sent.title}\n\n{sent.source.data}" if sent.title else sent.source.data)
        self.notes.skipped(at, f"document ({sent.source.type})")
        return None

    def _late_system(self, block: dict[str, Any], at: str) -> None:
        sent = validate(wire.LateSystem, block, at)
        if sent.content is not None:
            self._add("system", self._texts(sent.content, child(at, "content")))
        elif sent.text:
            self._add("system", [Text(sent.text)])

    def _texts(self, sent: str | list[dict[str, Any]], at: str) -> list[Text]:
        """System text: a string or text blocks; other blocks are left out."""
        if isinstance(sent, str):
            return [Text(sent)] if sent else []
        found = []
        for index, block in enumerate(sent):
            if block.get("type", "text") != "text":
                self.notes.skipped(item(at, index), block.get("type"))
            elif text := validate(wire.Text, block, item(at, index)).text:
                found.append(Text(text))
        return found


def _image(block: dict[str, Any], at: str) -> Image:
    source, at = validate(wire.Sourced, block, at).source, child(at, "source")
    if source.type != "base64":
        raise invalid(child(at, "type"), f"{brief(source.type)} is not fetched here; send the image as base64")
    for name in ("media_type", "data"):
        if getattr(source, name) is None:
            raise invalid(child(at, name), "this field is required", "missing_argument")
    return image(source.data or "", source.media_type or "", at)


def _reasoning(sent: wire.Thought) -> Reasoning | None:
    sealed = sent.signature if sent.signature not in ("", UNSEALED) else None
    return Reasoning(sent.thinking or "", sealed) if sent.thinking or sealed else None


def _without_billing(text: str) -> str:
    while text.startswith(BILLING):
        text = text.partition("\n")[2]
    return text
