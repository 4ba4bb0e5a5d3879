"""The black-box cases of `fixtures/cases` (or `--cases DIR`) against real server processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import case_setup
import case_words
import pytest
from case_runner import Case, Run, load, steps_of
from served import Served

# Waits that mean the same when they are shorter; the whole ones run nightly.
SHORT = {"kal-01-anthropic-pings": {"prefill_s": 17}, "kal-02-openai-comments": {"prefill_s": 12}}
# Waits that mean nothing when they are shorter.
LONG = {"kal-04-long-plain-request"}
# Cases that cannot pass yet, and why. One that begins to pass has to leave this table.
LATER = {
    "dsk-01-survives-restart": "KV on disk",
    "dsk-02-damaged-file": "KV on disk",
    "dsk-04-size-limit": "KV on disk",
    "dsk-07-disk-full": "KV on disk",
    "err-07-unknown-fields": "it sends truncation: auto, which the seed tells us to refuse with a 400",
    "mem-01-cache-cap": "metrics",
}

# Whether the embedded model ends a free text by itself, or wavers between two answers, depends on its weights.
UNSURE = {
    "smp-01-seed": "the embedded model may be too sure of its answer for two seeds to differ",
    "str-01-schema-is-enforced": "the embedded model may not end a free text inside JSON",
    "str-04-responses-text-format": "the embedded model may not end a number",
    "str-08-anthropic-format": "the embedded model may not end a number",
    "tool-18-forced-choice": "the embedded model may not end a free text inside a call",
}


def _param(case: Case, name: str, nightly: bool) -> Any:
    marks = [pytest.mark.engine] if case["needs"]["engine"] == "live" else []
    if nightly:
        marks.append(pytest.mark.nightly)
    if case["id"] in LATER:
        marks.append(pytest.mark.xfail(reason=LATER[case["id"]], strict=True))
    if case["id"] in UNSURE:
        marks.append(pytest.mark.xfail(reason=UNSURE[case["id"]], strict=False))
    return pytest.param(case, id=name, marks=marks)


def params(folder: Path) -> Iterator[Any]:
    """The cases of `folder`, those with equal needs one after the other."""
    cases = [load(file) for file in sorted(folder.glob("*.json"))]
    for case in sorted(cases, key=lambda case: (json.dumps(case["needs"], sort_keys=True), case["id"])):
        name = case["id"]
        if name in SHORT:
            yield _param({**case, "needs": {**case["needs"], **SHORT[name]}}, f"{name}-short", nightly=False)
        yield _param(case, name, nightly=name in SHORT or name in LONG)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(params(metafunc.config.getoption("--cases"))))


def test_case(case: Case, place: Any, tmp_path: Path) -> None:
    canary = case_setup.Canary() if "canary" in case["needs"] else None
    started: list[Served] = []

    def fresh() -> Served:
        started.append(case_setup.start(case["needs"], tmp_path / f"server-{len(started)}"))
        return started[-1]

    try:
        run = Run(case, place(case), fresh, tmp_path, canary)
        assert run.failures() == [], case["why"]
    finally:
        for server in started:
            server.close()
        if canary:
            canary.close()


def test_plain_words_are_known(pytestconfig: pytest.Config) -> None:
    """No expectation of the committed cases goes unread: it has a check, or a sentence that the runner knows."""
    folder = pytestconfig.rootpath / "fixtures" / "cases"
    sentences = [
        expected["say"]
        for file in folder.glob("*.json")
        for step in steps_of(load(file))
        for expected in step["expect"]
        if expected.get("check") is None
    ]
    assert sentences
    assert [say for say in sentences if not case_words.known(say)] == []
