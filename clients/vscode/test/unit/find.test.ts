import assert from "node:assert/strict";
import { test } from "node:test";
import { candidates, retryDelay } from "../../src/find";

const places = { setting: "", searchPath: "/usr/bin:/opt/bin", folders: ["/code/a", "/code/b"], home: "/home/mina" };

test("the setting alone counts where it is set", () => {
  assert.deepEqual(candidates({ ...places, setting: "/opt/dshd" }), ["/opt/dshd"]);
  assert.deepEqual(candidates({ ...places, setting: "~/bin/dshd" }), ["/home/mina/bin/dshd"]);
  assert.deepEqual(candidates({ ...places, setting: "tools/dshd" }), ["/code/a/tools/dshd", "/code/b/tools/dshd"]);
});

test("then the PATH, then the workspace's own environments, then the home", () => {
  assert.deepEqual(candidates(places), [
    "/usr/bin/dshd", "/opt/bin/dshd", "/code/a/.venv/bin/dshd", "/code/b/.venv/bin/dshd", "/home/mina/.local/bin/dshd",
  ]);
});

test("a folder of the PATH that depends on where one is does not count", () => {
  const found = candidates({ ...places, searchPath: ".:bin::/usr/bin", folders: [] });

  assert.deepEqual(found, ["/usr/bin/dshd", "/home/mina/.local/bin/dshd"]);
});

test("the pauses between attempts double up to ten seconds", () => {
  assert.deepEqual([0, 1, 2, 6, 60].map(retryDelay), [250, 500, 1000, 10_000, 10_000]);
});
