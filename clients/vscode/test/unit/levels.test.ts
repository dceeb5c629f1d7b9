import assert from "node:assert/strict";
import { test } from "node:test";
import { Ask, Level, MOST, PAGE, Page, widened } from "../../src/levels";
import { row } from "./shapes";

/** A chain of rows as the daemon serves it, and what was asked for. */
class Chain {
  readonly asked: Ask[] = [];

  constructor(public total: number) {}

  fetch = (ask: Ask): Promise<Page> => {
    this.asked.push(ask);
    const middle = "around" in ask ? Number(ask.around) : 0;
    const start = "around" in ask ? Math.max(0, Math.min(middle - Math.floor(ask.count / 2), this.total - ask.count)) : ask.start;
    const stop = Math.min(this.total, start + ask.count);
    const rows = Array.from({ length: Math.max(0, stop - start) }, (_, k) => row({ id: String(start + k) }));
    return Promise.resolve({ total: this.total, start, rows, leafId: String(this.total - 1), ...("around" in ask && { selected: middle - start }) });
  };

  level(leaf = this.total - 1): Level {
    return new Level(this.fetch, () => String(leaf));
  }
}

const ids = ({ rows }: Page) => [rows[0]?.id, rows.at(-1)?.id];

test("a long level is shown around the leaf", async () => {
  const page = await new Chain(100_000).level(50_000).load();

  assert.equal(page.rows.length, PAGE);
  assert.ok(page.start <= 50_000 && page.start + PAGE > 50_000);
});

test("it is asked for once, and again when it is stale", async () => {
  const chain = new Chain(1000);
  const level = chain.level();

  await Promise.all([level.load(), level.load()]);
  await level.load();
  assert.equal(chain.asked.length, 1);

  level.stale();
  await level.load();
  assert.equal(chain.asked.length, 2);
});

test("rows that were shown stay in their place when others are appended", async () => {
  const chain = new Chain(100_000);
  const level = chain.level(50_000);
  const before = await level.load();

  chain.total += 10;
  level.stale();

  assert.deepEqual(ids(await level.load()), ids(before));
});

test("where the end is shown, what is appended is shown too", async () => {
  const chain = new Chain(1000);
  const level = chain.level();
  const before = await level.load();

  chain.total += 3;
  level.stale();
  const after = await level.load();

  assert.equal(after.start, before.start);
  assert.equal(after.rows.at(-1)?.id, "1002");
});

test("a level is widened on the side that was asked for, to what one answer holds at most", async () => {
  const chain = new Chain(100_000);
  const level = chain.level(50_000);
  const { start } = await level.load();

  await level.widen("earlier");
  const earlier = await level.load();
  assert.equal(earlier.start, start - PAGE);
  assert.equal(earlier.rows.length, 2 * PAGE);

  for (let k = 0; k < 20; k++) {
    await level.widen("later");
    await level.load();
  }
  assert.equal((await level.load()).rows.length, MOST);
});

test("widening stops at both ends", () => {
  assert.deepEqual(widened({ start: 200, count: 500 }, 1000, "earlier"), { start: 0, count: 700 });
  assert.deepEqual(widened({ start: 200, count: 500 }, 900, "later"), { start: 200, count: 700 });
});

test("an entry outside of the window is sought, and the window goes there", async () => {
  const chain = new Chain(100_000);
  const level = chain.level();
  await level.load();

  const found = await level.seek("7");

  assert.deepEqual([found?.row.id, found?.moved], ["7", true]);
  assert.ok((await level.load()).rows.some(({ id }) => id === "7"));
});

test("a window in its place is told from one that has gone to the entry", async () => {
  const level = new Chain(1000).level();

  assert.deepEqual((await level.seek("990"))?.moved, false);
  assert.deepEqual((await level.seek("7"))?.moved, true);
  assert.deepEqual((await level.seek("8"))?.moved, false);
});

test("a level that became shorter than where its window was is shown around the leaf", async () => {
  const chain = new Chain(2000);
  let leaf = 1999;
  const level = new Level(chain.fetch, () => String(leaf));
  await level.load();

  chain.total = 100;
  leaf = 99;
  level.stale();

  assert.deepEqual(ids(await level.load()), ["0", "99"]);
});

test("an answer that did not come is asked for again", async () => {
  let fails = true;
  const chain = new Chain(10);
  const level = new Level((ask) => (fails ? Promise.reject(new Error("lost")) : chain.fetch(ask)), () => null);

  await assert.rejects(level.load(), /lost/);
  fails = false;

  assert.equal((await level.load()).total, 10);
});
