"""What a model can't run, said before anything is computed."""

from __future__ import annotations

from memra_mlx.engine.protocol import Ready, Submit


def problem(submit: Submit, ready: Ready) -> str | None:
    """Why the model `ready` cannot run a request at all; None if it can."""
    vocabulary, ids = range(ready.vocab_size), submit.prompt_ids
    if not ids:
        return "the prompt is empty"
    if len(ids) >= ready.context:
        return f"the prompt has {len(ids)} tokens and the model's context is {ready.context}"
    if min(ids) < 0 or max(ids) not in vocabulary:
        return f"the prompt has a token id outside 0..{ready.vocab_size - 1}"
    if strange := [token for token in submit.sampling.logit_bias if token not in vocabulary]:
        return f"logit_bias: token id {strange[0]} is outside 0..{ready.vocab_size - 1}"
    return None
