"""Runs one case file against a server: its steps in order, each with its checks; ends at the first step that fails."""

import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import case_checks
import case_fit
import case_folders
import case_words
from case_answers import Answer
from case_client import Call, encoded, send
from case_dialects import answer_text, tool_call_id, translated
from case_setup import KEY, Canary, Unsupported
from case_texts import expand, json_body, raw_body
from case_words import Scene, peak_memory
from served import Served

from memra_mlx.fixtures import TINY_ID

Case = dict[str, Any]
Step = dict[str, Any]
Start = Callable[[], Served]
EXIT_S = 2.0
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def steps_of(case: Case) -> list[Step]:
    return [{"request": case["request"], "expect": case["expect"]}, *case.get("then", [])]


@dataclass
class Run:
    """The state of a case: `fresh` starts another server as the case needs it, `answers` are those of each step."""

    case: Case
    server: Served
    fresh: Start
    folder: Path
    canary: Canary | None = None
    answers: list[Sequence[Answer]] = field(default_factory=list)
    solos: list[Answer] = field(default_factory=list)
    pending: "Future[list[Answer]] | None" = None

    def failures(self) -> list[str]:
        """What does not hold, of the first step where something does not. Raises `Unsupported`."""
        for number, step in enumerate(steps_of(self.case)):
            if "at" not in step and (found := self._finish_pending()):
                return found
            if found := self._step(number, step):
                return [f"step {number}: {fault}" for fault in found]
        return self._finish_pending()

    def _step(self, number: int, step: Step) -> list[str]:
        self._before(step)
        request = step["request"]
        peak = peak_memory(self.server.process.pid)
        match request["method"]:
            case "EXIT":
                return self._exit()
            case "START":
                return case_folders.failures(self.case["needs"]["variants"], self.folder)
        if "signal" in request:
            self._send_and_signal(request)
            return []
        self.answers.append(self._send(request))
        return self._check(step, peak)

    def _before(self, step: Step) -> None:
        if missing := {"damage", "change", "restart"} & set(step):
            raise Unsupported(sorted(missing)[0])
        if step.get("fresh_server"):
            self.server = self.fresh()
        time.sleep(step.get("wait_s", 0))

    def _exit(self) -> list[str]:
        began = time.monotonic()
        code = self.server.wait(30)
        took = time.monotonic() - began
        self.answers.append([])
        return [] if code == 0 and took <= EXIT_S else [f"exit status {code} after {took:.1f} s:\n{self.server.output}"]

    def _send_and_signal(self, request: Step) -> None:
        """Send in the background, and signal the server after some events; go on as soon as it is signalled."""
        told = threading.Event()
        number = signal.Signals[request["signal"]["send"]]

        def tell() -> None:
            self.server.signal(number)
            told.set()

        call = replace(self._call(request, 0), on_events=(request["signal"]["after_events"], tell))
        self.pending = ThreadPoolExecutor(1).submit(lambda: [send(self.server.base, call)])
        self.pending.add_done_callback(lambda _: told.set())
        told.wait()
        self.answers.append([])

    def _finish_pending(self) -> list[str]:
        if self.pending is None:
            return []
        self.answers[0], self.pending = self.pending.result(), None
        later, self.answers = self.answers[1:], self.answers[:1]
        found = self._check(steps_of(self.case)[0], 0)
        self.answers += later
        return [f"step 0: {fault}" for fault in found]

    def _fitted(self, request: Step) -> Step:
        """The request with filler of the length that it asks for."""
        tokens = case_fit.wanted(json.dumps(request), self.case["needs"].get("ctx", 0))
        if tokens is None:
            return request

        def measure(words: int) -> int:
            body = case_fit.probe(request["body"], words)
            return case_fit.prompt_tokens(send(self.server.base, self._call({**request, "body": body}, 0)))

        return {**request, "body": case_fit.filled(request["body"], case_fit.filler(measure, tokens))}

    def _send(self, request: Step) -> list[Answer]:
        request = self._fitted(request)
        calls = self._calls(request)
        if "parallel_with" in request:
            self.solos = [send(self.server.base, call) for call in calls]
        workers = len(calls) if "parallel_with" in request else request.get("parallel", 1)
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda call: send(self.server.base, call), calls))

    def _calls(self, request: Step) -> list[Call]:
        if "parallel_with" in request:
            kinds = ["chat", *request["parallel_with"]]
            return [self._call(translated(request, kind), n) for n in range(request["copies"]) for kind in kinds]
        count = request.get("repeat") or request.get("parallel") or request.get("copies") or 1
        return [self._call(request, n) for n in range(count)]

    def _call(self, request: Step, number: int) -> Call:
        request = expand(request, self.variables(number))
        headers, client = dict(request.get("headers", {})), request.get("client", {})
        body = None
        if "raw" in request:
            body = raw_body(request["raw"])
        elif "body" in request:
            body = json_body(request["body"])
        if body is not None and "encode" in request:
            body, headers["content-encoding"] = encoded(body, request["encode"]), request["encode"]
        close_ms = self._milliseconds(client.get("close_after_ms"), number)
        return Call(request["method"], request["path"], headers, body, close_ms, client.get("close_after_events"))

    def _milliseconds(self, value: Any, number: int) -> float | None:
        if not isinstance(value, str):
            return value
        low, high = value.removeprefix("random ").split("..")
        return random.Random(f"{self.case['id']} {number}").uniform(float(low), float(high))

    def variables(self, number: int = 0) -> dict[str, str | int]:
        found: dict[str, str | int] = {"KEY": KEY, "N": number, "HOSTNAME": socket.gethostname(), "MODEL": self.model}
        found |= {"METRICS_URL": "/metrics", "CANARY": self.canary.port if self.canary else 0}
        if "ctx" in self.case["needs"]:
            found["CTX"] = self.case["needs"]["ctx"]
        for place, answers in enumerate(self.answers):
            if len(answers) == 1:
                found[f"ANSWER:{place}"], found[f"ID:{place}"] = answer_text(answers[0]), tool_call_id(answers[0])
        return found

    @property
    def model(self) -> str:
        """The id that is served; while the server loads it cannot be asked."""
        needs = self.case["needs"]
        return str(needs.get("model_id") or (TINY_ID if "load_s" in needs else self.server.model))

    def _check(self, step: Step, peak: int) -> list[str]:
        limit = self.case["needs"].get("body_limit", "0 MiB").split()
        scene = Scene(self.server, self.answers[-1], self.canary, int(limit[0]) * _UNITS[limit[1]], peak)
        found: list[str] = []
        for expected in step["expect"]:
            if expected.get("check") is None:
                found += case_words.failures(expected["say"], scene)
                continue
            spec = expand(expected["check"], self.variables())
            found += case_checks.failures(spec, self.answers, self.solos)
        return found


def load(file: Path) -> Case:
    case: Case = json.loads(file.read_text())
    case.setdefault("needs", {"engine": "any"})
    return case
