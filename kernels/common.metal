// What all attention kernels share: scores in the log2 domain, and which keys a query sees.

#define UNROLL _Pragma("clang loop unroll(full)")

constant constexpr float LOG2E = 1.44269504089f;
constant constexpr float LN2 = 0.69314718056f;
constant constexpr float NEG = -1e30f;  // a masked score; finite, so that NEG - NEG is 0
constant constexpr float NEG_LIMIT = -0.5e30f;  // below it, a score is a masked one

// q·k to a score. `scale` multiplies first, then the softcap (Gemma 2, arXiv:2408.00118).
template <bool SOFTCAP>
METAL_FUNC float score_log2(float qk, float scale, float cap) {
  if (SOFTCAP) {
    return cap * precise::tanh(qk * scale / cap) * LOG2E;
  }
  return qk * (scale * LOG2E);
}

// exp(score - top); 0 for a masked key, in a row without any other key too.
METAL_FUNC float weight_log2(float score, float top) {
  return score < NEG_LIMIT ? 0.0f : fast::exp2(score - top);
}

// Natural log of mass·2^top; -inf for a row that sees nothing.
METAL_FUNC float log_sum_exp(float top, float mass) {
  return mass > 0.0f ? (top + log2(mass)) * LN2 : -INFINITY;
}

// The query at position p sees the keys first_key <= j < end_key of those with start <= j < end.
// Without a window, `window` is far more than any position (arguments.NO_WINDOW).
METAL_FUNC int first_key(int p, int start, int window) { return max(start, p - window + 1); }
METAL_FUNC int end_key(int p, int end, bool causal) { return causal ? min(end, p + 1) : end; }
