// The Tree view: the rows of one session, level by level, as the daemon gives them.
import * as vscode from "vscode";
import { Client } from "./client";
import { TRANSCRIPT, hasTranscript, refOf } from "./documents";
import { asFault } from "./fault";
import { Ask, Level, Page } from "./levels";
import { rowDescription, rowIcon, rowLabel, rowSpoken, rowTint } from "./rows";
import { selectFocused } from "./focus";
import { settings } from "./settings";
import { age, escapeMarkdown, oneLine, plural } from "./text";
import type { Closing, FilterMode, OpenResult, Row } from "./types";

const FILTERS: readonly FilterMode[] = ["default", "no-tools", "user-only", "labeled-only", "all"];
const DEBOUNCE_MS = 50;
/** Rows of this scheme are coloured by `RowTints`. */
const TINT = "dsh-row";

export class RowNode {
  constructor(
    readonly sessionId: string,
    readonly row: Row,
    /** The first row of the branch in which the row stands; undefined on the way to the leaf. */
    readonly parent: RowNode | undefined,
  ) {}
}

/** Stands for the rows of a level that its window leaves out. */
class MoreNode {
  constructor(
    readonly sessionId: string,
    readonly side: "earlier" | "later",
    readonly count: number,
    readonly parent: RowNode | undefined,
  ) {}
}

type Node = RowNode | MoreNode;

export class Tree implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  private readonly changes = new vscode.EventEmitter<Node | undefined>();
  readonly onDidChangeTreeData = this.changes.event;
  readonly view: vscode.TreeView<Node>;
  private readonly shown = new vscode.EventEmitter<OpenResult | undefined>();
  private readonly switched = new vscode.EventEmitter<string>();
  /** The session of the view changed, or is another one. */
  readonly onDidShow = this.shown.event;
  /** The view shows another session. */
  readonly onDidSwitch = this.switched.event;
  private readonly disposables: Closing[] = [];
  private readonly levels = new Map<string, Level>();
  private sessionId: string | undefined;
  /** The session that was asked for last; it is shown when the daemon has opened it. */
  private wanted: string | undefined;
  /** The leaf to which the view was scrolled; undefined before the first time. */
  private scrolled: string | null | undefined;
  private filter: FilterMode = settings.filter();
  private query = "";
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly client: Client,
    private readonly memory: vscode.Memento,
  ) {
    this.view = vscode.window.createTreeView("dsh.tree", { treeDataProvider: this, showCollapseAll: true });
    this.disposables.push(
      this.view,
      this.changes,
      this.shown,
      this.switched,
      client.onSession((sessionId) => {
        if (sessionId === this.sessionId) {
          this.later();
        }
      }),
      client.onGone(({ sessionId }) => {
        if (sessionId === this.sessionId) {
          this.leave("The session is gone: its file was moved away or deleted.");
        }
      }),
      vscode.workspace.onDidCloseTextDocument(({ uri }) => {
        if (uri.scheme === TRANSCRIPT) {
          this.unfollow(refOf(uri).sessionId);
        }
      }),
      this.view.onDidChangeVisibility(({ visible }) => {
        if (visible) {
          void this.follow();
        }
      }),
    );
  }

  get session(): OpenResult | undefined {
    return this.sessionId === undefined ? undefined : this.client.session(this.sessionId);
  }

  get selected(): RowNode | undefined {
    const [node] = this.view.selection;
    return node instanceof RowNode && node.sessionId === this.sessionId ? node : undefined;
  }

  /** Selects the row that has the keyboard's focus and gives it; what stands for rows that are not shown is none. */
  async selectFocused(): Promise<RowNode | undefined> {
    const node = await selectFocused(this.view);
    return node instanceof RowNode && node.sessionId === this.sessionId ? node : undefined;
  }

  /** The id of the session that this window showed last. */
  get remembered(): string | undefined {
    return this.memory.get<string>("session");
  }

  /** Shows a session, from its leaf on; where several are asked for one after the other, the last one. */
  async show(sessionId: string): Promise<OpenResult> {
    this.wanted = sessionId;
    const state = await this.client.open(sessionId);
    if (this.wanted !== sessionId) {
      this.unfollow(sessionId);
    } else if (this.sessionId !== sessionId) {
      const before = this.sessionId;
      this.sessionId = sessionId;
      this.scrolled = undefined;
      this.query = "";
      this.filter = settings.filter();
      this.reset();
      this.switched.fire(sessionId);
      this.unfollow(before);
      await this.memory.update("session", sessionId);
      await this.follow();
    }
    return state;
  }

  /** Selects the row that stands for an entry, showing it where the filter does not. */
  async reveal(entryId: string, focus = false): Promise<boolean> {
    let node = await this.find(entryId);
    if (node?.row.id !== entryId && (this.query || this.filter !== "all")) {
      this.query = "";
      this.filter = settings.filter();
      this.reset();
      node = await this.find(entryId);
    }
    if (node) {
      await this.view.reveal(node, { select: true, focus });
    }
    return node?.row.id === entryId;
  }

  /** Scrolls to the leaf; the selection stays where it is. */
  async toLeaf(select = false): Promise<void> {
    const leafId = this.session?.leafId;
    const node = leafId ? await this.find(leafId) : undefined;
    if (node) {
      await this.view.reveal(node, { select, focus: false });
    }
  }

  setFilter(filter: FilterMode): void {
    this.filter = filter;
    this.reset();
  }

  async cycleFilter(): Promise<void> {
    this.setFilter(FILTERS[(FILTERS.indexOf(this.filter) + 1) % FILTERS.length] ?? "default");
    await this.toLeaf();
  }

  get words(): string {
    return this.query;
  }

  look(words: string): void {
    this.query = words.trim();
    this.reset();
  }

  /** Asks for everything again. */
  refresh(): void {
    for (const level of this.levels.values()) {
      level.stale();
    }
    this.changed();
  }

  /** Draws again what is known: ages, for one who comes back. */
  redraw(): void {
    this.changes.fire(undefined);
  }

  async widen(node: unknown): Promise<void> {
    if (node instanceof MoreNode && node.sessionId === this.sessionId) {
      const level = this.level(node.parent);
      const [first] = (await level.load()).rows;
      await level.widen(node.side);
      this.changes.fire(node.parent);
      if (node.side === "earlier" && first) {
        // What was read last stays in view, the rows before it are above.
        await this.view.reveal(new RowNode(node.sessionId, first, node.parent), { select: false, focus: false });
      }
    }
  }

  async getChildren(parent?: Node): Promise<Node[]> {
    const { sessionId } = this;
    if (sessionId === undefined || parent instanceof MoreNode) {
      return [];
    }
    const level = this.level(parent);
    try {
      await level.load();
    } catch (error) {
      const fault = asFault(error);
      if (fault.kind !== "unavailable") {
        this.view.message = fault.message; // a lost connection is told by the status bar, and found again
      }
    }
    return level.shown && sessionId === this.sessionId ? nodes(sessionId, level.shown, parent) : [];
  }

  getParent(node: Node): Node | undefined {
    return node.parent;
  }

  getTreeItem(node: Node): vscode.TreeItem {
    return node instanceof MoreNode ? moreItem(node) : this.rowItem(node);
  }

  dispose(): void {
    clearTimeout(this.timer);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private level(parent: RowNode | undefined): Level {
    const key = parent?.row.id ?? "";
    const level = this.levels.get(key) ?? new Level(this.asking(parent), () => this.session?.leafId ?? null);
    this.levels.set(key, level);
    return level;
  }

  private asking(parent: RowNode | undefined): (ask: Ask) => Promise<Page> {
    return async (ask) => {
      const { sessionId } = this;
      if (sessionId === undefined) {
        return { start: 0, total: 0, rows: [], leafId: null };
      }
      return this.client.request("session/tree", {
        sessionId,
        filter: this.filter,
        ...(this.query ? { query: this.query } : {}),
        ...(parent ? { at: parent.row.id } : {}),
        mainLine: true,
        ...ask,
      });
    };
  }

  /** The node that stands for an entry, looked for from the top down. */
  private async find(entryId: string): Promise<RowNode | undefined> {
    const { sessionId } = this;
    let parent: RowNode | undefined;
    for (;;) {
      const found = await this.level(parent).seek(entryId);
      if (!found || sessionId === undefined || sessionId !== this.sessionId) {
        return parent;
      }
      const { row, moved } = found;
      if (moved) {
        this.changes.fire(undefined); // the editor can reveal a row only of the window that it has
      }
      const node: RowNode = new RowNode(sessionId, row, parent);
      if (row.id === entryId || !row.collapsed) {
        return node;
      }
      parent = node;
    }
  }

  private later(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.refresh();
      void this.follow();
    }, DEBOUNCE_MS);
  }

  /** Scrolls to the leaf where it moved; never opens the view, which a reveal would do. */
  private async follow(): Promise<void> {
    const leafId = this.session?.leafId ?? null;
    if (this.view.visible && leafId !== this.scrolled) {
      const first = this.scrolled === undefined;
      this.scrolled = leafId;
      if (first || settings.followLeaf()) {
        await this.toLeaf().catch(() => undefined); // where nothing can be asked, nothing is shown either
      }
    }
  }

  private unfollow(sessionId: string | undefined): void {
    if (sessionId !== undefined && sessionId !== this.wanted && !hasTranscript(sessionId)) {
      void this.client.close(sessionId).catch(() => undefined); // the connection may be gone, and all it followed
    }
  }

  private reset(): void {
    this.levels.clear();
    this.changed();
  }

  private leave(message: string): void {
    this.sessionId = undefined;
    this.levels.clear();
    this.changed();
    this.view.message = message;
  }

  private changed(): void {
    const state = this.session;
    const title = state ? oneLine(state.title) : "";
    this.view.description = this.filter === "default" ? title : `${this.filter} · ${title}`;
    const notes = [
      state && state.health !== "ok" && state.health !== "empty" ? healthNote(state) : "",
      this.query ? `Rows with “${this.query}”` : "",
    ];
    this.view.message = notes.filter(Boolean).join(" · ");
    void vscode.commands.executeCommand("setContext", "dsh.treeQuery", this.query !== "");
    this.shown.fire(state);
    this.changes.fire(undefined);
  }

  private rowItem({ sessionId, row }: RowNode): vscode.TreeItem {
    const now = Date.now();
    const { text, highlights } = rowLabel(row);
    const { Collapsed, None } = vscode.TreeItemCollapsibleState;
    const item = new vscode.TreeItem({ label: text, highlights }, row.collapsed ? Collapsed : None);
    const icon = rowIcon(row);
    const can = this.session?.can;
    item.id = `${sessionId}/${row.id}`;
    item.description = rowDescription(row, now);
    item.iconPath = new vscode.ThemeIcon(icon.name, icon.color ? new vscode.ThemeColor(icon.color) : undefined);
    item.resourceUri = vscode.Uri.from({ scheme: TINT, path: `/${rowTint(row)}` });
    item.tooltip = rowTooltip(row, now);
    item.accessibilityInformation = { label: rowSpoken(row, now), role: "treeitem" };
    item.contextValue = [
      "row",
      can?.navigate && (row.id !== this.session?.leafId || row.kind === "user") ? "navigate" : "",
      can?.branch && row.kind === "user" ? "branch" : "",
      can?.fork ? "fork" : "",
      can?.label ? "label" : "",
    ]
      .filter(Boolean)
      .join(" ");
    item.command = { command: "dsh.openEntry", title: "Open Entry", arguments: [{ sessionId, entryId: row.id }] };
    return item;
  }
}

function nodes(sessionId: string, { start, rows, total }: Page, parent: RowNode | undefined): Node[] {
  const left = total - start - rows.length;
  return [
    ...(start > 0 ? [new MoreNode(sessionId, "earlier", start, parent)] : []),
    ...rows.map((row) => new RowNode(sessionId, row, parent)),
    ...(left > 0 ? [new MoreNode(sessionId, "later", left, parent)] : []),
  ];
}

function moreItem(node: MoreNode): vscode.TreeItem {
  const item = new vscode.TreeItem(`… ${node.count.toLocaleString("en")} ${node.side}`);
  const command = node.side === "earlier" ? "dsh.showEarlier" : "dsh.showLater";
  item.id = `${node.sessionId}/${node.parent?.row.id ?? ""}/${node.side}`;
  item.command = { command, title: "Show More Rows", arguments: [node] };
  item.contextValue = "more";
  item.iconPath = new vscode.ThemeIcon(node.side === "earlier" ? "chevron-up" : "chevron-down");
  return item;
}

/** All that is in the row, as text: nothing of a log is Markdown here. */
function rowTooltip(row: Row, now: number): vscode.MarkdownString {
  const tooltip = new vscode.MarkdownString();
  const facts = [
    row.role ?? row.kind,
    row.label === undefined ? "" : `⚑ ${row.label}`,
    ...(row.flags ?? []),
    row.leaf ? "leaf" : row.active ? "" : "other branch",
    row.children > 1 ? plural(row.children, "branch", "branches") : "",
    row.hidden ? plural(row.hidden, "row") + " below" : "",
  ].filter(Boolean);
  tooltip.appendMarkdown(escapeMarkdown(facts.join(" · ")) + "\n\n");
  tooltip.appendMarkdown(escapeMarkdown(row.text) + "\n\n");
  if (row.timestamp !== null) {
    const when = `${new Date(row.timestamp).toLocaleString()} (${age(row.timestamp, now) ?? ""})`;
    tooltip.appendMarkdown(escapeMarkdown(when) + "\n\n");
  }
  tooltip.appendMarkdown(`\`${row.id.replaceAll("`", "'")}\``);
  return tooltip;
}

function healthNote(state: OpenResult): string {
  const count = state.diagnosticCount ?? state.diagnostics.length;
  return `The log is ${state.health}: ${plural(count, "remark")}`;
}

/** Colours of rows: what is not on the way to the leaf is dim, the leaf stands out. */
export class RowTints implements vscode.FileDecorationProvider {
  provideFileDecoration(uri: vscode.Uri): vscode.FileDecoration | undefined {
    if (uri.scheme !== TINT) {
      return undefined;
    }
    switch (uri.path) {
      case "/leaf":
        return new vscode.FileDecoration("◀", "leaf", new vscode.ThemeColor("charts.yellow"));
      case "/inactive":
        return new vscode.FileDecoration(undefined, undefined, new vscode.ThemeColor("list.deemphasizedForeground"));
      case "/failed":
        return new vscode.FileDecoration(undefined, undefined, new vscode.ThemeColor("list.errorForeground"));
      default:
        return undefined;
    }
  }
}
