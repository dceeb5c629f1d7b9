import assert from "node:assert/strict";
import { test } from "node:test";
import { arrange, families, tilde } from "../../src/catalog";
import { info } from "./shapes";

const HOME = "/home/mina";
const shop = info({ sessionId: "shop", title: "Shop", cwd: "/home/mina/shop", lastActivityAt: "2026-03-02T10:00:00.000Z" });
const site = info({ sessionId: "site", title: "site", cwd: "/home/mina/site", lastActivityAt: "2026-03-02T11:00:00.000Z" });
const old = info({ sessionId: "old", title: "Old", cwd: "/home/mina/site", lastActivityAt: "2026-01-02T11:00:00.000Z", sizeBytes: 9e6 });
const all = [shop, site, old];
const folder = { name: "shop", path: "/home/mina/shop", holds: (id: string) => id === "shop" };

test("the workspace's own sessions stand first, the others under their projects", () => {
  const [here, other] = arrange(all, [folder], "lastActivity", HOME);

  assert.deepEqual(here?.sessions, [shop]);
  assert.equal(here.label, "This workspace");
  assert.ok(here.open);
  assert.equal(other?.open, false);
  assert.deepEqual(other.groups.map(({ label, description }) => [label, description]), [["site", "2  ~"]]);
  assert.deepEqual(other.groups[0]?.sessions, [site, old]);
});

test("each folder of a workspace has a group with its name, one without sessions too", () => {
  const empty = { name: "docs", path: "/home/mina/docs", holds: () => false };

  const groups = arrange(all, [folder, empty], "lastActivity", HOME);

  assert.deepEqual(groups.map(({ label, description }) => [label, description]), [["shop", "1"], ["docs", "0"], ["Other projects", "2"]]);
});

test("without a folder the projects stand alone, the latest one open", () => {
  const groups = arrange(all, [], "lastActivity", HOME);

  assert.deepEqual(groups.map(({ label, open }) => [label, open]), [["site", true], ["shop", false]]);
});

test("sessions are sorted as asked for, pinned ones first", () => {
  const sorted = (sort: Parameters<typeof arrange>[2], sessions = all) =>
    arrange(sessions, [{ ...folder, holds: () => true }], sort, HOME)[0]?.sessions.map(({ sessionId }) => sessionId);

  assert.deepEqual(sorted("lastActivity"), ["site", "shop", "old"]);
  assert.deepEqual(sorted("title"), ["old", "shop", "site"]);
  assert.deepEqual(sorted("size"), ["old", "shop", "site"]);
  assert.deepEqual(sorted("lastActivity", [...all.slice(0, 2), { ...old, pinned: true }]), ["old", "site", "shop"]);
});

test("a session without a folder has a group too", () => {
  assert.equal(arrange([info({ cwd: null })], [], "title", HOME)[0]?.label, "No folder");
});

test("a child stands under its parent where the parent is there", () => {
  const child = info({ sessionId: "child", parentSessionId: "shop" });
  const orphan = info({ sessionId: "orphan", parentSessionId: "gone" });

  const found = families([shop, child, orphan]);

  assert.deepEqual(found.get(null), [shop, orphan]);
  assert.deepEqual(found.get("shop"), [child]);
});

test("sessions that descend from each other are all shown", () => {
  const one = info({ sessionId: "one", parentSessionId: "two" });
  const two = info({ sessionId: "two", parentSessionId: "one" });
  const below = info({ sessionId: "below", parentSessionId: "one" });
  const self = info({ sessionId: "self", parentSessionId: "self" });

  const found = [...families([one, two, below, self]).values()].flat();

  assert.deepEqual(new Set(found), new Set([one, two, below, self]));
  assert.ok(families([one, two, below, self]).get(null)?.includes(one));
});

test("the home is written short, a folder that only begins like it is not", () => {
  assert.deepEqual(["/home/mina", "/home/mina/a", "/home/minas"].map((path) => tilde(path, HOME)), ["~", "~/a", "/home/minas"]);
});
