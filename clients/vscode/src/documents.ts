// What is opened in editors: entries, transcripts and prompts. All of it is text from logs, shown as text.
import * as vscode from "vscode";
import { Client } from "./client";
import { entryText } from "./entry";
import { asFault } from "./fault";
import { Ref } from "./refs";
import { cut, manyLines, oneLine } from "./text";
import type { Closing } from "./types";

export const ENTRY = "dsh-entry";
export const TRANSCRIPT = "dsh-transcript";
export const PROMPT = "dsh-prompt";

// Folders that name a language of ours (package.json, languages): text that wraps.
const TEXT = "dsh-text/";
const DRAFT = "dsh-prompt/";

/** The parts of an entry that are read for its document. */
const MAX_BYTES = 4 << 20;

/** A name that can stand in a tab. */
function fileName(text: string): string {
  return cut(oneLine(text).replace(/[/\\]/g, "∕").trim(), 60) || "untitled";
}

/** The reference stands in the query; the path is what the tab shows. */
function uriOf(scheme: string, ref: Ref, name: string): vscode.Uri {
  return vscode.Uri.from({ scheme, path: `/${name}`, query: JSON.stringify(ref) });
}

export function refOf(uri: vscode.Uri): Ref {
  return JSON.parse(uri.query) as Ref;
}

export class Documents implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changes = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changes.event;
  private readonly listening: Closing;

  constructor(private readonly client: Client) {
    this.listening = client.onSession((sessionId) => {
      this.renew(sessionId);
    });
  }

  async provideTextDocumentContent(uri: vscode.Uri, token: vscode.CancellationToken): Promise<string> {
    const ref = refOf(uri);
    try {
      return uri.scheme === ENTRY ? (await this.entry(ref, token)).text : await this.transcript(ref, token);
    } catch (error) {
      return asFault(error).message;
    }
  }

  /** The text of an entry, whole. */
  async text(ref: Required<Ref>): Promise<string> {
    return (await this.entry(ref)).text;
  }

  async openEntry(ref: Required<Ref>, preserveFocus: boolean): Promise<vscode.TextEditor> {
    const { name, extension } = await this.entry(ref);
    const uri = uriOf(ENTRY, ref, `${extension ? "" : TEXT}${fileName(name)}${extension}`);
    const document = await vscode.workspace.openTextDocument(uri);
    return vscode.window.showTextDocument(document, { preview: true, preserveFocus });
  }

  async openTranscript(ref: Ref, title: string): Promise<void> {
    await vscode.commands.executeCommand("markdown.showPreview", uriOf(TRANSCRIPT, ref, `${fileName(title)}.md`));
  }

  dispose(): void {
    this.listening.dispose();
    this.changes.dispose();
  }

  private async entry({ sessionId, entryId }: Ref, token?: vscode.CancellationToken) {
    const id = entryId ?? "";
    const [found, tree] = await Promise.all([
      this.client.request("session/entries", { sessionId, ids: [id], maxBytes: MAX_BYTES }, token),
      this.client.request("session/tree", { sessionId, filter: "all", around: id, count: 1 }, token),
    ]);
    const [entry] = found.entries;
    if (!entry) {
      throw new Error("This entry is not in the session any more.");
    }
    return entryText(entry, tree.rows[0]?.text ?? "");
  }

  private async transcript({ sessionId, entryId }: Ref, token?: vscode.CancellationToken): Promise<string> {
    const { text } = await this.client.request(
      "session/transcript",
      entryId === undefined ? { sessionId } : { sessionId, entryId },
      token,
    );
    return text; // its Markdown has no pictures, no HTML, and no links but to the web
  }

  /** A transcript of a whole session grows with it. An entry never changes. */
  private renew(sessionId: string): void {
    for (const { uri } of vscode.workspace.textDocuments) {
      if (uri.scheme === TRANSCRIPT) {
        const ref = refOf(uri);
        if (ref.sessionId === sessionId && ref.entryId === undefined) {
          this.changes.fire(uri);
        }
      }
    }
  }
}

function promptUri(sessionId: string, title: string): vscode.Uri {
  return uriOf(PROMPT, { sessionId }, `${DRAFT}${fileName(title)}`);
}

/** Shows a document with the cursor at its end. */
async function show(document: vscode.TextDocument): Promise<void> {
  const { end } = document.lineAt(document.lineCount - 1).range;
  await vscode.window.showTextDocument(document, { preview: false, selection: new vscode.Range(end, end) });
}

async function mayReplace(): Promise<boolean> {
  const question = "The prompt of this session was changed here and not sent.";
  return (await vscode.window.showWarningMessage(question, "Replace It", "Keep It")) === "Replace It";
}

/** Prompts that were not sent yet: documents that are kept by the daemon, one for each session. */
export class Prompts implements vscode.FileSystemProvider, vscode.Disposable {
  private readonly changes = new vscode.EventEmitter<vscode.FileChangeEvent[]>();
  readonly onDidChangeFile = this.changes.event;
  private readonly times = new Map<string, number>();

  constructor(private readonly client: Client) {}

  /** Opens the prompt of a session as the daemon keeps it. */
  async open(sessionId: string, title: string): Promise<void> {
    await show(await vscode.workspace.openTextDocument(promptUri(sessionId, title)));
  }

  /** Opens the prompt that the daemon keeps since just now; what was typed and not saved goes if the person agrees. */
  async openAnew(sessionId: string, title: string): Promise<void> {
    const uri = promptUri(sessionId, title);
    const isOpen = vscode.workspace.textDocuments.some((document) => document.uri.toString() === uri.toString());
    const document = await vscode.workspace.openTextDocument(uri);
    await show(document);
    if (isOpen && (!document.isDirty || (await mayReplace()))) {
      this.touch(uri);
      await show(document);
      await vscode.commands.executeCommand("workbench.action.files.revert");
      await show(document);
    }
  }

  watch(): vscode.Disposable {
    return new vscode.Disposable(() => undefined);
  }

  async stat(uri: vscode.Uri): Promise<vscode.FileStat> {
    const content = await this.readFile(uri);
    const mtime = this.times.get(uri.query) ?? 0;
    const locked = vscode.workspace.isTrusted ? {} : { permissions: vscode.FilePermission.Readonly };
    return { type: vscode.FileType.File, ctime: 0, mtime, size: content.byteLength, ...locked };
  }

  async readFile(uri: vscode.Uri): Promise<Uint8Array> {
    const { sessionId } = refOf(uri);
    const { text } = await this.asked({ sessionId });
    return new TextEncoder().encode(manyLines(text ?? ""));
  }

  async writeFile(uri: vscode.Uri, content: Uint8Array): Promise<void> {
    const { sessionId } = refOf(uri);
    await this.asked({ sessionId, text: new TextDecoder().decode(content) || null });
    this.touch(uri);
  }

  async delete(uri: vscode.Uri): Promise<void> {
    await this.asked({ sessionId: refOf(uri).sessionId, text: null });
  }

  readDirectory(): [string, vscode.FileType][] {
    return [];
  }

  createDirectory(): void {
    throw vscode.FileSystemError.NoPermissions();
  }

  rename(): void {
    throw vscode.FileSystemError.NoPermissions();
  }

  dispose(): void {
    this.changes.dispose();
  }

  private touch(uri: vscode.Uri): void {
    this.times.set(uri.query, Date.now());
    this.changes.fire([{ type: vscode.FileChangeType.Changed, uri }]);
  }

  private async asked(params: { sessionId: string; text?: string | null }) {
    try {
      return await this.client.request("session/draft", params);
    } catch (error) {
      throw vscode.FileSystemError.Unavailable(asFault(error).message);
    }
  }
}
