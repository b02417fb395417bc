"""A short greedy run in plain onnxruntime: the cache must say what one long call says."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

_PROMPT, _STEPS = 6, 8  # tokens
_LOG_FATAL_ONLY = 4
# Of the largest logit. int8 activations round differently from call to call; a wrong position or
# a lost token changes logits by their own size.
_TOLERANCE = 0.1
_KV_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def open_session(graph: Path) -> ort.InferenceSession:
    """The graph on the CPU, errors as exceptions only."""
    options = ort.SessionOptions()
    options.log_severity_level = _LOG_FATAL_ONLY
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def greedy_check(session: ort.InferenceSession, vocab_size: int) -> tuple[str, str]:
    """Decode a few tokens on the cache, then all of them in one call.

    Returns what is wrong ("" when nothing is) and what was found.
    """
    run = _Run(session)
    prompt = np.random.default_rng(0).integers(0, vocab_size, _PROMPT).tolist()
    rows, tokens = [run(prompt)[0, -1]], []
    for _ in range(_STEPS):
        tokens.append(int(rows[-1].argmax()))
        logits = run([tokens[-1]])
        if logits.shape != (1, 1, vocab_size):
            return f"logits have the shape {logits.shape}, expected (1, 1, {vocab_size})", ""
        rows.append(logits[0, -1])
    whole = _Run(session)(prompt + tokens, all_rows=True)
    if whole.shape != (1, _PROMPT + _STEPS, vocab_size):
        return f"num_logits = 0 gives logits of shape {whole.shape}", ""
    if not np.isfinite(whole).all():
        return "logits are not all finite", ""
    steps = np.stack(rows)
    difference = np.abs(whole[0, _PROMPT - 1 :] - steps).max() / np.abs(whole).max()
    if not difference <= _TOLERANCE:
        return f"logits on the cache differ by {difference:.1e} from those of one call", ""
    return "", f"{_STEPS} tokens; on the cache and in one call within {difference:.1e}"


class _Run:
    """One sequence; feeds each present back as past."""

    def __init__(self, session: ort.InferenceSession):
        self._session = session
        self._length = 0
        self._caches = {
            arg.name: np.zeros((1, arg.shape[1], 0, arg.shape[3]), _KV_TYPES[arg.type])
            for arg in session.get_inputs()
            if arg.name.startswith("past_key_values.")
        }

    def __call__(self, ids: list[int], *, all_rows: bool = False) -> np.ndarray:
        """Append `ids`; the last row of logits, or all: [1, rows, V]."""
        self._length += len(ids)
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            **self._caches,
        }
        if all_rows:
            feeds["num_logits"] = np.array([0], np.int64)
        names = [name.replace("past_key_values", "present") for name in self._caches]
        logits, *presents = self._session.run(["logits", *names], feeds)
        self._caches = dict(zip(self._caches, presents, strict=True))
        return logits
