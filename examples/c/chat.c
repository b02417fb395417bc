/* A chat with an exported folder through onnxruntime's C API.

     cc -O2 chat.c -o chat -I ORT/include -L ORT/lib -lonnxruntime
     ./chat FOLDER/onnx/model_q4.onnx CAPACITY MAX_TOKENS EOS_ID

   One line of standard input is a whole conversation in token ids; the reply's ids are printed one
   a line as they come, then an empty line. For text, use a tokenizer library of your choice.

   Keys and values live in buffers of CAPACITY positions that are bound both as past and present
   (dialect gqa): nothing is copied, and what a conversation has in common with the one before is
   not computed again. */
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi *ort;

static void check(OrtStatus *status) {
  if (!status) return;
  fprintf(stderr, "error: %s\n", ort->GetErrorMessage(status));
  exit(1);
}

static OrtSession *session;
static OrtIoBinding *binding;
static OrtMemoryInfo *cpu;
static OrtAllocator *allocator;
static int64_t *ids, *mask, vocabulary, capacity;
static float *logits;
static int length; /* of the tokens in `ids` that the buffers hold */

static OrtValue *tensor(void *data, size_t item, const int64_t *shape, size_t rank,
                        ONNXTensorElementDataType type) {
  OrtValue *value;
  for (size_t i = 0; i < rank; i++) item *= (size_t)shape[i];
  check(ort->CreateTensorWithDataAsOrtValue(cpu, data, item, shape, rank, type, &value));
  return value;
}

/* The element type and the shape, of rank 4 at most, of an input or output. */
static void describe(OrtTypeInfo *info, ONNXTensorElementDataType *type, int64_t *shape) {
  const OrtTensorTypeAndShapeInfo *about;
  size_t rank;
  check(ort->CastTypeInfoToTensorInfo(info, &about));
  check(ort->GetTensorElementType(about, type));
  check(ort->GetDimensionsCount(about, &rank));
  check(ort->GetDimensions(about, shape, rank));
  ort->ReleaseTypeInfo(info);
}

static void bind_caches(void) {
  size_t inputs;
  check(ort->SessionGetInputCount(session, &inputs));
  for (size_t i = 0; i < inputs; i++) {
    char *name, present[64];
    OrtTypeInfo *info;
    ONNXTensorElementDataType type;
    int64_t shape[4];
    check(ort->SessionGetInputName(session, i, allocator, &name));
    if (strncmp(name, "past_key_values.", 16) == 0) {
      check(ort->SessionGetInputTypeInfo(session, i, &info));
      describe(info, &type, shape);
      shape[0] = 1, shape[2] = capacity;
      size_t item = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? 2 : 4;
      void *data = calloc((size_t)(shape[1] * shape[2] * shape[3]), item);
      OrtValue *value = tensor(data, item, shape, 4, type);
      snprintf(present, sizeof present, "present.%s", name + 16);
      check(ort->BindInput(binding, name, value));
      check(ort->BindOutput(binding, present, value));
    }
    check(ort->AllocatorFree(allocator, name));
  }
}

static void open_session(const char *path) {
  OrtEnv *env;
  OrtSessionOptions *options;
  OrtTypeInfo *info;
  ONNXTensorElementDataType type;
  int64_t shape[4];
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "chat", &env)); /* no warning of num_logits */
  check(ort->CreateSessionOptions(&options));
  check(ort->CreateSession(env, path, options, &session));
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu));
  check(ort->CreateIoBinding(session, &binding));
  bind_caches();
  check(ort->SessionGetOutputTypeInfo(session, 0, &info)); /* logits are the first output */
  describe(info, &type, shape);
  vocabulary = shape[2];
  int64_t row[] = {1, 1, vocabulary};
  logits = malloc((size_t)vocabulary * sizeof *logits);
  check(ort->BindOutput(binding, "logits", tensor(logits, 4, row, 3, type)));
  ids = malloc((size_t)capacity * sizeof *ids);
  mask = malloc((size_t)capacity * sizeof *mask); /* all ones: nothing is padding */
  for (int64_t i = 0; i < capacity; i++) mask[i] = 1;
}

/* Run ids[length … end) ; returns the most likely next token. */
static int64_t advance(int end) {
  const ONNXTensorElementDataType int64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  int64_t new_shape[] = {1, end - length}, total_shape[] = {1, end}, best = 0;
  OrtValue *new_ids = tensor(ids + length, 8, new_shape, 2, int64);
  OrtValue *total = tensor(mask, 8, total_shape, 2, int64);
  check(ort->BindInput(binding, "input_ids", new_ids));
  check(ort->BindInput(binding, "attention_mask", total));
  check(ort->RunWithBinding(session, NULL, binding));
  ort->ReleaseValue(new_ids), ort->ReleaseValue(total);
  length = end;
  for (int64_t i = 1; i < vocabulary; i++)
    if (logits[i] > logits[best]) best = i;
  return best; /* greedy; to sample, draw from the softmax of the logits here */
}

int main(int count, char **arguments) {
  if (count != 5) return fputs("usage: chat MODEL CAPACITY MAX_TOKENS EOS_ID\n", stderr), 2;
  const int most = atoi(arguments[3]);
  const int64_t eos = atoll(arguments[4]);
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!ort) return fputs("error: onnxruntime is older than its header\n", stderr), 1;
  capacity = atoll(arguments[2]);
  open_session(arguments[1]);
  char *line = NULL;
  size_t size = 0;
  while (getline(&line, &size, stdin) > 0) {
    int prompt = 0, same = 1, kept = 0;
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
      int64_t id = atoll(word);
      if (prompt == capacity) return fputs("error: longer than CAPACITY\n", stderr), 1;
      same = same && prompt < length && ids[prompt] == id;
      kept += same;
      ids[prompt++] = id;
    }
    if (prompt == 0) continue;
    length = kept < prompt ? kept : prompt - 1; /* one token must run, for its logits */
    fprintf(stderr, "[%d tokens, %d of them cached]\n", prompt, length);
    int64_t next = advance(prompt);
    for (int n = 1; next != eos; n++) {
      printf("%lld\n", (long long)next);
      fflush(stdout);
      if (n >= most || length == capacity) break;
      ids[length] = next;
      next = advance(length + 1);
    }
    puts("");
    fflush(stdout);
  }
  return 0;
}
