// Scores of 32 queries against their keys, a block of these at a time: entropy and top keys of each
// query. With BY_KEY it is 32 keys against their queries: the mass of each key. Either way the sums
// of a row stay in the registers of four lanes, in one order: no atomics, and nothing of size L·S.

constexpr int ROWS = 32;
constexpr int THREADS = 128;
constexpr int PITCH = D + 16 / sizeof(T);  // rows of a tile begin in different banks
threadgroup T row_tile[ROWS * PITCH];
threadgroup T tile[BLOCK * PITCH];

const int thread_index = thread_index_in_threadgroup;
const int lane = thread_index_in_simdgroup;
const int head = threadgroup_position_in_grid.y, batch = threadgroup_position_in_grid.z;
const int kv_head = head / (q_shape[1] / k_shape[1]);
const int length = q_shape[2];
const int start = max(starts[batch], 0), end = min(ends[batch], k_shape[2]);
const bool causal = options[0] != 0;
const int window = options[1];
const int position = end - length;  // of query 0
const float slope = slopes[head];

const auto queries = head_rows(q, q_strides, batch, head);
const auto keys = head_rows(k, k_strides, batch, kv_head);
const auto sums = lse + batch * lse_strides[0] + head * lse_strides[1];

// Rows of this tile, and the columns that some of them meet: first <= column < stop.
const int tile_row = threadgroup_position_in_grid.x * ROWS;
#if BY_KEY
const int rows = min(ROWS, k_shape[2] - tile_row);
const bool exists = tile_row < end && tile_row + rows > start;
const int first = causal ? max(tile_row - position, 0) : 0;
const int stop = exists ? min(length, tile_row + rows - 1 + window - position) : 0;
const auto row_vectors = keys;
const auto column_vectors = queries;
#else
const int rows = min(ROWS, length - tile_row);
const int first = first_key(position + tile_row, start, window);
const int stop = end_key(position + tile_row + rows - 1, end, causal);
const auto row_vectors = queries;
const auto column_vectors = keys;
#endif

// A simdgroup's 8×8 matrices give each lane two neighbours in one row; lanes 1 and 8 apart share
// that row. This lane's row and first column:
const int simd_row = simdgroup_index_in_threadgroup * 8;
const int row = simd_row + (lane / 4 & 4) + lane / 2 % 4;
const int column = (lane / 4 & 2) * 2 + lane % 2 * 2;

#if BY_KEY
float key_mass = 0.0f;
#else
const float sum = row < rows ? sums[(tile_row + row) * lse_strides[2]] : 0.0f;
float uncertainty = 0.0f;  // in bits
float best_scores[TOP];  // this lane's part of the row, best first
int best_keys[TOP];
UNROLL for (int t = 0; t < TOP; t++) {
  best_scores[t] = NEG;
  best_keys[t] = -1;
}
#endif

const int needed = first < stop ? rows : 0;
load_tile<T, D, ROWS, PITCH, THREADS>(row_tile, row_vectors, tile_row, needed, thread_index);

for (int block = first; block < stop; block += BLOCK) {
  const int count = min(BLOCK, stop - block);
  load_tile<T, D, BLOCK, PITCH, THREADS>(tile, column_vectors, block, count, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  simdgroup_matrix<float, 8, 8> products[BLOCK / 8];
  UNROLL for (int b = 0; b < BLOCK / 8; b++) {
    products[b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int d = 0; d < D; d += 8) {
    simdgroup_matrix<T, 8, 8> left;
    simdgroup_load(left, row_tile + simd_row * PITCH + d, PITCH);
    UNROLL for (int b = 0; b < BLOCK / 8; b++) {
      simdgroup_matrix<T, 8, 8> right;
      simdgroup_load(right, tile + b * 8 * PITCH + d, PITCH, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(products[b], left, right, products[b]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  UNROLL for (int b = 0; b < BLOCK / 8; b++) {
    UNROLL for (int e = 0; e < 2; e++) {
      const int other = block + b * 8 + column + e;
#if BY_KEY
      const int query = other, key = tile_row + row;
#else
      const int query = tile_row + row, key = other;
#endif
      const int p = position + query;
      const bool seen = row < rows && other < stop && key >= first_key(p, start, window) &&
          key < end_key(p, end, causal);
      if (!seen) {
        continue;
      }
      // Log2 of the weight. With ALiBi the bias and the log-sum-exp may both be large: they meet
      // first.
#if BY_KEY
      const float sum = sums[query * lse_strides[2]];
#endif
      const float bias = slope * float(key - p) - sum;
      const float score = bias * LOG2E +
          score_log2<SOFTCAP>(products[b].thread_elements()[e], scalars[0], scalars[1]);
      const float weight = fast::exp2(score);
#if BY_KEY
      key_mass += weight;
#else
      uncertainty -= weight * score;
      if (score > best_scores[TOP - 1]) {  // keys come in order: an equal one ranks behind
        rank_key<TOP>(best_scores, best_keys, score, key);
      }
#endif
    }
  }
}

#if BY_KEY
key_mass += simd_shuffle_xor(key_mass, 1);
key_mass += simd_shuffle_xor(key_mass, 8);
if (row < rows && column == 0) {
  mass[(long(batch) * q_shape[1] + head) * k_shape[2] + tile_row + row] = key_mass;
}
#else
uncertainty += simd_shuffle_xor(uncertainty, 1);
uncertainty += simd_shuffle_xor(uncertainty, 8);
const long to = (long(batch) * q_shape[1] + head) * length + tile_row + row;
const bool writes = row < rows && column == 0;
if (writes) {
  entropy[to] = uncertainty * LN2;
}
// The best of the four lanes' lists, TOP times; its lane goes on to its next.
for (int t = 0; t < TOP; t++) {
  float score = best_scores[0];
  int key = best_keys[0];
  take_better(score, key, simd_shuffle_xor(score, 1), simd_shuffle_xor(key, 1));
  take_better(score, key, simd_shuffle_xor(score, 8), simd_shuffle_xor(key, 8));
  if (best_keys[0] == key) {
    UNROLL for (int i = 0; i + 1 < TOP; i++) {
      best_scores[i] = best_scores[i + 1];
      best_keys[i] = best_keys[i + 1];
    }
    best_scores[TOP - 1] = NEG;
    best_keys[TOP - 1] = -1;
  }
  if (writes) {
    top_ids[to * TOP + t] = key;
    top_weights[to * TOP + t] = key < 0 ? 0.0f : fast::exp2(score);
  }
}
#endif
