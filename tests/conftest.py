"""Options and servers that several test packages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import COMMAND, Served, Settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=Path,
        default=Path(__file__).parent.parent / "fixtures" / "cases",
        help="folder of black-box cases that tests/cases runs",
    )
    parser.addoption("--update-golden", action="store_true", help="write the golden streams of fixtures/streams anew")


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server with the embedded model, for all tests that need a model and no settings."""
    server = Served(tmp_path_factory.mktemp("live"), Settings(command=COMMAND))
    yield server
    assert server.close() == 0, server.output
