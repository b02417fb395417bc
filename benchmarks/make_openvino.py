"""Run by OpenVINO's Python: its own files from a GGUF, written beside it. SOURCE"""

import sys

import openvino_genai

openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
