import assert from "node:assert/strict";
import { test } from "node:test";
import { linkTo, parseLink } from "../../src/refs";

test("a link gives back what it was made of, whatever an id is made of", () => {
  for (const ref of [{ sessionId: "019cadd3" }, { sessionId: "my.id-1@a b", entryId: "a~2" }, { sessionId: "한국어", entryId: "7" }]) {
    const url = new URL(linkTo(ref, "vscode", "dsh-daemon.dsh-sessions"));

    assert.equal(url.protocol, "vscode:");
    assert.equal(url.host, "dsh-daemon.dsh-sessions");
    assert.deepEqual(parseLink(decodeURIComponent(url.pathname), decodeURIComponent(url.hash.slice(1))), ref);
  }
});

test("what is no link of ours names nothing", () => {
  for (const path of ["", "/", "/session/", "/session/a/b", "/sessions/a", "/other"]) {
    assert.equal(parseLink(path, "x"), undefined, path);
  }
});
