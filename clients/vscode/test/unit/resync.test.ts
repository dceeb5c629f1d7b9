import assert from "node:assert/strict";
import { test } from "node:test";
import { step } from "../../src/resync";

const mine = { epoch: "e1", revision: 7 };
const change = { epoch: "e1", fromRevision: 7, revision: 8 };

test("the next change applies", () => {
  assert.equal(step(mine, change), "apply");
});

test("a change that is known already is left alone", () => {
  assert.equal(step(mine, { ...change, fromRevision: 5, revision: 7 }), "ignore");
});

test("after a gap the session is asked for since what is known", () => {
  assert.equal(step(mine, { ...change, fromRevision: 9, revision: 10 }), "reopen");
  assert.equal(step(mine, { ...change, fromRevision: 5, revision: 9 }), "reopen");
  assert.equal(step(mine, { ...change, resync: true }), "reopen");
});

test("another epoch begins afresh, whatever its numbers are", () => {
  assert.equal(step(mine, { epoch: "e2", fromRevision: 7, revision: 8 }), "afresh");
  assert.equal(step(mine, { epoch: "e2", fromRevision: 0, revision: 1, resync: true }), "afresh");
});
