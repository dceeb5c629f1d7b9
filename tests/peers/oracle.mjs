// Shared by pi_oracle.mjs and omp_oracle.ts: a JSON list of requests on stdin, the list of answers on stdout.

const attempt = (make) => {
  try {
    return make();
  } catch (error) {
    return { error: String(error) };
  }
};

function preorder(roots) {
  const ids = [];
  const stack = [...roots].reverse();
  while (stack.length > 0) {
    const node = stack.pop();
    ids.push(node.entry.id);
    for (let i = node.children.length - 1; i >= 0; i--) stack.push(node.children[i]);
  }
  return ids;
}

function contextAt(peer, manager, leafId) {
  if (leafId === null) manager.resetLeaf();
  else manager.branch(leafId);
  const context = manager.buildSessionContext();
  const model = context.model ? `${context.model.provider}/${context.model.modelId}` : (context.models?.default ?? null);
  return { ...context, model, llm: peer.convertToLlm(context.messages) };
}

async function load(peer, { path, cwd, everywhere }) {
  let manager;
  try {
    manager = await peer.open(path, cwd);
  } catch (error) {
    return { error: String(error) };
  }
  const entries = manager.getEntries();
  const leafId = manager.getLeafId();
  const parents = new Set(entries.map((entry) => entry.parentId));
  const tips = [...new Set(entries.map((entry) => entry.id))].filter((id) => !parents.has(id));
  const each = (ids, make) => Object.fromEntries(ids.map((id) => [id, attempt(() => make(id))]));
  const labels = entries.map((entry) => [entry.id, manager.getLabel(entry.id)]).filter(([, label]) => label !== undefined);
  return {
    header: manager.getHeader(),
    name: manager.getSessionName() ?? null,
    entries: entries.map(({ id, type, parentId }) => ({ id, type, parentId })),
    leafId,
    tips,
    paths: each(tips, (id) => manager.getBranch(id).map((entry) => entry.id)),
    labels: Object.fromEntries(labels),
    roots: attempt(() => manager.getTree().map((node) => node.entry.id)),
    tree: attempt(() => preorder(manager.getTree())),
    context: attempt(() => contextAt(peer, manager, leafId)),
    contexts: each(everywhere ? entries.map((entry) => entry.id) : tips, (id) => contextAt(peer, manager, id)),
  };
}

function fillIn(value, results) {
  if (typeof value === "string" && value.startsWith("$") && value.slice(1) in results) return results[value.slice(1)];
  if (Array.isArray(value)) return value.map((item) => fillIn(item, results));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fillIn(item, results)]));
}

async function script(peer, { path, cwd, ops }) {
  const manager = await peer.open(path, cwd);
  const results = {};
  for (const [index, { op, args = [], as }] of ops.entries()) {
    const target = typeof manager[op] === "function" ? manager : manager.constructor;
    if (typeof target[op] !== "function") return { error: `op ${index}: no method ${op}` };
    try {
      const result = await target[op](...fillIn(args, results));
      results[as ?? index] = result instanceof manager.constructor ? result.getSessionFile() : (result ?? null);
    } catch (error) {
      return { error: `op ${index} ${op}: ${error}` };
    }
  }
  const answer = { file: manager.getSessionFile(), leafId: manager.getLeafId(), results };
  await peer.close?.(manager);
  return answer;
}

export async function serve(peer) {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const answers = [];
  for (const request of JSON.parse(Buffer.concat(chunks).toString("utf8"))) {
    answers.push(await (request.ops ? script : load)(peer, request));
  }
  await new Promise((done) => process.stdout.write(JSON.stringify(answers), done));
}
