"""The real agent CLIs do a real job: run a command with their own tool and tell what it printed."""

import json
import random
import re
from pathlib import Path

import pytest
from clients import Client, Outcome, Setting, claude, codex, opencode, pi
from recorder import Exchange, Recorder, tool_results
from served import Served
from served import Settings as ServerSettings

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


# The embedded model picks a wrong command behind Claude Code's prompt; the test below shows the server's part.
TOO_LONG = pytest.mark.xfail(reason="the embedded model is unsure behind Claude Code's prompt", strict=False)


@pytest.mark.parametrize("client", [pytest.param(claude, marks=TOO_LONG), codex], ids=["claude", "codex"])
def test_two_turns(client: Client, setting: Setting, recorder: Recorder) -> None:
    lines, total = data_files(setting, client.__name__)
    ask(client, setting, recorder, "wc -l data.txt", f"{lines} data.txt", resume=False)
    assert 0 < recorder.generations()[0].first_s <= FIRST_TOKEN_S
    ask(client, setting, recorder, "head -n 1 total.txt", f"{total}", resume=True)


@pytest.mark.parametrize("client", [opencode, pi], ids=["opencode", "pi"])
def test_one_turn(client: Client, setting: Setting, recorder: Recorder) -> None:
    lines, _ = data_files(setting, client.__name__)
    ask(client, setting, recorder, "wc -l data.txt", f"{lines} data.txt", resume=False)


SAYS = (("wc -l data.txt", "There are {} lines."), ("head -n 1 total.txt", "It says {}."))


@pytest.mark.parametrize(("client", "tool", "field"), [(claude, "Bash", "command"), (codex, "exec_command", "cmd")])
def test_two_turns_of_a_script(
    client: Client, tool: str, field: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same two turns with a script in the model's place: the whole loop but for the model's own choice."""
    folders = [tmp_path / name for name in ("home", "project")]
    for folder in folders:
        folder.mkdir()
    lines, total = data_files(Setting("", "", *folders), client.__name__)
    turns: list[list[object]] = []
    for (command, text), number in zip(SAYS, (lines, total), strict=True):
        turns += [["<think>", "hm", "</think>", {"call": {"tool": tool, "arguments": {field: command}}}]]
        turns += [[text.format(number)]]
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"script_turns": turns}))
    server = Served(tmp_path_factory.mktemp("scripted"), ServerSettings(args=("--engine", f"scripted:{script}")))
    recorder = Recorder(server.base)
    try:
        setting = Setting(recorder.base, server.model, *folders)
        ask(client, setting, recorder, "wc -l data.txt", f"{lines} data.txt", resume=False)
        ask(client, setting, recorder, "head -n 1 total.txt", f"{total}", resume=True)
    finally:
        recorder.close()
        assert server.close() == 0, server.output
