// A program in the place of `dshd stdio`, for what the real one does not do when it is asked to. Its first argument is
// a file: each start adds a line to it, and each line is one more attempt.
import { appendFileSync, readFileSync } from "node:fs";
import {
  CancellationToken,
  ProgressType,
  ResponseError,
  StreamMessageReader,
  StreamMessageWriter,
  createMessageConnection,
} from "vscode-jsonrpc/node";

const [starts = "", behaviour = ""] = process.argv.slice(2);
const later = (answer: object, ms: number) => new Promise((resolve) => setTimeout(resolve, ms, answer));
appendFileSync(starts, `${Date.now()}\n`);
const attempt = readFileSync(starts, "utf8").split("\n").length - 1;
const connection = createMessageConnection(new StreamMessageReader(process.stdin), new StreamMessageWriter(process.stdout));

connection.onRequest("initialize", () => {
  if (behaviour === "mute") {
    return new Promise(() => undefined);
  }
  if (behaviour === "stranger") {
    return { capabilities: {} };
  }
  if (behaviour === "older") {
    return new ResponseError(1024, "versions differ", { kind: "versionMismatch", daemon: 0, client: 1, action: "updateDaemon" });
  }
  const dsh = { methods: ["session/open", "catalog/subscribe", "session/list", "session/navigate"], formats: ["pi"], daemon: { pid: process.pid } };
  return { serverInfo: { name: "dsh-daemon", version: "9.9" }, capabilities: { experimental: { dsh } } };
});
connection.onRequest("session/open", async (params: { sessionId: string }) => {
  const { sessionId } = params;
  const epoch = `e${attempt}`;
  if (behaviour === "overtaking") {
    const change = { fromRevision: attempt, revision: attempt + 1, leafId: "later", openTurn: null };
    await connection.sendNotification("session/changed", { sessionId, epoch, ...change });
  }
  return { ...params, title: "first", can: { summarize: true }, epoch, revision: attempt, attempt, leafId: "first" };
});
connection.onRequest("catalog/subscribe", async () => {
  const info = { sessionId: "a", title: "second", can: { summarize: false } };
  await connection.sendNotification("catalog/changed", { upserts: [info], removed: [] });
  return { items: [] };
});
connection.onRequest("session/list", () => (behaviour === "slow" ? later({ items: [] }, 3500) : { items: [] }));
connection.onRequest("daemon/ping", () => later({ pid: process.pid }, 1500));
connection.onRequest("daemon/stop", () => (behaviour === "stuck" ? new Promise(() => undefined) : {}));
connection.onRequest("session/navigate", async ({ workDoneToken }: { workDoneToken: string }, token: CancellationToken) => {
  const cancelled = new Promise((resolve) => token.onCancellationRequested(resolve));
  await connection.sendProgress(new ProgressType<unknown>(), workDoneToken, { kind: "report", message: "half" });
  await cancelled;
  return { outcome: "cancelled" };
});

if (behaviour === "dies") {
  process.stderr.write("no room on the disk\n");
  process.exitCode = 1;
} else {
  connection.listen();
  process.stdin.on("end", () => process.exit());
}
