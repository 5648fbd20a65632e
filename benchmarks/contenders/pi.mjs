// pi's agent under Node: one Agent a session, its events listened to, a line of JSON appended for each message.
// It measures itself as benchmarks/measure.py does: `node pi.mjs sessions|idle WORKLOAD` prints one sample.

import { appendFile, readFile } from "node:fs/promises";
import { join } from "node:path";
import { Agent } from "@mariozechner/pi-agent-core";
import { Type } from "@mariozechner/pi-ai";

const MODEL_NAME = "gpt-4.1-mini";
const PROMPT = "How many blue mugs are left?";
const WARM_UP = 3;
const PAUSE_MS = 50;
const QUIET = 0.1;
const GLANCE_MS = 100;

const [how, text] = process.argv.slice(2);
const workload = JSON.parse(text);
const expected = Array.from({ length: workload.chunks }, (_, number) => ` word${number}`)
  .join("")
  .repeat(2);

const model = {
  id: MODEL_NAME,
  name: MODEL_NAME,
  api: "openai-completions",
  provider: "openai",
  baseUrl: workload.url,
  reasoning: false,
  input: ["text"],
  cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
  contextWindow: 128000,
  maxTokens: 4096,
};

let calls = 0;
const stock = {
  name: "stock",
  label: "Stock",
  description: "Units of a product in stock.",
  parameters: Type.Object({ product: Type.String() }),
  execute: async (_id, { product }) => {
    calls += 1;
    return { content: [{ type: "text", text: String(product.length) }], details: {} };
  },
};

const make = (messages) =>
  new Agent({ initialState: { systemPrompt: "", model, tools: [stock], messages }, getApiKey: () => "none" });

async function load(file) {
  try {
    return (await readFile(file, "utf8")).split("\n").filter(Boolean).map(JSON.parse);
  } catch (error) {
    if (error.code === "ENOENT") return [];
    throw error;
  }
}

async function run(name, hear) {
  const file = join(workload.folder, `${name}.jsonl`);
  const agent = make(await load(file));
  agent.subscribe(async (event) => {
    if (event.type === "message_update" && event.assistantMessageEvent.type === "text_delta") {
      hear(event.assistantMessageEvent.delta);
    } else if (event.type === "message_end") {
      await appendFile(file, `${JSON.stringify(event.message)}\n`);
    }
  });
  await agent.prompt(PROMPT);
  if (agent.state.errorMessage) throw new Error(agent.state.errorMessage);
}

async function runOne(name, seen) {
  const pieces = [];
  const start = performance.now();
  let first;
  await run(name, (piece) => {
    first ??= performance.now();
    pieces.push(piece);
  });
  if (pieces.join("") !== expected) throw new Error(`session ${name} gave ${pieces.join("").length} characters`);
  seen.first.push(first - start);
  seen.whole.push(performance.now() - start);
}

async function runAll(names) {
  const seen = { first: [], whole: [], peak: 0 };
  const before = calls;
  const glance = () => (seen.peak = Math.max(seen.peak, process.memoryUsage.rss()));
  const timer = setInterval(glance, GLANCE_MS);
  const waiting = [...names];
  const work = async () => {
    for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
      await runOne(name, seen);
      glance();
    }
  };
  await Promise.all(Array.from({ length: workload.at_once || names.length }, work));
  clearInterval(timer);
  if (calls - before !== names.length) throw new Error(`the tool ran ${calls - before} times`);
  return seen;
}

function cpu() {
  const { user, system } = process.cpuUsage();
  return user + system;
}

async function settle() {
  for (let busy = 1; busy > QUIET; ) {
    const before = cpu();
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    busy = (cpu() - before) / (PAUSE_MS * 1000);
  }
}

const median = (values) => {
  const sorted = values.toSorted((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};
const names = (prefix, number) => Array.from({ length: number }, (_, index) => `${prefix} ${index}`);

async function measure() {
  await runAll(names("warm", WARM_UP));
  await settle();
  globalThis.gc?.();
  const [memory, spent, start] = [process.memoryUsage.rss(), cpu(), performance.now()];
  const seen = await runAll(names("session", workload.sessions));
  const seconds = (performance.now() - start) / 1000;
  await settle();
  return {
    cpu_us_per_chunk: (cpu() - spent) / (2 * workload.chunks * workload.sessions),
    sessions_per_s: workload.sessions / seconds,
    rss_kb_per_session: (seen.peak - memory) / 1024 / workload.sessions,
    first_ms: median(seen.first),
    session_ms: median(seen.whole),
  };
}

function measureIdle() {
  const kept = names("warm", WARM_UP).map(() => make([]));
  globalThis.gc?.();
  const [memory, spent] = [process.memoryUsage.rss(), cpu()];
  for (let number = 0; number < workload.sessions; number += 1) kept.push(make([]));
  const took = cpu() - spent;
  globalThis.gc?.();
  const grown = process.memoryUsage.rss() - memory;
  if (kept.length !== workload.sessions + WARM_UP) throw new Error("not all are kept");
  return { rss_kb_per_session: grown / 1024 / workload.sessions, cpu_us_per_session: took / workload.sessions };
}

const ways = { sessions: measure, idle: measureIdle };
process.stdout.write(JSON.stringify(await ways[how]()), () => process.exit(0));
