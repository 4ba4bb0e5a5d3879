"""A live server behind a recorder, and a private place for a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Setting
from recorder import Recorder
from served import Served


@pytest.fixture
def recorder(live: Served) -> Iterator[Recorder]:
    recorder = Recorder(live.base)
    yield recorder
    recorder.close()


@pytest.fixture
def setting(live: Served, recorder: Recorder, tmp_path: Path) -> Setting:
    """A client's HOME and an empty folder to work in."""
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    return Setting(recorder.base, live.model, home, folder)
