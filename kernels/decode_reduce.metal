  // One row of the output from its splits; a thread takes one of the D values.
  int d = thread_position_in_grid.x, row = thread_position_in_grid.y;
  int length = partial_shape[2], splits = partial_shape[3], dim = partial_shape[4];
  auto row_stats = stats + row * splits * 2;  // few of them lie in constant memory
  const device float* values = partial + long(row) * splits * dim + d;

  float top = NEG, mass = 0.0f, sum = 0.0f;
  for (int s = 0; s < splits; s++) top = max(top, row_stats[2 * s]);
  for (int s = 0; s < splits; s++) {
    float factor = fast::exp2(row_stats[2 * s] - top);
    mass += factor * row_stats[2 * s + 1];
    sum += factor * values[s * dim];
  }
  int head = row / length % partial_shape[1];
  sum *= add_sink(sinks[head * sinks_strides[1]], top, mass);
  out[long(row) * dim + d] = T(sum / (mass > 0.0f ? mass : 1.0f));
  if (d == 0) {
    lse[row] = log_sum_exp(top, mass);
  }
