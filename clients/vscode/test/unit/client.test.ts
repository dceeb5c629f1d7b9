import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, TestContext } from "node:test";
import { CancellationTokenSource } from "vscode-jsonrpc/node";
import { Client, State } from "../../src/client";
import { Fault } from "../../src/fault";

const STAND_IN = join(__dirname, "stand-in.js");

interface Place {
  readonly client: Client;
  readonly states: State["kind"][];
  /** When the program was started, in milliseconds. */
  readonly starts: () => number[];
  readonly reached: (kind: State["kind"], times?: number) => Promise<void>;
  readonly behave: (behaviour: string) => void;
}

/** A client of the stand-in, which ends with the test. */
function place(context: TestContext, behaviour = "", patienceMs = 5000): Place {
  const folder = mkdtempSync(join(tmpdir(), "dsh-client-"));
  const program = join(folder, "dshd");
  const started = join(folder, "starts");
  writeFileSync(started, "");
  const behave = (how: string) => {
    writeFileSync(program, `#!/bin/sh\nexec "${process.execPath}" "${STAND_IN}" "${started}" ${how}\n`, { mode: 0o755 });
  };
  behave(behaviour);
  const client = new Client({
    find: () => Promise.resolve(program),
    environment: () => process.env,
    readOnly: () => false,
    version: "0",
    patienceMs,
    log: () => undefined,
  });
  const states: State["kind"][] = [];
  client.onState(({ kind }) => states.push(kind));
  const starts = () => readFileSync(started, "utf8").split("\n").filter(Boolean).map(Number);
  const reached = async (kind: State["kind"], times = 1) => {
    while (states.filter((one) => one === kind).length < times) {
      await new Promise<void>((resolve) => {
        const heard = client.onState(() => {
          heard.dispose();
          resolve();
        });
      });
    }
  };
  context.after(() => {
    client.dispose();
    rmSync(folder, { recursive: true, force: true });
  });
  return { client, states, starts, reached, behave };
}

const OPTIONS = { timeout: 20_000 };

test("nothing is started before something is asked for", OPTIONS, async (context) => {
  const { client, starts } = place(context);

  assert.equal(client.state.kind, "idle");
  assert.deepEqual(starts(), []);
  await client.request("session/list", {});
  assert.equal(starts().length, 1);
});

test("a method that the daemon does not know is refused in words", OPTIONS, async (context) => {
  const { client } = place(context);

  await assert.rejects(client.request("session/turns", { sessionId: "a" }), (error) => {
    assert.ok(error instanceof Fault);
    assert.match(error.message, /version 9\.9.*session\/turns.*update/);
    return true;
  });
});

test("progress is reported and a cancelled request is answered", OPTIONS, async (context) => {
  const { client } = place(context);
  const source = new CancellationTokenSource();
  const heard: unknown[] = [];

  const answer = await client.request("session/navigate", { sessionId: "a", targetId: "b" }, source.token, ({ message }) => {
    heard.push(message);
    source.cancel();
  });

  assert.deepEqual(heard, ["half"]);
  assert.equal(answer.outcome, "cancelled");
});

test("a program that ends at once is tried again, more and more slowly, and its words are told", OPTIONS, async (context) => {
  const { client, starts, reached } = place(context, "dies");

  client.start();
  await reached("failed", 3);

  const [first = 0, second = 0, third = 0] = starts();
  assert.ok(third - second > second - first, `${second - first} ms, then ${third - second} ms`);
  assert.equal("message" in client.state && client.state.message, "no room on the disk");
  await assert.rejects(client.request("session/list", {}), /no room on the disk/);
});

test("an attempt that is waited for is made at once when a person asks", OPTIONS, async (context) => {
  const { client, reached, behave } = place(context, "dies");
  client.start();
  await reached("failed", 3);
  behave("");

  const asked = Date.now();
  client.retry();
  await reached("ready");

  assert.ok(Date.now() - asked < 1500);
});

test("a daemon of another version is not tried again by itself", OPTIONS, async (context) => {
  const { client, states, starts, reached } = place(context, "older");

  client.start();
  await reached("mismatch");
  await new Promise((resolve) => setTimeout(resolve, 700));

  assert.equal(starts().length, 1);
  assert.deepEqual(states, ["connecting", "mismatch"]);
  assert.match("message" in client.state ? client.state.message : "", /too old/);
});

test("after a loss the sessions that are followed are asked for again, afresh where the epoch is another", OPTIONS, async (context) => {
  const { client, starts, reached } = place(context);
  const first = await client.open("a");

  const changed = new Promise<string>((resolve) => client.onSession(resolve));
  client.reconnect();
  await reached("ready", 2);

  assert.equal(await changed, "a");
  assert.equal(starts().length, 2);
  assert.equal(first.epoch, "e1");
  assert.equal(client.session("a")?.epoch, "e2");
});

test("a daemon that does not even introduce itself is not waited for for ever", OPTIONS, async (context) => {
  const { client, reached } = place(context, "mute", 200);

  client.start();
  await reached("failed");

  assert.match("message" in client.state ? client.state.message : "", /does not answer/);
});

test("a program that is no daemon of ours is said to be one", OPTIONS, async (context) => {
  const { client, reached } = place(context, "stranger");

  client.start();
  await reached("failed");

  assert.match("message" in client.state ? client.state.message : "", /is not dsh-daemon/);
});

test("that a daemon does not answer is told, and that it does so again", OPTIONS, async (context) => {
  const { client } = place(context, "slow", 1000);
  const heard: boolean[] = [];
  client.onSilence((silent) => heard.push(silent));

  const { items } = await client.request("session/list", {});

  assert.deepEqual(items, []);
  assert.deepEqual(heard, [true, false]);
  assert.equal(client.silent, false);
});

test("a daemon that does not stop is killed where one agrees, and another one is started", OPTIONS, async (context) => {
  const { client, starts, reached } = place(context, "stuck", 700);
  client.start();
  await reached("ready");
  const asked: number[] = [];

  await client.restart((pid) => {
    asked.push(pid);
    return Promise.resolve(true);
  });
  await reached("ready", 2);

  assert.equal(asked.length, 1);
  assert.equal(starts().length, 2);
});

test("a change that is told before the state that it follows is not lost", OPTIONS, async (context) => {
  const { client } = place(context, "overtaking");

  await client.open("a");

  assert.equal(client.session("a")?.leafId, "later");
  assert.equal(client.session("a")?.revision, 2);
});

test("a title and abilities that the list tells of count for a session that is followed", OPTIONS, async (context) => {
  const { client } = place(context);
  await client.open("a");
  const changed = new Promise<string>((resolve) => client.onSession(resolve));

  await client.request("catalog/subscribe", {});

  assert.equal(await changed, "a");
  assert.equal(client.session("a")?.title, "second");
  assert.equal(client.session("a")?.can.summarize, false);
  assert.equal(client.session("a")?.leafId, "first");
});

test("what can be done with a session is asked anew, and it is not followed for that", OPTIONS, async (context) => {
  const { client } = place(context);

  assert.equal((await client.can("a")).summarize, true);

  assert.equal(client.session("a"), undefined);
});

test("a disposed client starts nothing and leaves no process", OPTIONS, async (context) => {
  const { client, starts, reached } = place(context);
  client.start();
  await reached("ready");

  client.dispose();
  client.retry();
  await new Promise((resolve) => setTimeout(resolve, 500));

  assert.equal(starts().length, 1);
});
