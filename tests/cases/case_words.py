"""Expectations that the case files give in plain words only, as far as a program can check them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from case_answers import Answer
from case_setup import Canary, Unsupported
from served import Served


@dataclass(frozen=True)
class Scene:
    """What a sentence may look at after a step. `peak_before` is the server's peak memory in bytes before the step."""

    server: Served
    answers: Sequence[Answer]
    canary: Canary | None
    body_limit: int
    peak_before: int


def peak_memory(pid: int) -> int:
    """The most resident memory that a process has had, in bytes; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def _unchecked(scene: Scene) -> list[str]:
    return []


def _not_yet(scene: Scene) -> list[str]:
    raise Unsupported("metrics")


def _all_ok(scene: Scene) -> list[str]:
    bad = [answer.status for answer in scene.answers if answer.status != 200]
    return [f"statuses {bad}"] if bad else []


def _eight(scene: Scene) -> list[str]:
    return _all_ok(scene) if len(scene.answers) == 8 else [f"{len(scene.answers)} answers"]


def _some_ok(scene: Scene) -> list[str]:
    found = {answer.status for answer in scene.answers}
    return [] if 200 in found and found <= {200, 429, 503} else [f"statuses {found}"]


def _canary(scene: Scene) -> list[str]:
    return ["the canary was called"] if scene.canary is None or scene.canary.seen else []


def _memory(scene: Scene) -> list[str]:
    grown = peak_memory(scene.server.process.pid) - scene.peak_before
    return [] if grown < 2 * scene.body_limit else [f"peak memory grew by {grown >> 20} MiB"]


def _metric(scene: Scene, pattern: str) -> float | None:
    """A number of the Prometheus text that was just fetched."""
    found = re.search(rf"^memra_{pattern} (\S+)$", scene.answers[-1].text, re.MULTILINE)
    return float(found[1]) if found else None


def _idle(scene: Scene) -> list[str]:
    running = _metric(scene, "requests_running")
    return [] if running == 0 else [f"{running} requests are running"]


def _idle_and_cancelled(scene: Scene) -> list[str]:
    left = _metric(scene, r'requests_total\{outcome="abandoned".*\}')
    return _idle(scene) + ([] if left == 1 else [f"{left} requests were cancelled"])


# sentence -> check; the first that matches counts
WORDS: tuple[tuple[str, Callable[[Scene], list[str]]], ...] = (
    (r"^client leaves|^twenty clients leave", _unchecked),
    (r"^exit code|^exit code != 0", _unchecked),  # the runner's START and EXIT steps look themselves
    (r"^canary saw no connection", _canary),
    (r"^all 200$", _all_ok),
    (r"^8 answers, all 200", _eight),
    (r"^some answers are 200; the rest are 429/503", _some_ok),
    (r"^server memory grows by less than 2x the body limit", _memory),
    (r"^running requests = 0, cancelled = 1", _idle_and_cancelled),
    (r"^running requests = 0", _idle),
    (r"^prefix cache bytes <= cap|^du of the cache folder", _not_yet),
)


def known(say: str) -> bool:
    return any(re.search(pattern, say) for pattern, _ in WORDS)


def failures(say: str, scene: Scene) -> list[str]:
    """What does not hold of a sentence; nothing for one that no program knows. Raises `Unsupported`."""
    check = next((check for pattern, check in WORDS if re.search(pattern, say)), _unchecked)
    return check(scene)
