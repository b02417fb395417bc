// Keys in the order of their scores, largest first, of equal ones the lower id first.

METAL_FUNC bool ranks_before(float score, int key, float other_score, int other_key) {
  return score > other_score || (score == other_score && key < other_key);
}

// Put a key in its place in a list of COUNT; the last one falls out.
template <int COUNT>
METAL_FUNC void rank_key(thread float* scores, thread int* keys, float score, int key) {
  UNROLL for (int i = 0; i < COUNT; i++) {
    if (ranks_before(score, key, scores[i], keys[i])) {
      const float later_score = scores[i];
      const int later_key = keys[i];
      scores[i] = score;
      keys[i] = key;
      score = later_score;
      key = later_key;
    }
  }
}

METAL_FUNC void take_better(thread float& score, thread int& key, float other_score, int other_key) {
  if (ranks_before(other_score, other_key, score, key)) {
    score = other_score;
    key = other_key;
  }
}
