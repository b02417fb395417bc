// What decode.metal and quantized_decode.metal share: rows in fragments, the running softmax of a
// row (arXiv:1805.02867), and how the simdgroups of a threadgroup put their parts together.
//
// A fragment is an 8×8 matrix held by a simdgroup, two elements to a lane: row fragment_row(lane),
// columns fragment_column(lane) and the next one (the layout of Apple's GPUs, as MLX has it).

constant constexpr int SIMDGROUPS = 8;
constant constexpr int EXCHANGED = 4;  // fragments that a simdgroup hands over at a time
constant constexpr int NO_ROW = -1;

#define UNROLL _Pragma("clang loop unroll(full)")

METAL_FUNC int fragment_row(uint lane) { return int(((lane >> 2) & 4) | ((lane >> 1) & 3)); }
METAL_FUNC int fragment_column(uint lane) { return int(((lane >> 1) & 4) | ((lane << 1) & 2)); }

// c + a·b for 8×8 fragments.
METAL_FUNC float2 multiply_add(float2 a, float2 b, float2 c) {
  simdgroup_matrix<float, 8, 8> left, right, sum;
  reinterpret_cast<thread float2&>(left.thread_elements()) = a;
  reinterpret_cast<thread float2&>(right.thread_elements()) = b;
  reinterpret_cast<thread float2&>(sum.thread_elements()) = c;
  simdgroup_multiply_accumulate(sum, left, right, sum);
  return reinterpret_cast<thread float2&>(sum.thread_elements());
}

// Over the four lanes that hold one row of a fragment.
METAL_FUNC float row_max(float x) {
  x = max(x, simd_shuffle_xor(x, ushort(1)));
  return max(x, simd_shuffle_xor(x, ushort(8)));
}
METAL_FUNC float row_sum(float x) {
  x += simd_shuffle_xor(x, ushort(1));
  return x + simd_shuffle_xor(x, ushort(8));
}

// N values that lie `step` apart. Most caches have them side by side: then the loads can be wide.
template <int N, typename T>
METAL_FUNC void load_values(const device T* from, long step, thread float* to) {
  if (step == 1) {
    UNROLL for (int i = 0; i < N; i++) to[i] = float(from[i]);
  } else {
    UNROLL for (int i = 0; i < N; i++) to[i] = float(from[i * step]);
  }
}

// What a threadgroup works on: a tile of the G·L rows of one key/value head, and a share of the
// keys that these see.
struct Work {
  uint lane;
  uint simdgroup;
  int kv;
  int batch;
  int length;  // L
  int group;  // G
  int tile;
  int split;
  int splits;
  int start;
  int end;
  int window;
  bool causal;
  int first_key;  // of the share
  int end_key;
};

// Fills in what follows from the rest, given S and the place in the grid.
template <int ROWS>
METAL_FUNC void share_work(thread Work& work, int total, uint place, uint places) {
  int tiles = (work.group * work.length + ROWS - 1) / ROWS;
  work.tile = int(place) % tiles;
  work.split = int(place) / tiles;
  work.splits = int(places) / tiles;
  work.start = max(work.start, 0);
  work.end = min(work.end, total);
  int first = first_key(work.end - work.length, work.start, work.window);
  int blocks = (max(work.end - first, 0) + 7) / 8;
  int share = (blocks + work.splits - 1) / work.splits * 8;
  work.first_key = first + work.split * share;
  work.end_key = min(work.end, work.first_key + share);
}

// Where the keys or values of a threadgroup's head begin.
template <typename P>
METAL_FUNC P head_of(P from, const constant int64_t* strides, const thread Work& work) {
  return from + work.batch * strides[0] + work.kv * strides[1];
}

// What the masks and the ALiBi bias (arXiv:2108.12409) of one row need.
struct Row {
  int slot;  // of its output; NO_ROW in the padding of a tile
  int head;
  int position;
  int first_key;
  int end_key;
  float slope;
};

// Row r of the G·L that share a key/value head.
METAL_FUNC void set_row(thread Row& row, const thread Work& work, int r, int kv_heads) {
  int used = work.group * work.length, clamped = min(r, used - 1);
  int slot = ((work.batch * kv_heads + work.kv) * used + r) * work.splits + work.split;
  row.slot = r < used ? slot : NO_ROW;
  row.head = work.kv * work.group + clamped / work.length;
  row.position = work.end - work.length + clamped % work.length;
  row.first_key = first_key(row.position, work.start, work.window);
  row.end_key = end_key(row.position, min(work.end, work.end_key), work.causal);
}

// The queries of a tile as fragments, in the order in which lanes take them: W values of a row
// that lie side by side are element i of W fragments. Fragment f holds the dimensions
// (f / W * 8 + i) * W + f % W, i < 8.
template <int ROWS, int D, int W, typename T>
METAL_FUNC void stage_queries(
    threadgroup T* queries, const device T* q, long head, long query, long step,
    const thread Work& work) {
  int thread_index = int(work.simdgroup * 32 + work.lane);
  for (int i = thread_index; i < ROWS * D; i += 32 * SIMDGROUPS) {
    uint lane = uint(i) / 2 % 32;
    int f = i / 64 % (D / 8), r = work.tile * ROWS + i / 64 / (D / 8) * 8 + fragment_row(lane);
    int d = (f / W * 8 + fragment_column(lane) + i % 2) * W + f % W;
    bool used = r < work.group * work.length;
    queries[i] = used ? q[r / work.length * head + r % work.length * query + d * step] : T(0.0f);
  }
}

// What a lane holds of a query's fragment.
template <typename T>
METAL_FUNC float2 query_pair(const threadgroup T* fragment) {
  return float2(float(fragment[0]), float(fragment[1]));
}

// The softmax of one row so far: its maximum, and this lane's share of Σ 2^(score - top).
struct Running {
  float top = NEG;
  float mass = 0.0f;
};

// q·k of a row with the keys `key` and `key + 1` → their weights. `kept` scales what was summed
// up before them.
METAL_FUNC float2 next_weights(
    float2 products, const thread Row& row, int key, float scale, float softcap,
    thread Running& running, thread float& kept) {
  float2 scores;
  UNROLL for (int e = 0; e < 2; e++) {
    int j = key + e;
    float score = softcap > 0.0f ? score_log2<true>(products[e], scale, softcap)
                                 : score_log2<false>(products[e], scale, softcap);
    score -= row.slope * LOG2E * float(row.position - j);
    bool seen = j >= row.first_key && j < row.end_key;
    scores[e] = seen ? score : NEG;
  }
  float top = max(running.top, row_max(max(scores[0], scores[1])));
  kept = fast::exp2(running.top - top);
  float2 weights = float2(weight_log2(scores[0], top), weight_log2(scores[1], top));
  running.mass = running.mass * kept + weights[0] + weights[1];
  running.top = top;
  return weights;
}

// Lets the sink of a row (arXiv:2508.10925) take part: what scales the sum over its values.
METAL_FUNC float add_sink(float sink, thread float& top, thread float& mass) {
  float with_sink = max(top, sink * LOG2E);
  float kept = fast::exp2(top - with_sink);
  mass = mass * kept + fast::exp2(sink * LOG2E - with_sink);
  top = with_sink;
  return kept;
}

// Of a tile's rows, a simdgroup takes row_blocks blocks of 8, and key_shares simdgroups take turns
// at the keys of the same rows.
constexpr int row_blocks(int rows, int head_dim) { return rows > 8 && head_dim <= 128 ? 2 : 1; }
constexpr int key_shares(int rows, int head_dim) {
  return SIMDGROUPS * 8 * row_blocks(rows, head_dim) / rows;
}

// The running values of the simdgroups that share rows become those of all; `factors` scale the
// sums of this one. `tops` has SIMDGROUPS × RB × 8 elements.
template <int RB, int SHARES>
METAL_FUNC void combine_running(
    thread Running* running, thread float* factors, threadgroup float2* tops,
    const thread Work& work) {
  UNROLL for (int b = 0; b < RB; b++) {
    running[b].mass = row_sum(running[b].mass);
    factors[b] = 1.0f;
  }
  if (SHARES == 1) {
    return;
  }
  int row = fragment_row(work.lane), simdgroup = int(work.simdgroup);
  UNROLL for (int b = 0; b < RB; b++) {
    if (fragment_column(work.lane) == 0) {
      tops[(simdgroup * RB + b) * 8 + row] = float2(running[b].top, running[b].mass);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int first = simdgroup / SHARES * SHARES;
  UNROLL for (int b = 0; b < RB; b++) {
    float top = NEG, mass = 0.0f;
    for (int s = first; s < first + SHARES; s++) {
      top = max(top, tops[(s * RB + b) * 8 + row].x);
    }
    for (int s = first; s < first + SHARES; s++) {
      float2 part = tops[(s * RB + b) * 8 + row];
      mass += part.y * fast::exp2(part.x - top);
    }
    factors[b] = fast::exp2(running[b].top - top);
    running[b].top = top;
    running[b].mass = mass;
  }
}

// What scales the sums of a row before they are written. With DIRECT, they become the output, and
// the statistics the log-sum-exp; else maximum and mass are left for decode_reduce.
template <bool DIRECT>
METAL_FUNC float finish_row(
    thread Running& running, const thread Row& row, float sink, device float* stats, bool writes) {
  float factor = 1.0f;
  if (DIRECT) {
    factor = add_sink(sink, running.top, running.mass);
    factor /= running.mass > 0.0f ? running.mass : 1.0f;
  }
  if (writes && row.slot != NO_ROW) {
    if (DIRECT) {
      stats[row.slot] = log_sum_exp(running.top, running.mass);
    } else {
      stats[2 * row.slot] = running.top;
      stats[2 * row.slot + 1] = running.mass;
    }
  }
  return factor;
}

// The two values of fragment f that a lane holds, to their places in a row of the output. The W
// values of a lane are two elements each of W / 2 fragments.
template <int W, typename O>
METAL_FUNC void write_pair(device O* row, int f, uint lane, float2 pair) {
  int at = f / (W / 2) * (4 * W) + fragment_column(lane) / 2 * W + f % (W / 2) * 2;
  row[at] = O(pair[0]);
  row[at + 1] = O(pair[1]);
}

// The sums of the simdgroups that share rows, added and written. `exchange` has
// SIMDGROUPS × EXCHANGED × 32 elements.
template <int RB, int SHARES, int D, int W, typename O>
METAL_FUNC void write_rows(
    const thread float2* sums, const thread float* factors, const thread Row* rows,
    threadgroup float2* exchange, device O* out, const thread Work& work) {
  constexpr int F = D / 8;
  int simdgroup = int(work.simdgroup), share = simdgroup % SHARES;
  threadgroup float2* mine = exchange + simdgroup * EXCHANGED * 32 + work.lane;
  threadgroup float2* first = mine - share * EXCHANGED * 32;
  UNROLL for (int b = 0; b < RB; b++) {
    bool used = rows[b].slot != NO_ROW;
    device O* row = out + long(used ? rows[b].slot : 0) * D;
    UNROLL for (int f = 0; f < F; f += EXCHANGED) {
      UNROLL for (int x = 0; x < EXCHANGED && f + x < F; x++) {
        float2 sum = sums[b * F + f + x] * factors[b];
        if (SHARES > 1) {
          mine[x * 32] = sum;
        } else if (used) {
          write_pair<W>(row, f + x, work.lane, sum);
        }
      }
      if (SHARES == 1) {
        continue;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (int x = share; x < EXCHANGED && f + x < F; x += SHARES) {
        float2 sum = first[x * 32];
        for (int s = 1; s < SHARES; s++) {
          sum += first[(s * EXCHANGED + x) * 32];
        }
        if (used) {
          write_pair<W>(row, f + x, work.lane, sum);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}
