"""What the runner must know of the dialects: one question in each of them, and where an answer keeps text and calls."""

from typing import Any

from case_answers import Answer
from case_paths import MISSING, get

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
}


def translated(request: dict[str, Any], kind: str) -> dict[str, Any]:
    """The chat request, asked in another dialect."""
    body = request["body"]
    text = body["messages"][-1]["content"]
    same = {"model": body["model"], "temperature": body["temperature"]}
    bodies = {
        "chat": body,
        "messages": {**same, "messages": body["messages"], "max_tokens": body["max_tokens"]},
        "responses": {**same, "input": text, "max_output_tokens": body["max_tokens"]},
        "completions": {**same, "prompt": text, "max_tokens": body["max_tokens"]},
    }
    return {"method": "POST", "path": PATHS[kind], "headers": request["headers"], "body": bodies[kind]}


def texts(answer: Answer) -> list[Any]:
    body = answer.json
    found = [get(body, "choices[0].message.content"), get(body, "choices[0].text")]
    found += get(body, "content[*].text") + get(body, "output[*].content[*].text")
    for event in answer.events:
        found += [get(event.data, "choices[0].delta.content"), get(event.data, "choices[0].text")]
        found.append(get(event.data, "delta.text"))
        if event.name == "response.output_text.delta":
            found.append(get(event.data, "delta"))
    return found


def answer_text(answer: Answer) -> str:
    """The visible text of an answer, whatever its dialect, streamed or not."""
    return "".join(text for text in texts(answer) if isinstance(text, str))


def tool_call_id(answer: Answer) -> str:
    """The id of the first tool call of an answer; empty if there is none."""
    found = [get(answer.json, "choices[0].message.tool_calls[0].id")]
    found += [block.get("id") for block in _list(answer.json, "content") if block.get("type") == "tool_use"]
    found += get(answer.json, "output[*].call_id")
    for event in answer.events:
        found.append(get(event.data, "choices[0].delta.tool_calls[0].id"))
        if get(event.data, "content_block.type") == "tool_use":
            found.append(get(event.data, "content_block.id"))
        found.append(get(event.data, "item.call_id"))
    return next((item for item in found if item is not MISSING and isinstance(item, str)), "")


def _list(value: Any, path: str) -> list[dict[str, Any]]:
    found = get(value, path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
