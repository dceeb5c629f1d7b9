// A plugin of the real dsh in the place of its headless runner: commands on stdin, answers and events on stdout.

import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export const name = "test-driver";
export const inject = ["agentDefaultModel", "agents", "sessions", "sessionPersistence"];

const send = (record) => process.stdout.write(`${JSON.stringify(record)}\n`);

async function agentOf(ctx, { modules, resume }) {
  const { installModelSelection } = await import(`${pathToFileURL(modules)}/@deepseek-ai/dsh-agent/lib/index.js`);
  await ctx.get("loader")?.await();
  const selection = ctx.agentDefaultModel.currentSelection();
  const { provider, model } = selection;
  const options = {
    agentOptions: { provider, model },
    setup: (agent) => void installModelSelection(agent, { current: selection, assembled: undefined }),
  };
  const { agent } = await (resume
    ? ctx.agents.resume({ resumeSessionId: resume, ...options })
    : ctx.agents.create({ sessionId: `session-${randomUUID()}`, meta: { cwd: process.cwd() }, ...options }));
  return agent;
}

export async function apply(ctx, config) {
  const { createUserMessage } = await import(`${pathToFileURL(config.modules)}/@deepseek-ai/dsh-llm/lib/index.js`);
  const opening = agentOf(ctx, config);
  let running = 0;

  const prompt = async (agent, text) => {
    running += 1;
    agent.followup(createUserMessage({ content: [{ type: "text", text }], source: { kind: "user" } }));
    await agent.whenIdle();
    await ctx.sessions.flush(agent.session);
    running -= 1;
    send({ type: "idle", seq: agent.session.seq });
  };

  const commands = {
    get_state: ({ session }) => ({
      sessionId: session.id,
      sessionFile: ctx.sessionPersistence.locate(session.header).path,
      isStreaming: running > 0,
      seq: session.seq,
    }),
    prompt: (agent, { message }) => void prompt(agent, message),
    get_messages: ({ session }) => session.deriveMessages(),
    fork: async ({ session }, { boundary, child }) => {
      const forked = ctx.sessions.fork(session.id, boundary, child);
      await ctx.sessions.flush(forked);
      return ctx.sessionPersistence.locate(forked.header).path;
    },
  };

  const lines = createInterface({ input: process.stdin });
  lines.on("close", () => ctx.appExit(0));
  lines.on("line", async (line) => {
    const { id, type, ...params } = JSON.parse(line);
    try {
      send({ type: "response", id, success: true, data: await commands[type](await opening, params) });
    } catch (error) {
      send({ type: "response", id, success: false, error: String(error) });
    }
  });
}
