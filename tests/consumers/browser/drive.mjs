// Headless Chromium on the pages that serve.mjs serves. Prints one JSON document.
//
// usage: drive.mjs CHROMIUM SITE FOLDER WEIGHTS REQUEST.json greedy wasm|webgpu THREADS
//        drive.mjs CHROMIUM SITE FOLDER WEIGHTS REQUEST.json chat onnxruntime|transformers
//
// SITE is a directory with serve.mjs, its node_modules and the pages.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [executablePath, site, folder, weights, request, what, ...choice] = process.argv.slice(2);
const asked = JSON.parse(readFileSync(request, "utf8"));

async function greedy(page, url, [provider, threads]) {
  await page.goto(`${url}page.html`);
  await page.waitForFunction(() => window.run);
  const options = { weights, provider, threads: Number(threads), asked };
  return page.evaluate((options) => window.run(options), options);
}

// A person at the example's page: a conversation whose last reply the button stops.
async function chat(page, url, [library]) {
  const query = new URLSearchParams({
    library,
    weights,
    max_tokens: asked.new_tokens,
    system: asked.system,
  });
  const progress = [];
  await page.exposeFunction("onStatus", (text) => progress.push(text));
  await page.addInitScript(() => {
    addEventListener("DOMContentLoaded", () => {
      const status = document.getElementById("status");
      new MutationObserver(() => window.onStatus(status.textContent)).observe(status, {
        childList: true,
      });
    });
  });
  await page.goto(`${url}index.html?${query}`);
  await page.waitForFunction(() => /^(ready|failed)/.test(document.all.status.textContent));
  const send = async (message) => {
    await page.fill("#input", message);
    await page.click("#send");
  };
  const finished = () => page.waitForFunction(() => !document.all.send.disabled);
  const replies = () => page.locator("#chat > div").allTextContents();
  const statuses = [];
  for (const message of asked.turns.slice(0, -1)) {
    await send(message);
    await finished();
    statuses.push(await page.textContent("#status"));
  }
  const whole = await replies();
  // The page itself presses the button, at the first sign of the reply: no race with a fast one.
  await page.evaluate((last) => {
    const begun = () => document.querySelectorAll("#chat > div")[last]?.textContent;
    new MutationObserver(() => begun() && document.all.stop.click()).observe(document.all.chat, {
      childList: true,
      characterData: true,
      subtree: true,
    });
  }, whole.length);
  await send(asked.turns.at(-1));
  await finished();
  const stopped = (await replies()).at(-1);
  const download = progress.filter((text) => / of .* MiB$/.test(text));
  return { replies: whole, statuses, stopped, progress: download };
}

const server = spawn(process.execPath, [join(site, "serve.mjs"), folder, "0"], {
  stdio: ["ignore", "pipe", "inherit"],
});
let browser;
try {
  const [url] = await once(server.stdout.setEncoding("utf8"), "data");
  browser = await chromium.launch({
    executablePath,
    // Tests run as root, where there is no sandbox; the software adapter stands in for a GPU.
    args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"],
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(0);
  page.on("pageerror", (error) => console.error(`page: ${error.stack ?? error}`));
  page.on("console", (message) => console.error(`page: ${message.text()}`));
  const answer = await { greedy, chat }[what](page, url.trim(), choice);
  console.log(JSON.stringify(answer));
} finally {
  await browser?.close();
  server.kill();
}
