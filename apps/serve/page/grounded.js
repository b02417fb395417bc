// A reply from documents: passages are found first, and the reply's sources are checked at its end.
import { findPassages, findSources, streamChat } from "./api.js";

/**
 * Pieces as of `streamChat`, and { grounds }: what the reply rests on.
 *
 * The last message of the request is the question; in its place goes what the server makes of it
 * and the passages. Grounds are { searched, note, sent, missing, passages } and later { sources }.
 */
export async function* streamGrounded(request, documents, signal) {
  const before = request.messages.slice(0, -1);
  const question = request.messages.at(-1).content;
  const asked = { documents: documents.map(({ id }) => id), question };
  const room = { max_tokens: request.max_tokens };
  const found = await findPassages({ ...asked, messages: before, ...room }, signal);
  const { searched, note, content: sent } = found;
  if (found.missing) {
    const where = documents.length > 1 ? "documents" : "document";
    yield { grounds: { searched, note, missing: true } };
    yield { content: `Not found in the ${where}: ${found.missing}.` };
    yield { finish: "stop" };
    return;
  }
  const passages = found.passages.map(({ text, similarity, bm25, ...kept }) => kept);
  yield { grounds: { searched, note, sent, passages } };
  // As `pippin ask` does: the likeliest token each time, unless the user wants another temperature.
  const messages = [...before, { role: "user", content: sent }];
  let reply = "";
  for await (const piece of streamChat({ temperature: 0, ...request, messages }, signal)) {
    if (piece.content) reply += piece.content;
    yield piece;
  }
  if (reply.trim()) yield { grounds: await sourcesOf({ ...asked, passages, reply }, signal) };
}

async function sourcesOf(asked, signal) {
  try {
    return { sources: await findSources(asked, signal) };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { unchecked: `The sources could not be checked: ${error.message}` };
  }
}
