// Filling a threadgroup tile of [ROWS, D] numbers, PITCH apart, from rows that lie anywhere.

// A matrix behind a pointer of type P: MLX passes small arrays as `constant`, others as `device`.
template <typename P>
struct Rows {
  P data;
  long row;  // from a row to the next, in elements
  long column;
};

// Head `head` of sequence `batch` of an array [B, heads, rows, columns].
template <typename P>
METAL_FUNC Rows<P> head_rows(P data, const constant int64_t* strides, int batch, int head) {
  return {data + batch * strides[0] + head * strides[1], strides[2], strides[3]};
}

// Rows `first` to `first + count` of `from`, zeros for the rest of the tile.
template <typename T, int D, int ROWS, int PITCH, int THREADS, typename P>
METAL_FUNC void load_tile(
    threadgroup T* tile, const thread Rows<P>& from, int first, int count, int thread_index) {
  constexpr int CHUNK = 4;  // elements that one thread copies at a time
  for (int i = thread_index * CHUNK; i < ROWS * D; i += THREADS * CHUNK) {
    const int row = i / D, column = i % D;
    threadgroup T* to = tile + row * PITCH + column;
    const P source = from.data + (first + row) * from.row + column * from.column;
    if (row >= count) {
      UNROLL for (int e = 0; e < CHUNK; e++) {
        to[e] = T(0.0f);
      }
    } else if (from.column == 1) {  // the usual case, apart so that four loads can become one
      UNROLL for (int e = 0; e < CHUNK; e++) {
        to[e] = source[e];
      }
    } else {
      UNROLL for (int e = 0; e < CHUNK; e++) {
        to[e] = source[e * from.column];
      }
    }
  }
}

// A matrix in MLX's affine layout: GROUP neighbours of a row share a scale and a bias, and a word
// holds the integers of 32 / BITS neighbours, the first in its lowest bits.
template <typename W, typename P, int BITS, int GROUP>
struct QuantizedRows {
  Rows<W> words;
  Rows<P> scales;
  Rows<P> biases;
};

template <int BITS, int GROUP, typename W, typename P>
METAL_FUNC QuantizedRows<W, P, BITS, GROUP> quantized_rows(
    W words, const constant int64_t* words_strides, P scales,
    const constant int64_t* scales_strides, P biases, const constant int64_t* biases_strides,
    int batch, int head) {
  return {
      head_rows(words, words_strides, batch, head), head_rows(scales, scales_strides, batch, head),
      head_rows(biases, biases_strides, batch, head)};
}

// As above; an element is its integer·scale + bias.
template <
    typename T, int D, int ROWS, int PITCH, int THREADS, typename W, typename P, int BITS,
    int GROUP>
METAL_FUNC void load_tile(
    threadgroup T* tile, const thread QuantizedRows<W, P, BITS, GROUP>& from, int first, int count,
    int thread_index) {
  constexpr int PACK = 32 / BITS;
  for (int i = thread_index * PACK; i < ROWS * D; i += THREADS * PACK) {
    const int row = i / D, column = i % D;
    threadgroup T* to = tile + row * PITCH + column;
    uint word = 0;
    float scale = 0.0f, bias = 0.0f;
    if (row < count) {
      const long at = first + row, group = column / GROUP;
      word = from.words.data[at * from.words.row + column / PACK * from.words.column];
      scale = float(from.scales.data[at * from.scales.row + group * from.scales.column]);
      bias = float(from.biases.data[at * from.biases.row + group * from.biases.column]);
    }
    UNROLL for (int e = 0; e < PACK; e++) {
      to[e] = T(float(word >> (e * BITS) & ((1u << BITS) - 1u)) * scale + bias);
    }
  }
}
