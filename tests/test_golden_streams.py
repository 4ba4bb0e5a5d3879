"""Each scene of `fixtures/streams` in each dialect: its golden text, and the same answer however the tokens are cut.

`pytest tests/test_golden_streams.py --update-golden` writes the golden files anew; the change shows up in review.
"""

from __future__ import annotations

import golden
import pytest

from memra_mlx.events import fold

SCENES = golden.scenes()
CASES = [pytest.param(scene, dialect, id=f"{scene.name}-{dialect}") for scene in SCENES for dialect in golden.DIALECTS]


@pytest.fixture(scope="module")
def stage() -> golden.Stage:
    return golden.Stage(SCENES)


@pytest.mark.parametrize(("scene", "dialect"), CASES)
def test_the_stream_is_the_golden_one(stage, scene, dialect, request):
    got = golden.render(scene, stage.events(scene, scene.pieces, dialect), dialect)
    file = golden.FOLDER / f"{scene.name}.{dialect}.sse"
    if request.config.getoption("--update-golden"):
        file.write_text(got, encoding="utf-8")
    assert got == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("scene", [s for s in SCENES if not s.fault], ids=lambda scene: scene.name)
def test_every_cut_gives_the_same_answer(stage, scene):
    whole = fold(stage.events(scene, scene.pieces, "chat"))
    for pieces in scene.chunkings():
        assert fold(stage.events(scene, pieces, "chat")) == whole


@pytest.mark.parametrize(("scene", "dialect"), CASES)
def test_every_cut_renders_to_the_same_body(stage, scene, dialect):
    """A blocking answer is the fold of the stream, so its body does not depend on the cut either."""
    if scene.fault:
        assert "error" in golden.render(scene, stage.events(scene, scene.pieces, dialect), dialect)
        return
    module, request = golden.DIALECTS[dialect], scene.request(dialect)
    cuts = list(scene.chunkings())
    bodies = [module.body(request, fold(stage.events(scene, cut, dialect)), golden.CREATED) for cut in cuts[:2]]
    assert bodies[0] == bodies[1]
