// Values in MLX's affine layout: scale·code + bias, BITS to a code, the first in the lowest bits of
// its 32-bit word; a scale and a bias for each group along D.

// Half the range of a code.
constexpr int code_centre(int bits) { return 1 << (bits - 1); }

// Codes `at` to `at + N`, `at` a multiple of N, as numbers around 0.
// Left as they are, scale·Σ code and Σ bias would be large, of opposite signs, and round.
template <int BITS, int N>
METAL_FUNC void load_codes(const device uint* words, int at, long step, thread float* to) {
  constexpr int PER_WORD = N * BITS < 32 ? N : 32 / BITS;
  constexpr uint MASK = (1u << BITS) - 1u;
  UNROLL for (int i = 0; i < N; i += PER_WORD) {
    uint word = words[(at + i) * BITS / 32 * step] >> ((at + i) * BITS % 32);
    UNROLL for (int j = 0; j < PER_WORD; j++) {
      to[i + j] = float(int((word >> (j * BITS)) & MASK) - code_centre(BITS));
    }
  }
}

// The biases that go with such codes.
template <int BITS>
METAL_FUNC float2 centred_biases(float2 biases, float2 scales) {
  return biases + float(code_centre(BITS)) * scales;
}

// The entries of group g for the keys j0 and j1.
template <typename P>
METAL_FUNC float2 group_pair(P entries, const constant int64_t* strides, int j0, int j1, int g) {
  return float2(float(entries[j0 * strides[2] + g * strides[3]]),
                float(entries[j1 * strides[2] + g * strides[3]]));
}
