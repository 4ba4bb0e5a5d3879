"""Golden streams: a scene (script, tools, stop strings) through the parser and a dialect's frames, without a server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from memra_mlx.dialects import chat, messages, responses
from memra_mlx.engine import script
from memra_mlx.engine.protocol import Token
from memra_mlx.errors import ApiError
from memra_mlx.events import Begin, Event, Fail, Finish, Order, Usage
from memra_mlx.fixtures import TINY_PATH
from memra_mlx.prompt.text_model import Prompt, TextModel
from memra_mlx.request import Conversation, Request, Tool

FOLDER = Path(__file__).parent.parent / "fixtures" / "streams"
DIALECTS: dict[str, ModuleType] = {"chat": chat, "messages": messages, "responses": responses}
CREATED = 1_800_000_000
PROMPT_TOKENS = 12


@dataclass(frozen=True)
class Scene:
    """One file of `fixtures/streams`."""

    name: str
    pieces: tuple[bytes, ...]
    tools: tuple[Tool, ...]
    stop: tuple[str, ...]
    reason: str
    fault: str

    def request(self, dialect: str) -> Request:
        """What a client would have sent."""
        return Request(
            dialect=dialect,  # type: ignore[arg-type]
            model="memra-tiny",
            input=Conversation(()),
            tools=self.tools,
            stop=self.stop,
            stream=True,
            stream_usage=True,
        )

    def chunkings(self) -> Iterator[tuple[bytes, ...]]:
        """As scripted; byte by byte; cut in two at every place."""
        whole = b"".join(self.pieces)
        yield self.pieces
        yield tuple(bytes([byte]) for byte in whole)
        yield from ((whole[:at], whole[at:]) for at in range(1, len(whole)))


def scenes() -> list[Scene]:
    """All scenes, by name."""
    return [_scene(path) for path in sorted(FOLDER.glob("*.json"))]


def _scene(path: Path) -> Scene:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    parsed = script.parse({"script": data["script"]})
    pieces = tuple(entry.data for turn in parsed.turns for entry in turn if isinstance(entry, script.Say))
    tools = tuple(Tool(tool["name"], "", tool["parameters"]) for tool in data.get("tools", ()))
    return Scene(
        path.stem, pieces, tools, tuple(data.get("stop", ())), data.get("reason", "stop"), data.get("fault", "")
    )


class Stage:
    """The embedded model's text side, with every piece of every chunking as a token of its own."""

    def __init__(self, played: Iterable[Scene]):
        pieces = dict.fromkeys(piece for scene in played for cut in scene.chunkings() for piece in cut)
        self.text = TextModel.load(TINY_PATH, extra_tokens=tuple(pieces))
        self._ids = {piece: self.text.vocab_size - len(pieces) + i for i, piece in enumerate(pieces)}

    def events(self, scene: Scene, pieces: tuple[bytes, ...], dialect: str) -> list[Event]:
        """The stream of `scene`, cut into `pieces`. Token counts are those of the scene as scripted."""
        names = itertools.count()
        prompt = Prompt(list(range(PROMPT_TOKENS)), [PROMPT_TOKENS], None)
        parser = self.text.parser(scene.request(dialect), prompt, lambda: f"call_{next(names)}")
        order = Order()
        out: list[Event] = [Begin("id_1", "memra-tiny", PROMPT_TOKENS, 4)]
        for piece in pieces:
            out += parser.push(Token("r", self._ids[piece]))
        if scene.fault:
            return [order.check(e) for e in [*out, Fail(ApiError("engine", scene.fault))]]
        out += parser.finish(scene.reason)  # type: ignore[arg-type]
        usage = Usage(PROMPT_TOKENS, 4, len(scene.pieces))
        out.append(Finish(parser.finish_reason, usage, parser.stopped))
        return [order.check(event) for event in out]


def render(scene: Scene, events: Iterable[Event], dialect: str) -> str:
    """The SSE text of a stream."""
    frames = DIALECTS[dialect].Frames(replace(scene.request(dialect)), CREATED)
    return b"".join(frames.push(event) for event in events).decode()
