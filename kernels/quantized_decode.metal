  // decode.metal over keys and values in MLX's affine layout, scale·code + bias. Codes go into the
  // products as they are; scale and bias of a group come in afterwards, once for the group:
  //   Σ q·(s·c + b) = s·Σ q·c + b·Σ q,   Σ p·(s·c + b) = Σ (p·s)·c + Σ p·b.
  constexpr int F = D / 8;
  constexpr int RB = row_blocks(ROWS, D);
  constexpr int SHARES = key_shares(ROWS, D);
  constexpr int WK = GROUP == 32 ? 4 : 8;  // side by side in a lane, of a key
  constexpr int WV = 8;  // of a value
  constexpr int GROUPS = D / GROUP;
  constexpr int FG = GROUP / 8;  // fragments of a group

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

  const threadgroup T* fragments = queries + block * F * 64 + work.lane * 2;
  float query_sums[RB * GROUPS], bias_sums[RB * GROUPS];
  UNROLL for (int g = 0; g < RB * GROUPS; g++) {
    float2 sum = 0.0f;
    UNROLL for (int f = 0; f < FG; f++) sum += query_pair(fragments + (g * FG + f) * 64);
    query_sums[g] = row_sum(sum[0] + sum[1]);
    bias_sums[g] = 0.0f;
  }

  auto k_head = head_of(k, k_strides, work);
  auto k_scale = head_of(k_scales, k_scales_strides, work);
  auto k_bias = head_of(k_biases, k_biases_strides, work);
  auto v_head = head_of(v, v_strides, work);
  auto v_scale = head_of(v_scales, v_scales_strides, work);
  auto v_bias = head_of(v_biases, v_biases_strides, work);
  int last = work.end_key - 1;  // past it, it is read again and weighs 0
  for (int at = work.first_key + share * 8; at <= last; at += SHARES * 8) {
    int j0 = min(at + column, last), j1 = min(at + column + 1, last);
    const device uint* k0 = k_head + j0 * k_strides[2];
    const device uint* k1 = k_head + j1 * k_strides[2];
    float2 products[RB];
    UNROLL for (int b = 0; b < RB; b++) products[b] = 0.0f;
    UNROLL for (int g = 0; g < GROUPS; g++) {
      float2 parts[RB];
      UNROLL for (int b = 0; b < RB; b++) parts[b] = 0.0f;
      UNROLL for (int f = g * FG; f < (g + 1) * FG; f += WK) {
        float x0[WK], x1[WK];
        load_codes<BITS, WK>(k0, f * 8 + row * WK, k_strides[3], x0);
        load_codes<BITS, WK>(k1, f * 8 + row * WK, k_strides[3], x1);
        UNROLL for (int b = 0; b < RB; b++) {
          UNROLL for (int i = 0; i < WK; i++) {
            float2 query = query_pair(fragments + (b * F + f + i) * 64);
            parts[b] = multiply_add(query, float2(x0[i], x1[i]), parts[b]);
          }
        }
      }
      float2 scales = group_pair(k_scale, k_scales_strides, j0, j1, g);
      float2 biases = group_pair(k_bias, k_biases_strides, j0, j1, g);
      biases = centred_biases<BITS>(biases, scales);
      UNROLL for (int b = 0; b < RB; b++) {
        products[b] += scales * parts[b] + biases * query_sums[b * GROUPS + g];
      }
    }
    float2 weights[RB];
    UNROLL for (int b = 0; b < RB; b++) {
      float kept;
      weights[b] = next_weights(
          products[b], rows[b], at + column, scalars[0], scalars[1], running[b], kept);
      UNROLL for (int f = 0; f < F; f++) sums[b * F + f] *= kept;
      UNROLL for (int g = 0; g < GROUPS; g++) bias_sums[b * GROUPS + g] *= kept;
    }
    const device uint* value = v_head + min(at + row, last) * v_strides[2];
    UNROLL for (int g = 0; g < GROUPS; g++) {
      float2 scales = group_pair(v_scale, v_scales_strides, j0, j1, g);
      float2 biases = group_pair(v_bias, v_biases_strides, j0, j1, g);
      biases = centred_biases<BITS>(biases, scales);
      float2 scaled[RB];
      UNROLL for (int b = 0; b < RB; b++) {
        scaled[b] = weights[b] * scales;
        bias_sums[b * GROUPS + g] += dot(weights[b], biases);
      }
      UNROLL for (int f = g * FG; f < (g + 1) * FG; f += WV / 2) {
        float x[WV];
        load_codes<BITS, WV>(value, f * 8 + column / 2 * WV, v_strides[3], x);
        UNROLL for (int i = 0; i < WV / 2; i++) {
          UNROLL for (int b = 0; b < RB; b++) {
            thread float2& sum = sums[b * F + f + i];
            sum = multiply_add(scaled[b], float2(x[2 * i], x[2 * i + 1]), sum);
          }
        }
      }
    }
  }
  UNROLL for (int i = 0; i < RB * GROUPS; i++) {
    float sum = row_sum(bias_sums[i]);
    UNROLL for (int f = 0; f < FG; f++) sums[i * FG + f] += sum;
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
