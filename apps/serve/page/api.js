// The server's own API, as any other client uses it.

const KEY = "pippin.key";

/** What went wrong, in words for the user. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null } = {}) {
    super(message);
    Object.assign(this, { status, code });
  }
}

const GONE = "The server does not answer. Is `pippin serve` still running?";
const CUT = "The connection ended before the reply did.";

// The key lives as long as the tab: never in localStorage, never in an address.
let key = null;
try {
  key = sessionStorage.getItem(KEY);
} catch {
  // Without storage, as long as the page.
}

export function setKey(given) {
  key = given;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // As above.
  }
}

export const hasKey = () => key !== null;

/** The names of the models that can be asked; those without a context only make embeddings. */
export async function listModels() {
  const answer = await call("v1/models", {});
  const { data } = await answer.json();
  return data
    .filter((model) => model.context_length)
    .map((model) => model.id);
}

/** Hand a document to the server: { id, name, title, pages, warnings }. */
export async function uploadDocument(name, file, signal) {
  const answer = await call(`pippin/documents?name=${encodeURIComponent(name)}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
    signal,
  });
  return answer.json();
}

export const removeDocument = (id) =>
  call(`pippin/documents/${encodeURIComponent(id)}`, { method: "DELETE" });

/** The picture of a document's page, as an address that needs no key. */
export async function pagePicture(id, page) {
  const answer = await call(`pippin/documents/${encodeURIComponent(id)}/pages/${page}.png`, {});
  const blob = await answer.blob();
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.readAsDataURL(blob);
  });
}

export const findPassages = (asked, signal) => post("pippin/passages", asked, signal);
export const findSources = (asked, signal) => post("pippin/sources", asked, signal);
export const explainReply = (asked, signal) => post("pippin/explain", asked, signal);

/**
 * Pieces of a reply: { content }, { reasoning }, { finish }, { usage }; each has one of them.
 *
 * Throws ApiError, or an AbortError once the signal is given.
 */
export async function* streamChat(request, signal) {
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  const answer = await callWith("v1/chat/completions", body, signal);
  let finished = false;
  for await (const chunk of events(answer.body)) {
    if (chunk.error) throw described(chunk.error, 0, null);
    for (const piece of pieces(chunk)) {
      finished ||= "finish" in piece;
      yield piece;
    }
  }
  if (!finished) throw new ApiError(CUT);
}

function* pieces(chunk) {
  const [choice] = chunk.choices ?? [];
  if (choice?.delta?.reasoning_content) yield { reasoning: choice.delta.reasoning_content };
  if (choice?.delta?.content) yield { content: choice.delta.content };
  if (choice?.finish_reason) yield { finish: choice.finish_reason };
  if (chunk.usage) yield { usage: chunk.usage };
}

const post = async (path, body, signal) => (await callWith(path, body, signal)).json();

const callWith = (path, body, signal) =>
  call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });

async function call(path, options) {
  const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(GONE);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  const text = await answer.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // Not our server's format: something between has answered.
  }
  return described(error, answer.status, answer.headers.get("Retry-After"));
}

function described(error, status, wait) {
  const said = error.message ?? `The server answered with status ${status}.`;
  const code = error.code ?? null;
  let message = said;
  if (status === 429) {
    const when = wait ? `in ${wait} second${wait === "1" ? "" : "s"}` : "soon";
    message = `The server is busy. Try again ${when}.`;
  } else if (code === "context_length_exceeded") {
    message = `${said} Begin a new chat, or edit an earlier message to go on from there.`;
  }
  return new ApiError(message, { status, code });
}

/** The JSON of each server-sent event, up to [DONE]; comments (keep-alive) are passed over. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } catch (error) {
    if (error instanceof SyntaxError) throw new ApiError(`This is no JSON: ${error.message}`);
    throw error instanceof TypeError ? new ApiError(CUT) : error;
  } finally {
    // Also when the caller stops early: the server then knows, and frees the slot.
    reader.cancel().catch(() => {});
  }
}
