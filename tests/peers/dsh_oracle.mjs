// A JSON list of requests on stdin, the list of answers on stdout; dsh's own packages are in the folder given.

import { pathToFileURL } from "node:url";

const scope = `${pathToFileURL(process.argv[2])}/@deepseek-ai`;
const load = (name) => import(`${scope}/${name}/lib/index.js`);
const { Context } = await load("cordis");
const { default: SessionStore, Session } = await load("dsh-session");
const { default: Persistence } = await load("dsh-session-persistence-jsonl");

/** Run `use(sessions, persistence)` in a dsh of its own that has nothing but the sessions of `root`. */
async function within({ root, compression, packChunks = true }, use) {
  const app = new Context();
  try {
    await app.plugin(SessionStore);
    await app.plugin(Persistence, { root, compression, packChunks });
    return await new Promise((resolve, reject) => {
      app.inject(["sessions", "sessionPersistence"], (ctx) => {
        Promise.resolve(use(ctx.sessions, ctx.sessionPersistence)).then(resolve, reject);
      });
    });
  } finally {
    await app.fiber.dispose();
  }
}

const attempt = async (make) => {
  try {
    return await make();
  } catch (error) {
    return { error: String(error?.message ?? error), kind: error?.name };
  }
};

const copy = (value) => structuredClone(value);

function history(id, header, events) {
  const session = Session.fromRestore(id, copy(events), copy(header));
  return { surface: [...session.surface.nodes], messages: session.deriveMessages() };
}

const list = (request) =>
  within(request, async (_, stored) => (await stored.listSnapshots()).map(({ header }) => header.id).sort());

const read = ({ id }) => async (_, stored) => {
  const { meta, events } = await stored.readFrom(id, 0);
  return { header: meta, events, ...history(id, meta, events) };
};

const inspect = ({ id }) => async (_, stored) => {
  const { meta, events } = await stored.inspect(id);
  return { events, ...history(id, meta, events) };
};

/** Opens the session as the one to go on with, and closes it again; dsh writes what it must for that. */
const resume = ({ id }) => async (sessions, stored) => {
  using prepared = await stored.prepare(id);
  const { session } = prepared;
  const leave = sessions.enter(session);
  sessions.announce(session);
  await sessions.flush(session);
  leave();
  return { events: session.events, messages: session.deriveMessages() };
};

const raw = ({ id }) => async (_, stored) => (await stored.readRaw(id)).content;

async function look(request) {
  const at = (make) => attempt(() => within(request, make(request)));
  const answer = {
    listed: await attempt(() => list(request)),
    raw: await at(raw),
    stored: await at(read),
    inspected: await at(inspect),
  };
  if (!request.resume) return answer;
  return { ...answer, resumed: await at(resume), after: await at(read), rawAfter: await at(raw) };
}

/** New sessions: `write` stores each batch durably, `fork` is dsh's own, through its store of live sessions. */
async function make({ ops, ...place }) {
  for (const op of ops) {
    await within(place, async (sessions, stored) => {
      if (op.op === "write") {
        await stored.create({ version: 0, ...op.header });
        for (const batch of op.batches) await stored.append(op.header.id, batch);
        return;
      }
      using prepared = await stored.prepare(op.id);
      sessions.enter(prepared.session);
      sessions.announce(prepared.session);
      await sessions.flush(sessions.fork(op.id, op.boundary ?? undefined, op.child));
    });
  }
  return {};
}

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const kinds = { look, list: async (request) => ({ listed: await list(request) }), make };
const answers = [];
for (const request of JSON.parse(Buffer.concat(chunks).toString("utf8"))) {
  answers.push(await attempt(() => kinds[request.kind](request)));
}
await new Promise((done) => process.stdout.write(JSON.stringify(answers), done));
