"""The formats, one a module; those that share a mark are told apart by what follows it."""

from . import (
    deepseek,
    functionary,
    glm,
    harmony,
    hermes,
    json_list,
    llama3,
    mistral,
    pythonic,
    qwen_xml,
)

FORMATS = (
    mistral.FORMAT,
    deepseek.FORMAT,
    qwen_xml.FORMAT,
    glm.FORMAT,
    hermes.FORMAT,
    harmony.FORMAT,
    functionary.FORMAT,
    *json_list.FORMATS,
    llama3.FORMAT,
    pythonic.FORMAT,
)
