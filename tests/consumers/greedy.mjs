// The loop that onnxruntime-node and onnxruntime-web share in these tests: greedy tokens, and the
// logits of each step where they are wanted.
export async function greedy({ Tensor }, session, { prompt_ids: prompt, new_tokens: count }) {
  let past = {};
  for (const { name, type, shape } of session.inputMetadata) {
    if (!name.startsWith("past_key_values.")) continue;
    const data = type === "float16" ? new Uint16Array(0) : new Float32Array(0);
    past[name] = new Tensor(type, data, [1, shape[1], 0, shape[3]]);
  }
  const int64 = (values) => {
    return new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  };
  const tokens = [];
  const rows = [];
  for (let ids = prompt, length = 0; tokens.length < count; ids = tokens.slice(-1)) {
    length += ids.length;
    const { logits, ...present } = await session.run({
      input_ids: int64(ids),
      attention_mask: int64(new Array(length).fill(1)),
      ...past,
    });
    past = {};
    for (const name in present) past[name.replace("present", "past_key_values")] = present[name];
    const row = logits.data;
    rows.push(Array.from(row));
    tokens.push(row.reduce((best, value, id) => (value > row[best] ? id : best), 0));
  }
  return { tokens, rows };
}

export const SUFFIXES = { fp32: "", fp16: "_fp16", q4: "_q4", int8: "_int8" };
