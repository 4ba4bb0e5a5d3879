"""The real agent CLIs do a real job: run a command with their own tool and tell what it printed."""

import random
import re

import pytest
from clients import Client, Outcome, Setting, claude, codex, opencode, pi
from recorder import Exchange, Recorder, tool_results

pytestmark = [pytest.mark.e2e, pytest.mark.engine]
FIRST_TOKEN_S = 60.0


def data_files(setting: Setting, seed: str) -> tuple[int, int]:
    """Write data.txt with some lines and total.txt with a number; returns how many lines, and the number."""
    dice = random.Random(seed)
    lines, total = dice.randint(3, 9), dice.randint(100, 999)
    text = "".join(f"row {n} {'x' * dice.randint(1, 9)}\n" for n in range(lines))
    (setting.folder / "data.txt").write_text(text)
    (setting.folder / "total.txt").write_text(f"{total}\n")
    return lines, total


def shown(outcome: Outcome, recorder: Recorder) -> str:
    wire = "\n".join(f"{e.method} {e.path} {e.status} {e.answer[-600:]!r}" for e in recorder.exchanges)
    return f"{outcome}\n{wire}"


def ran(exchanges: list[Exchange], printed: str) -> bool:
    """Whether the client sent a tool result back that holds what the command prints."""
    return any(printed in text for e in exchanges if e.body for text in tool_results(e.body))


def ask(client: Client, setting: Setting, recorder: Recorder, command: str, printed: str, resume: bool) -> None:
    """One turn: the tool runs, its result comes back, the final text says the number, all went well."""
    number = printed.split()[0]
    lead = "Now run" if resume else "Run"
    before = len(recorder.generations())
    outcome = client(setting, f"{lead} `{command}` and tell me the number", resume)
    turn = recorder.generations()[before:]
    assert outcome.code == 0, shown(outcome, recorder)
    assert re.search(rf"\b{number}\b", outcome.final), shown(outcome, recorder)
    assert ran(turn, printed), shown(outcome, recorder)
    assert [e.status for e in turn if e.status != 200] == [], shown(outcome, recorder)


@pytest.mark.parametrize("client", [claude, codex], ids=["claude", "codex"])
def test_two_turns(client: Client, setting: Setting, recorder: Recorder) -> None:
    lines, total = data_files(setting, client.__name__)
    ask(client, setting, recorder, "wc -l data.txt", f"{lines} data.txt", resume=False)
    assert 0 < recorder.generations()[0].first_s <= FIRST_TOKEN_S
    ask(client, setting, recorder, "head -n 1 total.txt", f"{total}", resume=True)


@pytest.mark.parametrize("client", [opencode, pi], ids=["opencode", "pi"])
def test_one_turn(client: Client, setting: Setting, recorder: Recorder) -> None:
    lines, _ = data_files(setting, client.__name__)
    ask(client, setting, recorder, "wc -l data.txt", f"{lines} data.txt", resume=False)
