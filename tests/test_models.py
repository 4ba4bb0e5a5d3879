"""Which context a model is loaded with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memra_mlx import config
from memra_mlx.engine import spawn
from memra_mlx.errors import ApiError
from memra_mlx.models import Models


def settings(**flags: Any) -> config.Config:
    return config.load(flags, None, {})


async def test_the_request_that_loads_a_model_may_choose_its_context():
    seen = []

    def start(spec: config.ModelSpec, ctx_size: int) -> Any:
        seen.append(ctx_size)
        raise ApiError("unavailable", "no")

    models = Models(settings(), start, print)
    for size in (0, 4096):
        with pytest.raises(ApiError):
            await models.get(models.default, size)
    assert seen == [0, 4096]


@pytest.mark.parametrize(
    ("configured", "asked", "context"), [(0, 0, 0), (8192, 0, 8192), (0, 4096, 4096), (3000, 4096, 3000), (0, 7, 2048)]
)
def test_the_configured_context_bounds_it(configured: int, asked: int, context: int, tmp_path: Path):
    chosen = settings(context=configured or None)
    command, _ = spawn.command(chosen, config.ModelSpec("m", str(tmp_path)), asked)
    argv = list(command.argv)
    assert argv[argv.index("--context") + 1] == str(context)
