"""The activations that models use, by Hugging Face's names, and what each of them computes."""

# Several public names stand for one function; what MLX, numpy and ONNX compute has one name.
ACTIVATIONS = {
    "silu": "silu",  # x·sigmoid(x)
    "swish": "silu",
    "gelu": "gelu",  # x·Φ(x) (arXiv:1606.08415)
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",  # its approximation by tanh
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",  # x·sigmoid(1.702·x)
    "relu": "relu",
    "relu2": "relu2",  # relu(x)² (arXiv:2109.08668)
}

GELU_TANH, GELU_CUBE = 0.7978845608028654, 0.044715  # sqrt(2/π) and the cubic term's factor
GELU_QUICK = 1.702

# GPT-OSS gates by a function of both halves: quick_gelu(min(gate, 7)) · (clip(up, ±7) + 1).
CLAMPED_GATE, GATE_LIMIT = "clamped_gate", 7.0
