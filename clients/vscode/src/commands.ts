// The commands: which session and entry they speak of, and what they do.
import { homedir } from "node:os";
import * as vscode from "vscode";
import { Sort, tilde } from "./catalog";
import { Client } from "./client";
import { restart, showInstallation } from "./daemon";
import { Documents, PROMPT, Prompts, refOf } from "./documents";
import { asFault } from "./fault";
import { Moving, say } from "./moving";
import { Ref, linkTo } from "./refs";
import { showStatus } from "./report";
import { sessionFacts } from "./rows";
import { search } from "./search";
import { SessionNode, Sessions } from "./sessions";
import { currentFolder, settings } from "./settings";
import { age, cut, oneLine, plural, withoutIcons, withoutLinks } from "./text";
import { RowNode, Tree } from "./tree";

const SORTS: readonly (readonly [Sort, string])[] = [
  ["lastActivity", "Latest activity"],
  ["created", "Newest"],
  ["title", "Title"],
  ["size", "Size"],
];

/** What the keys of the two views give: the row that has the keyboard's focus is meant. */
const FOCUSED_SESSION = "focused session";
const FOCUSED_ROW = "focused row";

export class Commands {
  private readonly moving: Moving;
  /** The sessions whose prompt is on its way. */
  private readonly sending = new Set<string>();
  /** The agents that this window started, by session. */
  private readonly terminals = new Map<string, vscode.Terminal>();

  constructor(
    private readonly client: Client,
    private readonly sessions: Sessions,
    private readonly tree: Tree,
    private readonly documents: Documents,
    private readonly prompts: Prompts,
    private readonly log: vscode.LogOutputChannel,
    private readonly extensionId: string,
  ) {
    this.moving = new Moving(client, tree, prompts);
  }

  register(): vscode.Disposable {
    const handlers: Record<string, (argument?: unknown) => unknown> = {
      openSession: (it) => this.openSession(it),
      refresh: () => {
        this.refresh();
      },
      search: () => this.search(),
      filterSessions: () => this.filterSessions(),
      clearSessionFilter: () => this.sessions.filter(""),
      sortSessions: () => this.sortSessions(),
      showArchived: () => this.sessions.showArchived(true),
      hideArchived: () => this.sessions.showArchived(false),
      cycleFilter: () => this.tree.cycleFilter(),
      findInTree: () => this.findInTree(),
      clearFind: () => {
        this.tree.look("");
      },
      revealLeaf: () => this.tree.toLeaf(true),
      navigate: (it) => this.withEntry(it, (ref) => this.moving.navigate(ref)),
      back: (it) => this.withSession(it, ({ sessionId }) => this.moving.back(sessionId)),
      tips: (it) => this.withSession(it, ({ sessionId }) => this.moving.tips(sessionId)),
      branch: (it) => this.withSession(it, (ref) => this.branch(ref, it)),
      fork: (it) => this.withSession(it, ({ sessionId, entryId }) => this.moving.fork(sessionId, entryId)),
      resume: (it) => this.withSession(it, ({ sessionId }) => this.resume(sessionId)),
      label: (it) => this.withEntry(it, (ref) => this.label(ref)),
      rename: (it) => this.withSession(it, ({ sessionId }) => this.rename(sessionId)),
      archive: (it) => this.withSession(it, ({ sessionId }) => this.set("session/archive", sessionId, true)),
      unarchive: (it) => this.withSession(it, ({ sessionId }) => this.set("session/archive", sessionId, false)),
      pin: (it) => this.withSession(it, ({ sessionId }) => this.set("session/pin", sessionId, true)),
      unpin: (it) => this.withSession(it, ({ sessionId }) => this.set("session/pin", sessionId, false)),
      delete: (it) => this.withSession(it, ({ sessionId }) => this.delete(sessionId)),
      openEntry: (it) => this.withEntry(it, (ref) => this.documents.openEntry(ref, true)),
      openTranscript: (it) => this.withSession(it, (ref) => this.openTranscript(ref, it)),
      openPrompt: (it) => this.withSession(it, ({ sessionId }) => this.prompts.open(sessionId, this.title(sessionId))),
      sendPrompt: () => this.sendPrompt(),
      stopTurn: (it) => this.withSession(it, ({ sessionId }) => this.stopTurn(sessionId)),
      touched: (it) => this.touched(it),
      copyText: (it) => this.withEntry(it, async (ref) => this.copy(await this.documents.text(ref), "The text")),
      copyLink: (it) =>
        this.withSession(it, (ref) => this.copy(linkTo(ref, vscode.env.uriScheme, this.extensionId), "The link")),
      showStatus: () => showStatus(this.client, this.log),
      restartDaemon: () => restart(this.client),
      install: () => showInstallation(),
      showEarlier: (it) => this.tree.widen(it),
      showLater: (it) => {
        this.sessions.more(it);
        return this.tree.widen(it);
      },
    };
    return vscode.Disposable.from(
      vscode.window.onDidCloseTerminal((terminal) => {
        this.ended(terminal);
      }),
      ...Object.entries(handlers).map(([name, run]) =>
        vscode.commands.registerCommand(`dsh.${name}`, (argument?: unknown) => this.guarded(() => run(argument))),
      ),
    );
  }

  /** Opens a session, and an entry of it, by whatever names it: a link may hold the beginning of an id. */
  async open({ sessionId: name, entryId }: Ref): Promise<void> {
    await this.guarded(async () => {
      const { sessionId } = await this.client.request("session/resolve", { ref: name });
      await vscode.commands.executeCommand("dsh.tree.focus");
      await this.show(entryId === undefined ? { sessionId } : { sessionId, entryId }, true);
    });
  }

  private async show({ sessionId, entryId }: Ref, preserveFocus: boolean): Promise<void> {
    await this.tree.show(sessionId);
    if (entryId !== undefined) {
      try {
        await this.tree.reveal(entryId);
      } finally {
        await this.documents.openEntry({ sessionId, entryId }, preserveFocus);
      }
    }
  }

  private async guarded(run: () => unknown): Promise<void> {
    try {
      await run();
    } catch (error) {
      const fault = asFault(error);
      if (fault.kind !== "cancelled") {
        this.log.warn(fault.message);
        void vscode.window.showErrorMessage(`Agent Sessions: ${withoutLinks(fault.message)}`);
      }
    }
  }

  /** What an argument names, else the session of the Tree view with the row selected there. */
  private async target(argument: unknown): Promise<Ref | undefined> {
    if (argument instanceof RowNode) {
      return { sessionId: argument.sessionId, entryId: argument.row.id };
    }
    if (argument instanceof SessionNode) {
      return { sessionId: argument.info.sessionId };
    }
    if (isRef(argument)) {
      return argument;
    }
    if (argument === FOCUSED_SESSION) {
      return this.sessions.focused();
    }
    if (argument === FOCUSED_ROW) {
      const focused = await this.tree.selectFocused();
      return focused && { sessionId: focused.sessionId, entryId: focused.row.id };
    }
    const { session, selected } = this.tree;
    const entryId = selected?.row.id;
    return session && { sessionId: session.sessionId, ...(entryId === undefined ? {} : { entryId }) };
  }

  private async withSession(argument: unknown, run: (ref: Ref) => unknown): Promise<void> {
    const byKey = argument === FOCUSED_SESSION || argument === FOCUSED_ROW;
    const ref = (await this.target(argument)) ?? (byKey ? undefined : await this.chooseSession());
    if (ref) {
      await run(ref);
    }
  }

  /** Without a row the leaf is meant. */
  private withEntry(argument: unknown, run: (ref: Required<Ref>) => unknown): Promise<void> {
    return this.withSession(argument, async ({ sessionId, entryId }) => {
      const id = entryId ?? (await this.tree.show(sessionId)).leafId;
      if (id === null) {
        say("There is no entry in this session yet.");
      } else {
        await run({ sessionId, entryId: id });
      }
    });
  }

  private title(sessionId: string): string {
    return this.sessions.get(sessionId)?.title ?? this.client.session(sessionId)?.title ?? sessionId;
  }

  private async openSession(argument: unknown): Promise<void> {
    const ref = argument instanceof SessionNode || isRef(argument) ? await this.target(argument) : await this.chooseSession();
    if (ref) {
      await this.tree.show(ref.sessionId);
      if (argument === undefined) {
        await vscode.commands.executeCommand("dsh.tree.focus");
      }
    }
  }

  private async chooseSession(): Promise<Ref | undefined> {
    if (this.sessions.all.length === 0) {
      await this.sessions.list();
    }
    const now = Date.now();
    const choice = await vscode.window.showQuickPick(
      this.sessions.all.map((info) => ({
        label: withoutIcons(oneLine(info.title)),
        description: withoutIcons(sessionFacts(info, now)),
        detail: withoutIcons(info.cwd === null ? "" : tilde(info.cwd, homedir())),
        sessionId: info.sessionId,
      })),
      { placeHolder: "The session to open", matchOnDescription: true, matchOnDetail: true },
    );
    return choice && { sessionId: choice.sessionId };
  }

  private refresh(): void {
    this.client.retry();
    this.tree.refresh();
    void this.sessions.list();
  }

  private async search(): Promise<void> {
    const ref = await search(this.client, currentFolder());
    if (ref) {
      if (ref.entryId === undefined) {
        await vscode.commands.executeCommand("dsh.tree.focus"); // there alone a session without an entry is seen
      }
      await this.show(ref, false);
    }
  }

  private async filterSessions(): Promise<void> {
    const words = await vscode.window.showInputBox({
      prompt: "Words of a title, a first message, a folder or an id",
      value: this.sessions.words,
    });
    if (words !== undefined) {
      await this.sessions.filter(words);
    }
  }

  private async sortSessions(): Promise<void> {
    const choice = await vscode.window.showQuickPick(
      SORTS.map(([sort, label]) => ({ label, sort, ...(sort === this.sessions.order ? { description: "now" } : {}) })),
      { placeHolder: "Sort sessions by" },
    );
    if (choice) {
      await this.sessions.sortBy(choice.sort);
    }
  }

  private async findInTree(): Promise<void> {
    const words = await vscode.window.showInputBox({
      prompt: "Show the rows that have all these words in text, label or role",
      value: this.tree.words,
    });
    if (words !== undefined) {
      this.tree.look(words);
    }
  }

  private async branch({ sessionId, entryId }: Ref, argument: unknown): Promise<void> {
    if (entryId !== undefined && (argument !== undefined || this.tree.selected?.row.kind === "user")) {
      await this.moving.branch({ sessionId, entryId });
      return;
    }
    await this.tree.show(sessionId);
    if (settings.picker() === "tree") {
      this.tree.setFilter("user-only");
      await vscode.commands.executeCommand("dsh.tree.focus");
      say("Choose a prompt in the tree and branch from it there.");
      return;
    }
    const chosen = await this.moving.choosePrompt(sessionId);
    if (chosen !== undefined) {
      await this.moving.branch({ sessionId, entryId: chosen });
    }
  }

  /** Runs the agent that the session belongs to; one of ours is made ready for its next agent. */
  private async resume(sessionId: string): Promise<void> {
    const running = this.terminals.get(sessionId);
    if (running) {
      running.show();
      return;
    }
    const state = await this.client.open(sessionId);
    if (state.can.launch) {
      const { argv, cwd, env } = await this.client.request("session/launch", { sessionId });
      const [shellPath, ...shellArgs] = argv;
      const terminal =
        this.terminals.get(sessionId) ?? // asked twice at once: a second agent would write into the same log
        vscode.window.createTerminal({
          name: withoutIcons(cut(oneLine(state.title), 40)),
          ...(shellPath === undefined ? {} : { shellPath, shellArgs }),
          ...(cwd === null ? {} : { cwd }),
          env: env ?? {},
        });
      this.terminals.set(sessionId, terminal);
      terminal.show();
      return;
    }
    const { repaired } = await this.client.request("session/resume", { sessionId });
    await this.client.request("session/release", { sessionId });
    say(
      repaired.length > 0
        ? `Closed what was cut off: ${plural(repaired.length, "entry", "entries")}. An agent can go on.`
        : "Nothing was cut off: an agent can go on.",
    );
  }

  /** The terminal of an agent closed: one whose program could not be started never had a status. */
  private ended(terminal: vscode.Terminal): void {
    const sessionId = [...this.terminals].find(([, one]) => one === terminal)?.[0];
    if (sessionId === undefined) {
      return;
    }
    this.terminals.delete(sessionId);
    const { shellPath } = terminal.creationOptions as vscode.TerminalOptions;
    const { exitStatus } = terminal;
    if (exitStatus?.code === undefined && exitStatus?.reason === vscode.TerminalExitReason.Process) {
      const text = `“${shellPath ?? "The agent"}” could not be started: it has to be on the PATH of the machine on which this window works.`;
      void vscode.window.showErrorMessage(`Agent Sessions: ${withoutLinks(text)}`);
    }
  }

  private async label({ sessionId, entryId }: Required<Ref>): Promise<void> {
    await this.client.open(sessionId);
    const { items } = await this.client.request("session/labels", { sessionId });
    const label = await vscode.window.showInputBox({
      prompt: "The label of this entry; empty takes it away",
      value: items.find((item) => item.entryId === entryId)?.label ?? "",
    });
    if (label !== undefined) {
      await this.client.request("session/label", { sessionId, entryId, label: label.trim() || null });
    }
  }

  private async rename(sessionId: string): Promise<void> {
    const title = await vscode.window.showInputBox({
      prompt: "The title of the session; empty goes back to its own",
      value: this.title(sessionId),
    });
    if (title !== undefined) {
      await this.client.request("session/rename", { sessionId, title: title.trim() || null });
    }
  }

  private async set(method: "session/archive" | "session/pin", sessionId: string, on: boolean): Promise<void> {
    await this.client.request(method, { sessionId, on });
  }

  private async delete(sessionId: string): Promise<void> {
    const question = `Move “${cut(withoutLinks(this.title(sessionId)), 80)}” to the trash?`;
    const answer = await vscode.window.showWarningMessage(question, { modal: true }, "Move to Trash");
    if (answer !== undefined) {
      const { trashPath } = await this.client.request("session/delete", { sessionId });
      say(trashPath === null ? "Deleted." : `Moved to ${oneLine(tilde(trashPath, homedir()))}`);
    }
  }

  /** To the entry that was named; a row that only happens to be selected does not cut it off. */
  private async openTranscript({ sessionId, entryId }: Ref, argument: unknown): Promise<void> {
    await this.client.open(sessionId);
    const ref = argument === undefined || entryId === undefined ? { sessionId } : { sessionId, entryId };
    await this.documents.openTranscript(ref, `Transcript of ${this.title(sessionId)}`);
  }

  /** Sends the prompt to the agent of its session; where there is none it is copied. */
  private async sendPrompt(): Promise<void> {
    const document = vscode.window.activeTextEditor?.document;
    if (document?.uri.scheme !== PROMPT) {
      return;
    }
    const { sessionId } = refOf(document.uri);
    if (this.prompts.isFresh(document)) {
      say("This prompt has only just opened: send it again to send it as it is.");
    } else if (!document.getText().trim()) {
      say("There is nothing to send.");
    } else if (!this.sending.has(sessionId)) {
      const content = document.getText();
      this.sending.add(sessionId);
      const sending = this.send(sessionId, document, content).finally(() => this.sending.delete(sessionId));
      void vscode.window.setStatusBarMessage("$(sync~spin) Sending the prompt …", sending);
      if (!(await sending)) {
        await this.copyForAgent(sessionId, content);
      }
    }
  }

  /** Gives a prompt to the agent of its session; false where there is none, the prompt is kept then. */
  private async send(sessionId: string, document: vscode.TextDocument, content: string): Promise<boolean> {
    try {
      await this.client.request("agent/send", { sessionId, content });
    } catch (error) {
      const fault = asFault(error);
      if (fault.kind !== "noAgent" && fault.kind !== "notSupportedByFormat") {
        throw fault;
      }
      await document.save();
      return false;
    }
    await this.prompts.sent(document, content);
    say("Sent.");
    return true;
  }

  private async copyForAgent(sessionId: string, content: string): Promise<void> {
    await vscode.env.clipboard.writeText(content);
    const text = "No agent works in this session through the daemon. The prompt was copied: paste it to the agent.";
    const choices = this.client.session(sessionId)?.can.launch ? ["Run the Agent"] : [];
    if ((await vscode.window.showInformationMessage(`Agent Sessions: ${text}`, ...choices)) !== undefined) {
      await this.resume(sessionId);
    }
  }

  private async stopTurn(sessionId: string): Promise<void> {
    const { aborted } = await this.client.request("session/abort", { sessionId });
    say(aborted === null ? "No turn is running." : "The agent was asked to stop.");
  }

  /** Which entries read or changed a file; without an argument the one in the editor. */
  private async touched(argument: unknown): Promise<void> {
    const uri = argument instanceof vscode.Uri ? argument : vscode.window.activeTextEditor?.document.uri;
    if (uri?.scheme !== "file") {
      say("Open a file first.");
      return;
    }
    const { items } = await this.client.request("session/touched", { path: uri.fsPath, limit: 500 });
    const now = Date.now();
    const choice = await vscode.window.showQuickPick(
      items.map(({ sessionId, entryId, action, text, timestamp, branch, failed }) => ({
        label: withoutIcons(oneLine(text)),
        description: [
          action,
          failed ? "failed" : "",
          branch === "abandoned" ? "other branch" : "",
          age(timestamp, now) ?? "",
        ]
          .filter(Boolean)
          .join(" · "),
        detail: withoutIcons(oneLine(this.title(sessionId))),
        ref: { sessionId, entryId },
      })),
      {
        placeHolder: items.length > 0 ? "The entry to go to" : "No session is known to have touched this file",
        matchOnDescription: true,
        matchOnDetail: true,
      },
    );
    if (choice) {
      await this.open(choice.ref);
    }
  }

  private async copy(text: string, what: string): Promise<void> {
    await vscode.env.clipboard.writeText(text);
    say(`${what} was copied.`);
  }
}

function isRef(value: unknown): value is Ref {
  return typeof value === "object" && value !== null && typeof (value as Partial<Ref>).sessionId === "string";
}

