// One threadgroup makes BQ = 32 rows of one query head, its four simdgroups eight each, and walks
// the keys that these rows see, BK at a time, with the running softmax of Milakov and Gimelshein
// (arXiv:1805.02867). Keys and values of a block take turns in one tile.

constexpr int BQ = 32;
constexpr int THREADS = 128;
constexpr int PITCH = D + 16 / sizeof(T);  // rows of a tile begin in different banks
threadgroup T query_tile[BQ * PITCH];
threadgroup T tile[BK * PITCH];

const int thread_index = thread_index_in_threadgroup;
const int lane = thread_index_in_simdgroup;
const int head = threadgroup_position_in_grid.y, batch = threadgroup_position_in_grid.z;
const int kv_head = head / (q_shape[1] / k_shape[1]);
const int length = q_shape[2];
const int start = max(starts[batch], 0), end = min(ends[batch], k_shape[2]);
const bool causal = options[0] != 0;
const int window = options[1];

// Rows of this tile, their positions, the keys that some of them see: first <= j < stop, and the
// keys that all of them see.
const int tile_row = threadgroup_position_in_grid.x * BQ;
const int rows = min(BQ, length - tile_row);
const int position = end - length + tile_row, last_position = position + rows - 1;
const int first = first_key(position, start, window), stop = end_key(last_position, end, causal);
const int all_first = first_key(last_position, start, window);
const int all_stop = end_key(position, end, causal);

const auto queries = head_rows(q, q_strides, batch, head);
#if QUANTIZED
const auto keys = quantized_rows<BITS, GROUP>(
    k, k_strides, k_scales, k_scales_strides, k_biases, k_biases_strides, batch, kv_head);
const auto values = quantized_rows<BITS, GROUP>(
    v, v_strides, v_scales, v_scales_strides, v_biases, v_biases_strides, batch, kv_head);
#else
const auto keys = head_rows(k, k_strides, batch, kv_head);
const auto values = head_rows(v, v_strides, batch, kv_head);
#endif

// A simdgroup's 8×8 matrices give each lane two neighbours in one row; lanes 1 and 8 apart share
// that row. This lane's row and first column:
const int simd_row = simdgroup_index_in_threadgroup * 8;
const int row = simd_row + (lane / 4 & 4) + lane / 2 % 4;
const int column = (lane / 4 & 2) * 2 + lane % 2 * 2;
const int row_first = first_key(position + row, start, window);
const int row_stop = end_key(position + row, end, causal);

// ALiBi counts from the last key that the row sees, where the scores are largest, to keep float32's
// precision there: a shift of the whole row, which only the sink and the log-sum-exp notice.
const float slope = ALIBI ? slopes[head] : 0.0f;
const float shift =
    row_first < row_stop ? slope * float(row_stop - 1 - position - row) : 0.0f;

float top = max((sinks[head] - shift) * LOG2E, NEG);
float mass = column == 0 ? weight_log2(top, top) : 0.0f;  // this lane's share of the row
simdgroup_matrix<float, 8, 8> outputs[D / 8];
UNROLL for (int d = 0; d < D / 8; d++) {
  outputs[d] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

load_tile<T, D, BQ, PITCH, THREADS>(query_tile, queries, tile_row, rows, thread_index);

for (int block = first; block < stop; block += BK) {
  const int count = min(BK, stop - block);
  load_tile<T, D, BK, PITCH, THREADS>(tile, keys, block, count, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Queries times keys: eight rows, BK columns.
  simdgroup_matrix<float, 8, 8> scores[BK / 8];
  UNROLL for (int b = 0; b < BK / 8; b++) {
    scores[b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (int d = 0; d < D; d += 8) {
    simdgroup_matrix<T, 8, 8> query;
    simdgroup_load(query, query_tile + simd_row * PITCH + d, PITCH);
    UNROLL for (int b = 0; b < BK / 8; b++) {
      simdgroup_matrix<T, 8, 8> key;
      simdgroup_load(key, tile + b * 8 * PITCH + d, PITCH, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(scores[b], query, key, scores[b]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  load_tile<T, D, BK, PITCH, THREADS>(tile, values, block, count, thread_index);

  // Scores to weights under the row's running maximum.
  const bool edge = block < all_first || block + BK > all_stop;
  float block_top = top;
  UNROLL for (int b = 0; b < BK / 8; b++) {
    UNROLL for (int e = 0; e < 2; e++) {
      const int j = block + b * 8 + column + e;
      float score = score_log2<SOFTCAP>(scores[b].thread_elements()[e], scalars[0], scalars[1]);
      if (ALIBI) {
        score += slope * LOG2E * float(j - row_stop + 1);
      }
      if (edge && (j < row_first || j >= row_stop)) {
        score = NEG;
      }
      scores[b].thread_elements()[e] = score;
      block_top = max(block_top, score);
    }
  }
  block_top = max(block_top, simd_shuffle_xor(block_top, 1));
  block_top = max(block_top, simd_shuffle_xor(block_top, 8));
  const float kept = fast::exp2(top - block_top);
  top = block_top;
  mass *= kept;
  UNROLL for (int b = 0; b < BK / 8; b++) {
    UNROLL for (int e = 0; e < 2; e++) {
      const float weight = weight_log2(scores[b].thread_elements()[e], top);
      scores[b].thread_elements()[e] = weight;
      mass += weight;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Weights times values.
  UNROLL for (int d = 0; d < D / 8; d++) {
    outputs[d].thread_elements()[0] *= kept;
    outputs[d].thread_elements()[1] *= kept;
    UNROLL for (int b = 0; b < BK / 8; b++) {
      simdgroup_matrix<T, 8, 8> value;
      simdgroup_load(value, tile + b * 8 * PITCH + d * 8, PITCH);
      simdgroup_multiply_accumulate(outputs[d], scores[b], value, outputs[d]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

mass += simd_shuffle_xor(mass, 1);
mass += simd_shuffle_xor(mass, 8);
if (row < rows) {
  const float share = mass > 0.0f ? 1.0f / mass : 0.0f;
  const long to = (long(batch) * q_shape[1] + head) * length + tile_row + row;
  UNROLL for (int d = 0; d < D / 8; d++) {
    out[to * D + d * 8 + column] = T(outputs[d].thread_elements()[0] * share);
    out[to * D + d * 8 + column + 1] = T(outputs[d].thread_elements()[1] * share);
  }
  if (column == 0) {
    lse[to] = log_sum_exp(top, mass) + shift;
  }
}
