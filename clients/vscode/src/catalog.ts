// Sessions in groups and families, as the view shows them. Nothing here knows of the editor.
import * as path from "node:path";
import type { SessionInfo } from "./types";

export type Sort = "lastActivity" | "created" | "title" | "size";

export interface Folder {
  readonly name: string;
  readonly path: string;
  /** Sessions that belong to it, by the daemon's word. */
  readonly holds: (sessionId: string) => boolean;
}

export interface Group {
  readonly id: string;
  readonly label: string;
  readonly description?: string;
  readonly open: boolean;
  readonly groups: readonly Group[];
  readonly sessions: readonly SessionInfo[];
}

/** `folders` are those of the workspace; what belongs to none of them stands under its project, latest first. */
export function arrange(
  sessions: Iterable<SessionInfo>,
  folders: readonly Folder[],
  sort: Sort,
  home: string,
): readonly Group[] {
  const all = sorted(sessions, sort);
  const here = folders.map((folder): Group => {
    const own = all.filter(({ sessionId }) => folder.holds(sessionId));
    const label = folders.length === 1 ? "This workspace" : folder.name;
    return { id: `folder:${folder.path}`, label, description: amount(own), open: true, groups: [], sessions: own };
  });
  const elsewhere = all.filter(({ sessionId }) => !folders.some((folder) => folder.holds(sessionId)));
  const projects = byProject(elsewhere, home);
  if (folders.length === 0) {
    return projects.map((group, k) => ({ ...group, open: k === 0 }));
  }
  if (projects.length === 0) {
    return here;
  }
  const label = "Other projects";
  return [...here, { id: "other", label, description: amount(elsewhere), open: false, groups: projects, sessions: [] }];
}

function byProject(sessions: readonly SessionInfo[], home: string): Group[] {
  const projects = new Map<string, SessionInfo[]>();
  for (const info of sessions) {
    const found = projects.get(info.cwd ?? "");
    if (found) {
      found.push(info);
    } else {
      projects.set(info.cwd ?? "", [info]);
    }
  }
  return [...projects].map(([cwd, own]) => ({
    id: `project:${cwd}`,
    label: cwd ? path.basename(cwd) || cwd : "No folder",
    description: [amount(own), cwd ? tilde(path.dirname(cwd), home) : ""].filter(Boolean).join("  "),
    open: false,
    groups: [],
    sessions: own,
  }));
}

function amount(sessions: readonly unknown[]): string {
  return sessions.length.toLocaleString("en");
}

export function tilde(folder: string, home: string): string {
  return folder === home || folder.startsWith(home + path.sep) ? "~" + folder.slice(home.length) : folder;
}

/** Of one group: the sessions without a parent in it under null, the others under their parents. */
export function families(sessions: readonly SessionInfo[]): ReadonlyMap<string | null, readonly SessionInfo[]> {
  const byId = new Map(sessions.map((info) => [info.sessionId, info]));
  const found = new Map<string | null, SessionInfo[]>([[null, []]]);
  for (const info of sessions) {
    const parent = hangs(info, byId) ? info.parentSessionId : null;
    const siblings = found.get(parent);
    if (siblings) {
      siblings.push(info);
    } else {
      found.set(parent, [info]);
    }
  }
  return found;
}

/** Whether a session stands under its parent; one that descends from itself does not. */
function hangs(info: SessionInfo, byId: ReadonlyMap<string, SessionInfo>): boolean {
  const seen = new Set([info.sessionId]);
  let parent = info.parentSessionId;
  if (parent === null || !byId.has(parent)) {
    return false;
  }
  while (parent !== null && byId.has(parent)) {
    if (seen.has(parent)) {
      return false;
    }
    seen.add(parent);
    parent = byId.get(parent)?.parentSessionId ?? null;
  }
  return true;
}

const collator = new Intl.Collator("en", { sensitivity: "base", numeric: true });

export function sorted(sessions: Iterable<SessionInfo>, sort: Sort): SessionInfo[] {
  return [...sessions].sort(order(sort));
}

/** Pinned ones first, then as asked for; a session counts as active when it was made, too. */
function order(sort: Sort): (a: SessionInfo, b: SessionInfo) => number {
  const keys: Record<Sort, (a: SessionInfo, b: SessionInfo) => number> = {
    lastActivity: (a, b) => latest(b) - latest(a),
    created: (a, b) => instant(b.createdAt) - instant(a.createdAt),
    title: (a, b) => collator.compare(a.title, b.title),
    size: (a, b) => b.sizeBytes - a.sizeBytes,
  };
  return (a, b) =>
    Number(b.pinned) - Number(a.pinned) ||
    keys[sort](a, b) ||
    instant(b.createdAt) - instant(a.createdAt) ||
    (a.sessionId < b.sessionId ? -1 : 1);
}

function latest(info: SessionInfo): number {
  return Math.max(instant(info.lastActivityAt), instant(info.createdAt));
}

function instant(stamp: string | null): number {
  return stamp === null ? 0 : Date.parse(stamp) || 0;
}
