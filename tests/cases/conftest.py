"""Servers for the cases: the live one is shared, so is one for equal needs without state; the others get their own."""

import json
from collections.abc import Callable, Iterator

import case_setup
import pytest
from case_runner import Case
from served import Served

Place = Callable[[Case], Served]


def shareable(case: Case) -> bool:
    """Whether the server has no state that another case could disturb or be disturbed by."""
    needs = case["needs"]
    return needs["engine"] == "any" and not {"canary", "fresh_server", "body_limit", "keys"} & set(needs)


def plain(case: Case) -> bool:
    return set(case["needs"]) <= {"engine", "constrained", "note", "variants"} and case["needs"]["engine"] == "live"


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """Running servers by their needs; at most one is kept."""
    servers: dict[str, Served] = {}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def place(
    shared_servers: dict[str, Served], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Place]:
    """Gives a case its server."""
    own: list[Served] = []

    def start(case: Case) -> Served:
        if plain(case):
            live: Served = request.getfixturevalue("live")
            return live
        if not shareable(case):
            own.append(case_setup.start(case["needs"], tmp_path_factory.mktemp("case")))
            return own[-1]
        key = json.dumps(case["needs"], sort_keys=True)
        if key not in shared_servers:
            while shared_servers:
                shared_servers.popitem()[1].close()
            shared_servers[key] = case_setup.start(case["needs"], tmp_path_factory.mktemp("shared"))
        return shared_servers[key]

    yield start
    for server in own:
        server.close()
