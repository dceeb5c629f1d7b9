// Text from logs, made fit for the places that show it. Nothing here knows of the editor.

export type Range = readonly [from: number, to: number];

// Control characters, line breaks and lone surrogates; marks that turn the direction of a text.
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]+|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const INVISIBLE = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]+/g;

/** One printable line. */
export function oneLine(text: string): string {
  return text.replace(INVISIBLE, "").replace(CONTROL, " ");
}

/** Several lines, tabs and line breaks kept. */
export function manyLines(text: string): string {
  return text.replace(/\r\n?/g, "\n").split("\n").map((line) => line.split("\t").map(oneLine).join("\t")).join("\n");
}

/** For places where the editor reads `$(name)` as an icon: a joiner that is not seen keeps it text. */
export function withoutIcons(text: string): string {
  return text.replace(/\$(?=\()/g, "$\u2060");
}

/** For messages of the editor, in which `[words](command:…)` would be a link. */
export function withoutLinks(text: string): string {
  return oneLine(text).replace(/\](?=\()/g, "]\u2060");
}

/** At most `limit` code points, with a final ellipsis where something was cut. */
export function cut(text: string, limit: number): string {
  if (text.length <= limit) {
    return text;
  }
  const points = Array.from(text);
  return points.length <= limit ? text : points.slice(0, limit - 1).join("").trimEnd() + "…";
}

/** Ranges counted in code points, as the protocol has them, in UTF-16 units, as JavaScript counts. */
export function utf16Ranges(text: string, ranges: readonly (readonly number[])[]): [number, number][] {
  const edges = new Map<number, number>();
  let point = 0;
  let unit = 0;
  const wanted = new Set(ranges.flat());
  for (const character of text) {
    if (wanted.has(point)) {
      edges.set(point, unit);
    }
    point += 1;
    unit += character.length;
  }
  const at = (edge: number | undefined) => (edge === undefined ? unit : (edges.get(edge) ?? unit));
  return ranges.map(([from, to]): [number, number] => [at(from), at(to)]).filter(([from, to]) => from < to);
}

/** `text` with a mark on both sides of each range; for lists that can not show ranges in another weight. */
export function marked(text: string, ranges: readonly Range[], before = "‹", after = "›"): string {
  let done = "";
  let at = 0;
  for (const [from, to] of [...ranges].sort((a, b) => a[0] - b[0])) {
    if (from >= at) {
      done += text.slice(at, from) + before + text.slice(from, to) + after;
      at = to;
    }
  }
  return done + text.slice(at);
}

const UNITS: readonly (readonly [name: string, seconds: number, limit: number])[] = [
  ["min", 60, 60],
  ["h", 3600, 24],
  ["d", 86_400, 31],
];

/** `2 h ago` for an ISO time, its date after a month; undefined where there is no time. */
export function age(stamp: string | null | undefined, now: number): string | undefined {
  const when = stamp ? Date.parse(stamp) : NaN;
  if (Number.isNaN(when)) {
    return undefined;
  }
  const seconds = (now - when) / 1000;
  if (seconds < 60) {
    return "just now";
  }
  for (const [name, size, limit] of UNITS) {
    if (seconds < size * limit) {
      return `${Math.floor(seconds / size)} ${name} ago`;
    }
  }
  return new Date(when).toISOString().slice(0, 10);
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** Text that means nothing to Markdown; for hovers, which are Markdown. */
export function escapeMarkdown(text: string): string {
  return text.replace(/[\\`*_{}[\]()#+\-.!<>|~&$:@]/g, (mark) => (mark === "<" ? "&lt;" : mark === "&" ? "&amp;" : `\\${mark}`));
}
