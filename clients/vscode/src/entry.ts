// One entry as a document to read. Nothing here knows of the editor.
import { cut, manyLines, oneLine } from "./text";

type Fields = Readonly<Record<string, unknown>>;

export interface EntryText {
  /** What a tab shows. */
  readonly name: string;
  /** The ending that names the language. */
  readonly extension: string;
  readonly text: string;
}

/**
 * Languages that only colour a text. Others do more: Markdown and HTML have links that run commands or load something,
 * JSON fetches the schema that it names, notebooks and pictures open in editors of their own.
 */
const COLOURED = new Set(
  "c cc cpp cs css go h hpp java js jsx lua php pl py r rb rs scss sh sql swift toml ts tsx xml yaml yml diff patch".split(" "),
);
const BODY = ["content", "summary", "errorMessage", "command", "code", "output", "label", "name"];

/** `rowText` is what the entry's row says; it names the tool and the file. */
export function entryText(entry: Fields, rowText: string): EntryText {
  const message = fields(entry["message"]) ?? entry;
  const role = word(message["role"]) || word(entry["type"]);
  const name = cut(oneLine(rowText), 40) || role;
  const parts = BODY.flatMap((field) => said(message[field]));
  const cutOff = fields(entry["truncated"]);
  if (cutOff) {
    parts.push(`… ${word(cutOff["field"])} has ${Number(cutOff["bytes"]).toLocaleString("en")} bytes, it is cut here`);
  }
  const text = parts.filter((part) => part.trim()).join("\n\n");
  if (!text || role === "custom") {
    return { name, extension: ".jsonl", text: json(entry) };
  }
  return { name, extension: role === "toolResult" ? endingFor(rowText, text) : "", text: manyLines(text) };
}

function said(content: unknown): string[] {
  if (typeof content === "string") {
    return [content];
  }
  return Array.isArray(content) ? content.map(block) : [];
}

function block(value: unknown): string {
  const { type, ...rest } = fields(value) ?? {};
  switch (type) {
    case "text":
      return String(rest["text"]);
    case "thinking":
      return `[thinking]\n${String(rest["thinking"])}`;
    case "toolCall":
      return `[${word(rest["name"])}]\n${argumentLines(rest["arguments"])}`;
    case "image":
      return `[image ${word(rest["mimeType"])}]`;
    default:
      return json(value);
  }
}

/** Arguments of a call as a person reads them: a line for each, long texts as they are. */
function argumentLines(value: unknown): string {
  const entries = fields(value);
  if (!entries) {
    return typeof value === "string" ? value : json(value);
  }
  return Object.entries(entries)
    .map(([name, argument]) => {
      const text = typeof argument === "string" ? argument : json(argument);
      return `${name}:${text.includes("\n") ? "\n" : " "}${text}`;
    })
    .join("\n");
}

/** The language of what a tool gave: a patch, or that of the file that its row names. */
function endingFor(rowText: string, text: string): string {
  if (/^(diff --git|--- \S.*\n\+\+\+ |@@ -\d)/m.test(text)) {
    return ".diff";
  }
  const ending = /\.([a-z]+)\]$/i.exec(rowText)?.[1]?.toLowerCase() ?? "";
  return COLOURED.has(ending) ? `.${ending}` : "";
}

function json(value: unknown): string {
  return manyLines(JSON.stringify(value, null, 2));
}

function word(value: unknown): string {
  return typeof value === "string" ? cut(oneLine(value), 80) : "";
}

function fields(value: unknown): Fields | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : undefined;
}
