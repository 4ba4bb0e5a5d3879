"""Tiny models with random weights, one of each kind of cache, and the embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import falcon_h1, gemma3_text, llama, mamba2
from mlx_lm.models.cache import QuantizedKVCache

from memra_mlx.engine.facts import Facts, gather
from memra_mlx.engine.loader import Loaded, load
from memra_mlx.fixtures import TINY_PATH

mx.disable_compile()
VOCABULARY = 96


@dataclass(frozen=True)
class Net:
    """A model and what the engine knows of it."""

    loaded: Loaded
    facts: Facts


@cache
def embedded() -> Net:
    """The embedded model."""
    loaded = load(TINY_PATH)
    return Net(loaded, gather(loaded))


@cache
def random_net(kind: str) -> Net:
    """A model of `kind` (a key of `_BUILDERS`) whose greedy answers vary with the prompt."""
    mx.random.seed(7)
    net = _BUILDERS[kind]()
    net.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.3 if x.ndim > 1 else x, net.parameters()))
    net.eval()
    mx.eval(net.parameters())
    loaded = Loaded(Path("nowhere"), net, {"model_type": kind, "max_position_embeddings": 8192})
    return Net(loaded, gather(loaded))


def _full() -> Any:
    return llama.Model(
        llama.ModelArgs("llama", 32, 2, 64, 2, 1e-5, VOCABULARY, num_key_value_heads=1, max_position_embeddings=8192)
    )


def _sliding() -> Any:
    args = gemma3_text.ModelArgs(
        "gemma3_text", 32, 4, 64, 2, 16, 1e-6, VOCABULARY, 1, sliding_window=24, sliding_window_pattern=2
    )
    return gemma3_text.Model(args)


def _recurrent() -> Any:
    return mamba2.Model(
        mamba2.ModelArgs(
            model_type="mamba2",
            num_heads=4,
            head_dim=16,
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            state_size=16,
            num_hidden_layers=2,
            layer_norm_epsilon=1e-5,
            conv_kernel=4,
            n_groups=1,
            use_bias=False,
            use_conv_bias=True,
            tie_word_embeddings=True,
            time_step_limit=(0.0, 100.0),
            time_step_rank="auto",
        )
    )


def _hybrid() -> Any:
    args = falcon_h1.ModelArgs(
        hidden_size=32,
        head_dim=16,
        intermediate_size=64,
        mamba_d_head=16,
        mamba_d_ssm=64,
        mamba_d_state=16,
        mamba_n_heads=4,
        num_attention_heads=2,
        num_hidden_layers=2,
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=8192,
    )
    return falcon_h1.Model(args)


class _QuantizedLlama(llama.Model):
    def make_cache(self) -> list[Any]:
        return [QuantizedKVCache(group_size=32, bits=8) for _ in self.layers]


def _quantized() -> Any:
    args = llama.ModelArgs("llama", 64, 2, 64, 2, 1e-5, VOCABULARY, num_key_value_heads=1, max_position_embeddings=8192)
    return _QuantizedLlama(args)


_BUILDERS = {
    "full": _full,
    "sliding": _sliding,
    "recurrent": _recurrent,
    "hybrid": _hybrid,
    "quantized": _quantized,
}
KINDS = tuple(_BUILDERS)
