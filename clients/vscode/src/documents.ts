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
/** A transcript that is longer opens as text: the preview of its Markdown would hold up the whole window. */
const LONG = 1_500_000;
/** A transcript is made anew at most so often while its session grows. */
const RENEW_MS = 1000;
/** A prompt that nobody has touched is not sent by a key that was pressed before it opened. */
const SETTLED_MS = 1000;

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

/** Whether a transcript of a whole session is open: it grows with the session. */
export function hasTranscript(sessionId: string): boolean {
  return vscode.workspace.textDocuments.some(({ uri }) => isTranscript(uri, sessionId));
}

function isTranscript(uri: vscode.Uri, sessionId: string): boolean {
  if (uri.scheme !== TRANSCRIPT) {
    return false;
  }
  const ref = refOf(uri);
  return ref.sessionId === sessionId && ref.entryId === undefined;
}

export class Documents implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changes = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changes.event;
  private readonly listening: Closing;
  private readonly due = new Map<string, NodeJS.Timeout>();

  constructor(private readonly client: Client) {
    this.listening = client.onSession((sessionId) => {
      if (!this.due.has(sessionId) && hasTranscript(sessionId)) {
        const timer = setTimeout(() => {
          this.renew(sessionId);
        }, RENEW_MS);
        this.due.set(sessionId, timer);
      }
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
    const uri = uriOf(TRANSCRIPT, ref, `${fileName(title)}.md`);
    const document = await vscode.workspace.openTextDocument(uri);
    if (document.getText().length > LONG) {
      await vscode.window.showTextDocument(document, { preview: false });
    } else {
      await vscode.commands.executeCommand("markdown.showPreview", uri);
    }
  }

  dispose(): void {
    this.listening.dispose();
    this.due.forEach(clearTimeout);
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
    this.due.delete(sessionId);
    for (const { uri } of vscode.workspace.textDocuments) {
      if (isTranscript(uri, sessionId)) {
        this.changes.fire(uri);
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

/** Puts another text into a document and saves it, whichever editor is the active one. */
async function rewrite(document: vscode.TextDocument, text: string): Promise<void> {
  const all = new vscode.Range(0, 0, document.lineCount, 0);
  const edit = new vscode.WorkspaceEdit();
  edit.replace(document.uri, document.validateRange(all), text);
  await vscode.workspace.applyEdit(edit);
  await document.save();
}

function tabsOf({ uri }: vscode.TextDocument): vscode.Tab[] {
  return vscode.window.tabGroups.all
    .flatMap(({ tabs }) => tabs)
    .filter(({ input }) => input instanceof vscode.TabInputText && input.uri.toString() === uri.toString());
}

/** Prompts that were not sent yet: documents that are kept by the daemon, one for each session. */
export class Prompts implements vscode.FileSystemProvider, vscode.Disposable {
  private readonly changes = new vscode.EventEmitter<vscode.FileChangeEvent[]>();
  readonly onDidChangeFile = this.changes.event;
  private readonly listening: Closing;
  private readonly times = new Map<string, number>();
  /** The texts as this window knows them: another one in the daemon was written by somebody else. */
  private readonly known = new Map<string, string>();
  /** The texts that moves and branches brought, and when they were opened. */
  private readonly brought = new Map<string, { readonly text: string; readonly at: number }>();

  constructor(private readonly client: Client) {
    this.listening = vscode.Disposable.from(
      vscode.window.onDidChangeWindowState(({ focused }) => {
        if (focused) {
          this.look();
        }
      }),
      vscode.window.onDidChangeActiveTextEditor((editor) => {
        if (editor?.document.uri.scheme === PROMPT) {
          this.look();
        }
      }),
    );
  }

  /** Opens the prompt of a session as the daemon keeps it. */
  async open(sessionId: string, title: string): Promise<void> {
    await show(this.find(sessionId) ?? (await vscode.workspace.openTextDocument(promptUri(sessionId, title))));
    this.look();
  }

  /** Opens the prompt that a move or branch brought, and that the daemon keeps since, in the place of what was there. */
  async openAnew(sessionId: string, title: string, text: string): Promise<void> {
    let document = this.find(sessionId);
    if (document) {
      this.known.set(sessionId, manyLines(text));
      await rewrite(document, manyLines(text));
    } else {
      document = await vscode.workspace.openTextDocument(promptUri(sessionId, title));
    }
    const opened = document;
    const note = () => this.brought.set(sessionId, { text: opened.getText(), at: Date.now() });
    note(); // a key may come as soon as it has the focus
    await show(opened);
    note();
  }

  /** Whether a prompt was brought just now and is as it came: a key may have meant what was there before. */
  isFresh(document: vscode.TextDocument): boolean {
    const brought = this.brought.get(refOf(document.uri).sessionId);
    return brought?.text === document.getText() && Date.now() - brought.at < SETTLED_MS;
  }

  /** What somebody wrote into the prompt of a session and did not send; empty where there is only what was brought. */
  async unsent(sessionId: string): Promise<string> {
    const texts = [this.text(sessionId) ?? "", await this.kept(sessionId)];
    return texts.find((text) => text.trim() && text !== this.brought.get(sessionId)?.text) ?? "";
  }

  /** What stands in the document of a session's prompt, where it is open. */
  text(sessionId: string): string | undefined {
    return this.find(sessionId)?.getText();
  }

  /** Writes back what a move replaced in the daemon; a document that is open has it still. */
  async keep(sessionId: string, title: string, text: string): Promise<void> {
    await this.asked({ sessionId, text });
    this.known.set(sessionId, text);
    const document = this.find(sessionId);
    if (document && !document.isDirty) {
      this.touch(document.uri); // it may have been read again in between
    }
    await this.open(sessionId, title);
  }

  /** After a prompt was sent: it is kept no longer, and its tab closes. What was typed meanwhile stays. */
  async sent(document: vscode.TextDocument, content: string): Promise<void> {
    const { sessionId } = refOf(document.uri);
    if (document.isClosed) {
      if ((await this.kept(sessionId)) === content) {
        await this.asked({ sessionId, text: null });
      }
    } else if (document.getText() === content) {
      await rewrite(document, "");
      // What was typed just now may not have come to us when we looked: then nothing was replaced.
      if (document.getText() === "" && !document.isDirty) {
        await vscode.window.tabGroups.close(tabsOf(document));
      }
    }
  }

  watch(): vscode.Disposable {
    return new vscode.Disposable(() => undefined);
  }

  async stat(uri: vscode.Uri): Promise<vscode.FileStat> {
    const { sessionId } = refOf(uri);
    const text = await this.kept(sessionId);
    const known = this.known.get(sessionId);
    this.known.set(sessionId, text);
    if (known !== undefined && known !== text) {
      this.touch(uri); // by its time the editor tells a conflict, where it was about to write
    }
    const mtime = this.times.get(uri.query) ?? 0;
    const locked = vscode.workspace.isTrusted ? {} : { permissions: vscode.FilePermission.Readonly };
    return { type: vscode.FileType.File, ctime: 0, mtime, size: new TextEncoder().encode(text).byteLength, ...locked };
  }

  async readFile(uri: vscode.Uri): Promise<Uint8Array> {
    const { sessionId } = refOf(uri);
    const text = await this.kept(sessionId);
    this.known.set(sessionId, text);
    return new TextEncoder().encode(text);
  }

  async writeFile(uri: vscode.Uri, content: Uint8Array): Promise<void> {
    const { sessionId } = refOf(uri);
    const text = new TextDecoder().decode(content);
    await this.asked({ sessionId, text: text || null });
    this.known.set(sessionId, text);
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
    this.listening.dispose();
    this.changes.dispose();
  }

  /** The document of a session's prompt; a title that changed since it was opened makes no second one. */
  private find(sessionId: string): vscode.TextDocument | undefined {
    return vscode.workspace.textDocuments.find(
      ({ uri, isClosed }) => uri.scheme === PROMPT && !isClosed && refOf(uri).sessionId === sessionId,
    );
  }

  /** Has the editor read again what others wrote into the prompts that are open here. */
  private look(): void {
    for (const { uri } of vscode.workspace.textDocuments) {
      if (uri.scheme === PROMPT) {
        void this.stat(uri).catch(() => undefined); // where nothing can be asked, nothing is new
      }
    }
  }

  private async kept(sessionId: string): Promise<string> {
    return manyLines((await this.asked({ sessionId })).text ?? "");
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
