import assert from "node:assert/strict";
import { test } from "node:test";
import { rowDescription, rowIcon, rowLabel, rowSpoken, sessionDescription, sessionFacts, size } from "../../src/rows";
import { info, row } from "./shapes";

const NOW = Date.parse("2026-03-02T12:00:00.000Z");

test("a row reads as the daemon gives it, its label first", () => {
  assert.deepEqual(rowLabel(row()), { text: "Fix it", highlights: [] });
  assert.equal(rowLabel(row({ label: "before" })).text, "⚑ before  Fix it");
});

test("what a row's words matched is in its place behind the label", () => {
  const { text, highlights } = rowLabel(row({ text: "🙂 Fix it", label: "x", matches: [[2, 5]] }));

  assert.deepEqual(highlights.map((range) => text.slice(...range)), ["Fix"]);
});

test("beside a row stand its folded rows, its flags, the leaf and its age", () => {
  assert.equal(rowDescription(row({ hidden: 1234, flags: ["error", "inherited"], leaf: true }), NOW), "(1,234)  error  ← leaf  2 h ago");
  assert.equal(rowDescription(row({ timestamp: null }), NOW), "");
});

test("a screen reader hears who speaks, what, and where it stands", () => {
  assert.equal(rowSpoken(row({ label: "before", leaf: true }), NOW), "user, Fix it, ⚑ before, leaf, 2 h ago");
  assert.equal(rowSpoken(row({ active: false, hidden: 2 }), NOW), "user, Fix it, other branch, 2 rows folded, 2 h ago");
  assert.equal(rowSpoken(row({ kind: "tool", text: "[read: a.ts]", timestamp: null }), NOW), "[read: a.ts]");
});

test("every kind has an icon; an abandoned row is dim and a failed one is marked", () => {
  const kinds = [
    "user", "assistant", "tool", "bash", "summary", "compaction", "custom", "label", "model", "thinking", "mode", "title", "turn",
    "step", "system", "other",
  ] as const;

  assert.equal(new Set(kinds.map((kind) => rowIcon(row({ kind })).name)).size, kinds.length);
  assert.equal(rowIcon(row({ active: false })).color, "list.deemphasizedForeground");
  assert.equal(rowIcon(row({ flags: ["error"] })).color, "errorForeground");
});

test("a session says its agent, age and size, and what is not as usual", () => {
  assert.equal(sessionFacts(info(), NOW), "pi · 2 h ago · 214 entries");
  const cut = info({ tail: "pendingTool", health: "recovered", pinned: true, archived: true });
  assert.equal(sessionDescription(cut, NOW), "tool pending · recovered · pinned · archived · 2 h ago · pi");
  const running = info({ live: { client: "pi", status: "running", certain: false }, tail: "open" });
  assert.equal(sessionDescription(running, NOW), "perhaps running · 2 h ago · pi");
});

test("sizes have three digits at most", () => {
  assert.deepEqual([0, 999, 1000, 99_949, 1_234_567, 5e12].map(size), ["0 B", "999 B", "1.0 kB", "100 kB", "1.2 MB", "5000 GB"]);
});
