import assert from "node:assert/strict";
import { test } from "node:test";
import { candidates, retryDelay } from "../../src/find";

const places = { setting: "", searchPath: "/usr/bin:/opt/bin", folders: ["/work/a", "/work/b"], home: "/home/mina" };

test("the setting alone counts where it is set", () => {
  assert.deepEqual(candidates({ ...places, setting: "/opt/dshd" }), ["/opt/dshd"]);
  assert.deepEqual(candidates({ ...places, setting: "~/bin/dshd" }), ["/home/mina/bin/dshd"]);
  assert.deepEqual(candidates({ ...places, setting: "tools/dshd" }), ["/work/a/tools/dshd", "/work/b/tools/dshd"]);
});

test("then the PATH, then the workspace's own environments, then the home", () => {
  assert.deepEqual(candidates(places), [
    "/usr/bin/dshd", "/opt/bin/dshd", "/work/a/.venv/bin/dshd", "/work/b/.venv/bin/dshd", "/home/mina/.local/bin/dshd",
  ]);
});

test("a folder of the PATH that depends on where one is does not count", () => {
  const found = candidates({ ...places, searchPath: ".:bin::/usr/bin", folders: [] });

  assert.deepEqual(found, ["/usr/bin/dshd", "/home/mina/.local/bin/dshd"]);
});

test("the pauses between attempts double up to ten seconds", () => {
  assert.deepEqual([0, 1, 2, 6, 60].map(retryDelay), [250, 500, 1000, 10_000, 10_000]);
});
