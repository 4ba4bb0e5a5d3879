"""The messages between the server process and an engine process.

Token ids in, token ids out: no text, no dialect, no tenant name (only an opaque namespace). Each message is one frame:
a 4-byte little-endian length, then msgpack of a tagged struct. One socketpair per engine; order is kept both ways.

    server -> engine   Submit  Cancel  SetBudget  Drain  Stop
    engine -> server   Ready  Started  Progress  Tokens  Ended  Fault  Heartbeat

A request's life: Submit -> Started -> Progress* -> Tokens* -> Ended | Fault. Nothing follows Ended or Fault for its id.
`Cancel` is always answered by Ended (reason "cancelled"), or by the Ended or Fault that crossed it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["none", "memory", "disk"]
EndReason = Literal["stop", "length", "cancelled"]
FaultKind = Literal["request", "engine", "memory"]


class Sampling(msgspec.Struct, frozen=True):
    """Resolved sampling: temperature 0 is argmax; `seed` is always set; `logprobs` -1 is off, n: n alternatives."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1


class Think(msgspec.Struct, frozen=True):
    """How the model marks reasoning. `budget`: the most tokens in the segment before `end_ids` is forced (-1: none)."""

    start_ids: list[int]
    end_ids: list[int]
    opened: bool
    budget: int = -1


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Generate after `prompt_ids`. `segment_ends` are the offsets (exclusive, rising) where a snapshot is worth
    keeping: the end of system and tools, of each earlier turn; the end of the prompt is always one."""

    id: str
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    segment_ends: list[int] = []
    stop_ids: list[int] = []
    think: Think | None = None
    grammar: str = ""
    namespace: str = ""
    lane: Literal["interactive", "judge", "harvest"] = "interactive"


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop generating. `keep` is how many generated tokens belong to the answer (the rest is cut from the KV kept as a
    prefix); -1 keeps all that was computed."""

    id: str
    keep: int = -1


class SetBudget(msgspec.Struct, frozen=True, tag=True):
    """This engine's share of the machine's memory for KV and caches, in bytes."""

    bytes: int


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs, take nothing new."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process now."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded. `context` is its window in tokens, `eos_ids` end a turn, `lane_kind` says how it runs."""

    model_type: str
    context: int
    vocab_size: int
    eos_ids: list[int]
    lane_kind: Literal["batch", "sequential"]
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    device: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """Prefill begins (or is over at once). `cached` prompt tokens were resumed from `source`."""

    id: str
    cached: int
    source: Source = "none"


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Prefill: `done` of `total` prompt tokens are in the KV cache."""

    id: str
    done: int
    total: int


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One generated token. `logprob` and `top` [(token, logprob)…] only where asked for."""

    id: str
    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """One decode step over all live requests. The end-of-turn token is not among them."""

    items: list[Token]


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The request is over. `generated` counts its tokens (without the end-of-turn token); `kv_tokens` is how much of
    prompt + answer stays in the prefix cache."""

    id: str
    reason: EndReason
    generated: int
    kv_tokens: int = 0


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Something failed: the request `id`, or all live ones where it is empty. `message` is for logs and users alike."""

    id: str
    kind: FaultKind
    message: str


class KvFigures(msgspec.Struct, frozen=True):
    """The prefix cache: entries in memory, how many were ever written and evicted, bytes on disk."""

    entries: int = 0
    inserts: int = 0
    evictions: int = 0
    disk_bytes: int = 0


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent once a second from a thread of its own. `step_age_s` is the age of the last finished step of a busy engine
    (0 when idle); `steps` counts model evaluations since the start; sizes are bytes."""

    step_age_s: float
    steps: int
    live: int
    waiting: int
    memory_bytes: int = 0
    kv_bytes: int = 0
    kv: KvFigures = KvFigures()


ToEngine = Submit | Cancel | SetBudget | Drain | Stop
FromEngine = Ready | Started | Progress | Tokens | Ended | Fault | Heartbeat

_ENCODER = msgspec.msgpack.Encoder()
_HEADER = 4


def encode(message: ToEngine | FromEngine) -> bytes:
    """One frame: length and body."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(_HEADER, "little") + body


class Frames:
    """Cuts a byte stream into messages of the union `kind` (`ToEngine` or `FromEngine`)."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def push(self, data: bytes) -> list[object]:
        """Add received bytes; return the messages that are whole. Raises `msgspec.DecodeError` on a foreign frame."""
        self._buffer += data
        out = []
        while len(self._buffer) >= _HEADER:
            size = int.from_bytes(self._buffer[:_HEADER], "little")
            if len(self._buffer) < _HEADER + size:
                break
            out.append(self._decoder.decode(bytes(self._buffer[_HEADER : _HEADER + size])))
            del self._buffer[: _HEADER + size]
        return out
