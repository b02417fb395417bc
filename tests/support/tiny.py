"""Tiny random checkpoints, made by `transformers`: the reference that nobody here wrote."""

import os
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Given to every config class that has the key under this name; the others keep their own.
LLAMA = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,  # some defaults lie outside so small a vocabulary
}
_SPREAD = {  # by the end of a parameter's name; the rest goes by its shape
    "bias": 0.4,
    "sinks": 1.0,  # beside scores of about 1
    "e_score_correction_bias": 0.2,  # beside sigmoids: often decides, not always
}


@dataclass(frozen=True)
class Tiny:
    """A checkpoint on disk and the torch model that wrote it."""

    path: Path
    reference: Any  # a transformers model with a language head in eval mode, float32

    def logits(self, ids: list[int]) -> np.ndarray:
        """Reference logits of one sequence in one call, without a cache, float32 [L, V]."""
        import torch

        with torch.inference_mode():
            out = self.reference(torch.tensor([ids]), use_cache=False)
        return out.logits[0].float().numpy()

    def routing_margin(self, ids: list[int]) -> float:
        """The narrowest choice among experts in a forward of `ids`; infinite where none is made.

        It is the difference of the last score that was taken and the first that was not. Near 0
        two correct implementations may choose differently.
        """
        import torch
        from torch.overrides import TorchFunctionMode

        narrowest = [float("inf")]

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                result = func(*args, **(kwargs or {}))
                if func in (torch.topk, torch.Tensor.topk):
                    scores = args[0].sort(dim=-1, descending=True).values
                    taken = result.indices.shape[-1]
                    if taken < scores.shape[-1]:
                        gap = scores[..., taken - 1] - scores[..., taken]
                        narrowest.append(float(gap.min()))
                return result

        with Watch():
            self.logits(ids)
        return min(narrowest)


def config_class(kind: str) -> type:
    """The transformers config class of `kind`, the stem of its name: "Qwen3Moe"."""
    import transformers

    return getattr(transformers, f"{kind}Config")


def model_class(kind: str) -> type:
    """The transformers class with a language head that belongs to `kind`."""
    import transformers

    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[config_class(kind)]


def reference_model(kind: str, config: Any) -> Any:
    """The transformers model of `config` in eval mode, computing as its code is written out.

    Two of 5.24's faults are put right: Falcon's eager attention adds ALiBi twice, and MPT's leaves
    out `alibi_bias_max`, which its own function of the slopes takes.
    """
    config._attn_implementation = "sdpa" if kind == "Falcon" else "eager"
    config._experts_implementation = "eager"
    model = model_class(kind)(config).eval()
    if kind == "Mpt":
        inner, bias_max = model.transformer, config.attn_config.alibi_bias_max
        inner.build_mpt_alibi_tensor = partial(
            inner.build_mpt_alibi_tensor, alibi_bias_max=bias_max
        )
    return model


def tiny_config(kind: str, **changes: Any) -> Any:
    """A config of the class that `kind` names; keys that are not given are LLAMA's where the
    class has them, and its own.
    """
    chosen = config_class(kind)
    declared = {field.name for field in fields(chosen)}
    defaults = {key: value for key, value in LLAMA.items() if key in declared}
    return chosen(**{**defaults, **changes})


def make_tiny(folder: Path, kind: str = "Llama", seed: int = 0, **changes: Any) -> Tiny:
    """Write a random checkpoint of the class that `kind` names to `folder`.

    `changes` are keys of its config, as `tiny_config` takes them. Weights are larger than at HF's
    own initial scale (0.02), where attention is nearly uniform and a wrong mask or rotation would
    hardly show in the logits; and none is at a value, such as 0 or 1, at which leaving it out would
    not show.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = reference_model(kind, tiny_config(kind, **changes))
    randomize(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return Tiny(folder, model)


def randomize(model: Any) -> None:
    """Random values for all that a checkpoint stores."""
    import torch

    stored = model.state_dict().keys()
    buffers = [(n, b) for n, b in model.named_buffers() if n in stored and b.is_floating_point()]
    hidden = model.get_input_embeddings().weight.shape[-1]
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *buffers]:
            centre = 1.0 if bool((tensor == 1).all()) else 0.0  # a norm's scale, not a "1 + scale"
            owner = model.get_submodule(name.rpartition(".")[0])
            spread = _spread(name, tensor, owner, hidden)
            tensor.copy_(centre + spread * torch.randn_like(tensor))


def _spread(name: str, tensor: Any, owner: Any, hidden: int) -> float:
    """The standard deviation that keeps what a tensor puts out near 1, whatever its layout."""
    last = name.rpartition(".")[2]
    if last in _SPREAD:
        return _SPREAD[last]
    if tensor.ndim == 1 or last.endswith("bias"):
        return _SPREAD["bias"]
    if tensor.ndim == 3:  # stacked experts: some have their inputs last, some in the middle
        down = "down" in last or "output" in name
        fan_in = tensor[0].numel() // hidden if down else hidden
    else:
        transposed = type(owner).__name__ == "Conv1D"  # [in, out]
        fan_in = tensor.shape[0 if transposed else -1]
    return 1.5 / fan_in**0.5
