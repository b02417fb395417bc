  // Attention of a tile of ROWS query rows over a share of the keys of their head.
  constexpr int F = D / 8;
  constexpr int RB = row_blocks(ROWS, D);
  constexpr int SHARES = key_shares(ROWS, D);
  constexpr int WK = D % 64 == 0 ? 8 : D % 32 == 0 ? 4 : 2;  // side by side in a lane, of a key
  constexpr int WV = D % 32 == 0 ? 8 : 4;  // of a value

  Work work;
  work.lane = thread_index_in_simdgroup;
  work.simdgroup = simdgroup_index_in_threadgroup;
  work.kv = threadgroup_position_in_grid.y;
  work.batch = threadgroup_position_in_grid.z;
  work.length = q_shape[2];
  work.group = q_shape[1] / k_shape[1];
  work.start = starts[work.batch * starts_strides[1]];
  work.end = ends[work.batch * ends_strides[1]];
  work.causal = options[0] != 0;
  work.window = options[1];
  share_work<ROWS>(work, k_shape[2], threadgroup_position_in_grid.x, threadgroups_per_grid.x);
  int row = fragment_row(work.lane), column = fragment_column(work.lane);
  int block = int(work.simdgroup) / SHARES * RB;  // of 8 rows, the first of this simdgroup
  int share = int(work.simdgroup) % SHARES;

  threadgroup T queries[ROWS * D];
  stage_queries<ROWS, D, WK>(
      queries, q + work.batch * q_strides[0] + work.kv * work.group * q_strides[1],
      q_strides[1], q_strides[2], q_strides[3], work);
  Row rows[RB];
  Running running[RB];
  float2 sums[RB * F];
  UNROLL for (int b = 0; b < RB; b++) {
    set_row(rows[b], work, work.tile * ROWS + (block + b) * 8 + row, k_shape[1]);
    rows[b].slope = slopes[rows[b].head * slopes_strides[1]];
  }
  UNROLL for (int i = 0; i < RB * F; i++) sums[i] = 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  auto k_head = head_of(k, k_strides, work);
  auto v_head = head_of(v, v_strides, work);
  const threadgroup T* fragments = queries + block * F * 64 + work.lane * 2;
  int last = work.end_key - 1;  // past it, it is read again and weighs 0
  for (int at = work.first_key + share * 8; at <= last; at += SHARES * 8) {
    const device T* k0 = k_head + min(at + column, last) * k_strides[2];
    const device T* k1 = k_head + min(at + column + 1, last) * k_strides[2];
    float2 products[RB];
    UNROLL for (int b = 0; b < RB; b++) products[b] = 0.0f;
    UNROLL for (int f = 0; f < F; f += WK) {
      float x0[WK], x1[WK];
      load_values<WK>(k0 + (f * 8 + row * WK) * k_strides[3], k_strides[3], x0);
      load_values<WK>(k1 + (f * 8 + row * WK) * k_strides[3], k_strides[3], x1);
      UNROLL for (int b = 0; b < RB; b++) {
        float2 part = 0.0f;  // short chains: faster, and they round less
        UNROLL for (int i = 0; i < WK; i++) {
          float2 query = query_pair(fragments + (b * F + f + i) * 64);
          part = multiply_add(query, float2(x0[i], x1[i]), part);
        }
        products[b] += part;
      }
    }
    float2 weights[RB];
    UNROLL for (int b = 0; b < RB; b++) {
      float kept;
      weights[b] = next_weights(
          products[b], rows[b], at + column, scalars[0], scalars[1], running[b], kept);
      UNROLL for (int f = 0; f < F; f++) sums[b * F + f] *= kept;
    }
    const device T* value = v_head + min(at + row, last) * v_strides[2];
    UNROLL for (int f = 0; f < F; f += WV / 2) {
      float x[WV];
      load_values<WV>(value + (f * 8 + column / 2 * WV) * v_strides[3], v_strides[3], x);
      UNROLL for (int i = 0; i < WV / 2; i++) {
        UNROLL for (int b = 0; b < RB; b++) {
          thread float2& sum = sums[b * F + f + i];
          sum = multiply_add(weights[b], float2(x[2 * i], x[2 * i + 1]), sum);
        }
      }
    }
  }

  threadgroup float2 tops[SIMDGROUPS * RB * 8];
  threadgroup float2 exchange[SIMDGROUPS * EXCHANGED * 32];
  float factors[RB];
  combine_running<RB, SHARES>(running, factors, tops, work);
  UNROLL for (int b = 0; b < RB; b++) {
    float sink = sinks[rows[b].head * sinks_strides[1]];
    factors[b] *= finish_row<DIRECT>(running[b], rows[b], sink, stats, share == 0 && column == 0);
  }
  write_rows<RB, SHARES, D, WV>(sums, factors, rows, exchange, out, work);
