// How a row and a session read in a view: words, marks and icons. Nothing here knows of the editor.
import type { Kind, Row, SessionInfo } from "./types";
import { age, oneLine, plural, utf16Ranges } from "./text";

export interface Icon {
  readonly name: string;
  readonly color?: string;
}

export type Tint = "active" | "inactive" | "leaf" | "failed";

const ICONS: Readonly<Record<Kind, string>> = {
  user: "account",
  assistant: "hubot",
  tool: "tools",
  bash: "terminal",
  summary: "note",
  compaction: "fold",
  custom: "symbol-event",
  label: "tag",
  model: "chip",
  thinking: "lightbulb",
  mode: "settings",
  title: "symbol-string",
  turn: "milestone",
  step: "debug-step-over",
  system: "gear",
  other: "circle-small",
};

/** What is worth a word beside the text; the others are told by the icon. */
const FLAGS = new Set(["error", "aborted", "interrupted", "dangling", "orphan", "shadowed"]);

/** The row's text as it is shown: its label stands first, since what stands behind a long text is cut off. */
export function rowLabel(row: Row): { text: string; highlights: [number, number][] } {
  const text = oneLine(row.text);
  const flag = row.label === undefined ? "" : `⚑ ${oneLine(row.label)}  `;
  const ranges = text === row.text ? utf16Ranges(text, row.matches ?? []) : [];
  return { text: flag + text, highlights: ranges.map(([from, to]) => [from + flag.length, to + flag.length]) };
}

/** `(34)`, flags, `← leaf`, `2 h ago`: what stands behind the text where there is room. */
export function rowDescription(row: Row, now: number): string {
  return [
    row.hidden ? `(${row.hidden.toLocaleString("en")})` : "",
    ...rowFlags(row),
    row.leaf ? "← leaf" : "",
    age(row.timestamp, now) ?? "",
  ]
    .filter(Boolean)
    .join("  ");
}

export function rowFlags(row: Row): string[] {
  return (row.flags ?? []).filter((flag) => FLAGS.has(flag));
}

/** What a screen reader says. */
export function rowSpoken(row: Row, now: number): string {
  const parts = [
    kindWord(row),
    oneLine(row.text),
    row.label === undefined ? "" : `⚑ ${oneLine(row.label)}`,
    ...rowFlags(row),
    row.leaf ? "leaf" : "",
    row.active ? "" : "other branch",
    row.hidden ? plural(row.hidden, "row") + " folded" : "",
    age(row.timestamp, now) ?? "",
  ];
  return parts.filter(Boolean).join(", ");
}

/** The word before the text in a terminal; none where the text names itself in brackets. */
export function kindWord(row: Row): string {
  if (row.kind === "tool" || row.text.startsWith("[")) {
    return "";
  }
  return row.kind === "other" ? oneLine(row.type) : row.kind;
}

export function rowIcon(row: Row): Icon {
  const tint = rowTint(row);
  if (tint === "failed") {
    return { name: row.flags?.includes("aborted") ? "circle-slash" : "error", color: "errorForeground" };
  }
  if (tint === "inactive") {
    return { name: ICONS[row.kind], color: "list.deemphasizedForeground" };
  }
  if (row.kind === "user") {
    return { name: ICONS.user, color: "charts.blue" };
  }
  return row.kind === "assistant" ? { name: ICONS.assistant, color: "charts.green" } : { name: ICONS[row.kind] };
}

export function rowTint(row: Row): Tint {
  if (row.leaf) {
    return "leaf";
  }
  if (!row.active) {
    return "inactive";
  }
  return row.flags?.some((flag) => flag === "error" || flag === "aborted") ? "failed" : "active";
}

const TAILS: Readonly<Partial<Record<SessionInfo["tail"], string>>> = {
  pendingTool: "tool pending",
  open: "turn open",
  interrupted: "interrupted",
  aborted: "aborted",
  error: "error",
};

/** Words for what is not as usual: running, how it ended, damage, pin, archive. */
export function sessionState(info: SessionInfo): string[] {
  const words: string[] = [];
  if (info.live?.status === "running") {
    words.push(info.live.certain ? "running" : "perhaps running");
  } else {
    words.push(TAILS[info.tail] ?? "");
  }
  if (info.health !== "ok" && info.health !== "empty") {
    words.push(info.health);
  }
  words.push(info.pinned ? "pinned" : "", info.archived ? "archived" : "");
  return words.filter(Boolean);
}

/** `pi · 2 h ago · 214 entries` and what is not as usual. */
export function sessionFacts(info: SessionInfo, now: number): string {
  const amount = info.entryCount === undefined ? size(info.sizeBytes) : plural(info.entryCount, "entry", "entries");
  return [info.format, age(info.lastActivityAt, now) ?? "", amount, ...sessionState(info)].filter(Boolean).join(" · ");
}

/** The same in its shortest form, for a narrow view: what is not as usual first. */
export function sessionDescription(info: SessionInfo, now: number): string {
  return [...sessionState(info), age(info.lastActivityAt, now) ?? "", info.format].filter(Boolean).join(" · ");
}

export function sessionIcon(info: SessionInfo): Icon {
  if (info.live?.status === "running") {
    return { name: "play-circle", color: "charts.green" };
  }
  switch (info.tail) {
    case "error":
    case "aborted":
      return { name: "error", color: "charts.red" };
    case "open":
    case "interrupted":
    case "pendingTool":
      return { name: "circle-outline", color: "charts.yellow" };
    case "empty":
      return { name: "circle-small" };
    case "done":
      return info.pinned ? { name: "pinned" } : { name: "circle-filled", color: "charts.green" };
  }
}

export function size(count: number): string {
  const units = ["B", "kB", "MB", "GB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 10 ? value.toFixed(0) : value.toFixed(1)} ${units[unit] ?? ""}`;
}
