// Rows and sessions for the tests, with what each test does not care about filled in.
import type { Row, SessionInfo } from "../../src/types";

export function row(more: Partial<Row> = {}): Row {
  return {
    id: "a", parentId: null, depth: 0, gutter: "", kind: "user", type: "message", text: "Fix it",
    timestamp: "2026-03-02T10:00:00.000Z", active: true, leaf: false, children: 1, ...more,
  };
}

export function info(more: Partial<SessionInfo> = {}): SessionInfo {
  return {
    sessionId: "s", path: "/s.jsonl", format: "pi", version: 3, cwd: "/p", cwdExists: true, title: "Fix the login",
    titleSource: "user", createdAt: null, lastActivityAt: "2026-03-02T10:00:00.000Z", sizeBytes: 1234, scanned: true,
    entryCount: 214, tail: "done", parentSessionId: null, archived: false, pinned: false, health: "ok", live: null,
    can: {
      append: true, navigate: true, branch: true, fork: true, label: true, rename: true, resume: false, launch: true,
      summarize: false,
    },
    ...more,
  };
}
