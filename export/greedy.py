"""A short greedy run in onnxruntime: the cache must say what one long call says."""

import numpy as np

from ..runtime.folder import ModelFolder
from ..runtime.ort_engine import OrtEngine

_PROMPT, _STEPS = 6, 8  # tokens
# Of the largest logit. int8 activations round differently from call to call; a wrong position or
# a lost token changes logits by their own size.
_TOLERANCE = 0.1


def greedy_check(folder: ModelFolder) -> tuple[str, str]:
    """Decode a few tokens on the cache, then all of them in one call.

    Returns what is wrong ("" when nothing is) and what was found. Raises PippinError where the
    graph cannot be loaded or run.
    """
    engine = OrtEngine(folder)
    session = engine.open()
    prompt = np.random.default_rng(0).integers(0, engine.info.vocab_size, _PROMPT).tolist()
    rows, tokens = [session.prefill(prompt)], []
    for _ in range(_STEPS):
        tokens.append(int(rows[-1].argmax()))
        rows.append(session.step(tokens[-1]))
    whole = engine.open().verify(prompt + tokens)
    if not np.isfinite(whole).all():
        return "logits are not all finite", ""
    difference = np.abs(whole[_PROMPT - 1 :] - np.stack(rows)).max() / np.abs(whole).max()
    if not difference <= _TOLERANCE:
        return f"logits on the cache differ by {difference:.1e} from those of one call", ""
    return "", f"{_STEPS} tokens; on the cache and in one call within {difference:.1e}"
