// The Sessions view: all sessions, those of the workspace first, kept up to date by the daemon.
import { homedir } from "node:os";
import * as vscode from "vscode";
import { Folder, Group, Sort, arrange, families, sorted, tilde } from "./catalog";
import { Client } from "./client";
import { asFault } from "./fault";
import { sessionDescription, sessionFacts, sessionIcon } from "./rows";
import { selectFocused } from "./focus";
import { settings } from "./settings";
import { escapeMarkdown, oneLine } from "./text";
import type { CatalogChanged, Closing, SessionInfo } from "./types";

const DEBOUNCE_MS = 50;
/** Sessions of a group that are shown at first, and by which it grows. */
const PAGE = 200;
/** A group does not grow beyond this by itself, to show one session. */
const REACH = 5000;

export class SessionNode {
  constructor(
    readonly info: SessionInfo,
    readonly parent: GroupNode | SessionNode,
    readonly below: ReadonlyMap<string | null, readonly SessionInfo[]>,
  ) {}
}

class GroupNode {
  constructor(
    readonly group: Group,
    readonly parent: GroupNode | undefined,
  ) {}
}

class MoreNode {
  constructor(
    readonly parent: GroupNode,
    readonly count: number,
  ) {}
}

type Node = GroupNode | SessionNode | MoreNode;

export class Sessions implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  readonly view: vscode.TreeView<Node>;
  private readonly changes = new vscode.EventEmitter<Node | undefined>();
  readonly onDidChangeTreeData = this.changes.event;
  private readonly disposables: Closing[] = [];
  private readonly known = new Map<string, SessionInfo>();
  private readonly limits = new Map<string, number>();
  private folders: Folder[] = [];
  private query = "";
  private archived = false;
  private sort: Sort;
  private timer: NodeJS.Timeout | undefined;
  private listing = 0;
  private wanted: string | undefined;

  constructor(
    private readonly client: Client,
    private readonly memory: vscode.Memento,
  ) {
    this.sort = memory.get<Sort>("sort", "lastActivity");
    this.view = vscode.window.createTreeView("dsh.sessions", { treeDataProvider: this, showCollapseAll: true });
    this.disposables.push(
      this.view,
      this.changes,
      client.onState(({ kind }) => {
        if (kind === "ready") {
          void this.list();
        } else if (kind !== "connecting") {
          this.clear();
        }
      }),
      client.onCatalog((change) => {
        this.changed(change);
      }),
      vscode.workspace.onDidChangeWorkspaceFolders(() => void this.list()),
      this.view.onDidChangeVisibility(() => {
        if (this.wanted !== undefined) {
          void this.reveal(this.wanted);
        }
      }),
    );
  }

  get(sessionId: string): SessionInfo | undefined {
    return this.known.get(sessionId);
  }

  /** The session that has the keyboard's focus, else the selected one. */
  async focused(): Promise<SessionInfo | undefined> {
    const node = (await selectFocused(this.view)) ?? this.view.selection[0];
    return node instanceof SessionNode ? node.info : undefined;
  }

  /** All that are listed, latest first. */
  get all(): SessionInfo[] {
    return sorted(this.known.values(), "lastActivity");
  }

  get words(): string {
    return this.query;
  }

  get order(): Sort {
    return this.sort;
  }

  async filter(words: string): Promise<void> {
    this.query = words.trim();
    await vscode.commands.executeCommand("setContext", "dsh.sessionQuery", this.query !== "");
    await this.list();
  }

  async showArchived(archived: boolean): Promise<void> {
    this.archived = archived;
    await vscode.commands.executeCommand("setContext", "dsh.archivedShown", archived);
    await this.list();
  }

  async sortBy(sort: Sort): Promise<void> {
    this.sort = sort;
    await this.memory.update("sort", sort);
    this.redraw();
  }

  redraw(): void {
    this.changes.fire(undefined);
  }

  /** Selects a session in the view, when it is listed. */
  async reveal(sessionId: string): Promise<void> {
    this.wanted = sessionId;
    const node = this.view.visible ? (this.find(sessionId) ?? this.reach(sessionId)) : undefined;
    if (node) {
      this.wanted = undefined;
      await this.view.reveal(node, { select: true, focus: false });
    }
  }

  more(node: unknown): void {
    if (node instanceof MoreNode) {
      const { id } = node.parent.group;
      this.limits.set(id, (this.limits.get(id) ?? PAGE) + PAGE);
      this.changes.fire(node.parent);
    }
  }

  /** Asks for all sessions again and from then on follows what happens to them. */
  async list(): Promise<void> {
    const turn = ++this.listing;
    if (this.client.state.kind !== "ready") {
      this.client.start();
      return;
    }
    await vscode.window.withProgress({ location: { viewId: "dsh.sessions" } }, async () => {
      try {
        const query = this.query ? { query: this.query } : {};
        const page = await this.client.request("catalog/subscribe", { ...query, archived: this.archived });
        const folders = await this.foldersNow();
        if (turn !== this.listing) {
          return;
        }
        this.known.clear();
        for (const info of page.items) {
          this.known.set(info.sessionId, info);
        }
        this.folders = folders;
        this.drawn(page.complete ? "" : "The folders are still being read …");
      } catch (error) {
        const fault = asFault(error);
        if (turn === this.listing && fault.kind !== "unavailable") {
          this.view.message = fault.message;
        }
      }
    });
  }

  getChildren(parent?: Node): Node[] {
    if (!parent) {
      const groups = this.known.size === 0 ? [] : arrange(this.known.values(), this.folders, this.sort, homedir());
      return this.flat(groups) ?? groups.map((group) => new GroupNode(group, undefined));
    }
    if (parent instanceof MoreNode) {
      return [];
    }
    if (parent instanceof SessionNode) {
      return this.members(parent.below.get(parent.info.sessionId) ?? [], parent, parent.below);
    }
    const { group } = parent;
    if (group.groups.length > 0) {
      return group.groups.map((inner) => new GroupNode(inner, parent));
    }
    const below = families(group.sessions);
    const tops = below.get(null) ?? [];
    const limit = this.limits.get(group.id) ?? PAGE;
    const nodes: Node[] = this.members(tops.slice(0, limit), parent, below);
    return tops.length > limit ? [...nodes, new MoreNode(parent, tops.length - limit)] : nodes;
  }

  getParent(node: Node): Node | undefined {
    return node.parent;
  }

  getTreeItem(node: Node): vscode.TreeItem {
    if (node instanceof GroupNode) {
      return groupItem(node.group);
    }
    return node instanceof MoreNode ? moreItem(node) : sessionItem(node);
  }

  dispose(): void {
    clearTimeout(this.timer);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private find(sessionId: string, parent?: Node): SessionNode | undefined {
    for (const node of this.getChildren(parent)) {
      if (node instanceof SessionNode && node.info.sessionId === sessionId) {
        return node;
      }
      const inner = this.find(sessionId, node);
      if (inner) {
        return inner;
      }
    }
    return undefined;
  }

  /** The node of a session that its group leaves out; the group grows as far as that. */
  private reach(sessionId: string): SessionNode | undefined {
    const groups = arrange(this.known.values(), this.folders, this.sort, homedir());
    for (const { id, sessions } of groups.flatMap((group) => [group, ...group.groups])) {
      const below = families(sessions);
      const holds = (info: SessionInfo): boolean =>
        info.sessionId === sessionId || (below.get(info.sessionId) ?? []).some(holds);
      const place = (below.get(null) ?? []).findIndex(holds);
      if (place >= 0 && place < REACH) {
        this.limits.set(id, Math.ceil((place + 1) / PAGE) * PAGE);
        this.changes.fire(undefined);
        return this.find(sessionId);
      }
    }
    return undefined;
  }

  /** With the scope "all" nothing is grouped: the sessions are the top level. */
  private flat(groups: readonly Group[]): Node[] | undefined {
    const [group] = groups;
    const alone = settings.scope() === "all" && groups.length === 1 && group !== undefined;
    return alone ? this.getChildren(new GroupNode(group, undefined)) : undefined;
  }

  private members(
    sessions: readonly SessionInfo[],
    parent: GroupNode | SessionNode,
    below: ReadonlyMap<string | null, readonly SessionInfo[]>,
  ): SessionNode[] {
    return sessions.map((info) => new SessionNode(info, parent, below));
  }

  /** Which sessions belong to the folders of the workspace: the daemon knows links, aliases and work trees. */
  private async foldersNow(): Promise<Folder[]> {
    const scope = settings.scope();
    if (scope === "all") {
      return [{ name: "All sessions", path: "", holds: () => true }];
    }
    const folders = (vscode.workspace.workspaceFolders ?? []).filter(({ uri }) => uri.scheme === "file");
    return Promise.all(
      folders.map(async ({ name, uri }) => {
        const found = await this.client.request("session/list", { cwd: uri.fsPath, scope, archived: this.archived });
        const own = new Set(found.items.map(({ sessionId }) => sessionId));
        return { name, path: uri.fsPath, holds: (sessionId: string) => own.has(sessionId) };
      }),
    );
  }

  private changed({ upserts, removed }: CatalogChanged): void {
    const regroup = upserts.some((info) => this.known.get(info.sessionId)?.cwd !== info.cwd);
    for (const info of upserts) {
      this.known.set(info.sessionId, info);
    }
    for (const sessionId of removed) {
      this.known.delete(sessionId);
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.drawAfter(regroup), DEBOUNCE_MS);
  }

  private async drawAfter(regroup: boolean): Promise<void> {
    if (regroup) {
      try {
        this.folders = await this.foldersNow();
      } catch {
        return; // the connection is gone; a new one lists again
      }
    }
    this.drawn();
  }

  private drawn(message = ""): void {
    this.view.message = message || (this.query ? `Sessions with “${this.query}”` : "");
    void vscode.commands.executeCommand("setContext", "dsh.listed", true);
    this.changes.fire(undefined);
    if (this.wanted !== undefined) {
      void this.reveal(this.wanted);
    }
  }

  private clear(): void {
    this.known.clear();
    void vscode.commands.executeCommand("setContext", "dsh.listed", false);
    this.view.message = "";
    this.changes.fire(undefined);
  }
}

function groupItem(group: Group): vscode.TreeItem {
  const { Collapsed, Expanded } = vscode.TreeItemCollapsibleState;
  const item = new vscode.TreeItem(oneLine(group.label), group.open ? Expanded : Collapsed);
  item.id = group.id;
  item.description = oneLine(group.description ?? "");
  item.contextValue = "group";
  return item;
}

function moreItem(node: MoreNode): vscode.TreeItem {
  const item = new vscode.TreeItem(`… ${node.count.toLocaleString("en")} more`);
  item.id = `${node.parent.group.id}/more`;
  item.command = { command: "dsh.showLater", title: "Show More Sessions", arguments: [node] };
  return item;
}

function sessionItem({ info, below }: SessionNode): vscode.TreeItem {
  const { Expanded, None } = vscode.TreeItemCollapsibleState;
  const item = new vscode.TreeItem(oneLine(info.title), below.has(info.sessionId) ? Expanded : None);
  const now = Date.now();
  const icon = sessionIcon(info);
  item.id = `session:${info.sessionId}`;
  item.description = sessionDescription(info, now);
  item.iconPath = new vscode.ThemeIcon(icon.name, icon.color ? new vscode.ThemeColor(icon.color) : undefined);
  item.tooltip = sessionTooltip(info, now);
  item.accessibilityInformation = { label: `${oneLine(info.title)}, ${sessionFacts(info, now)}`, role: "treeitem" };
  item.contextValue = [
    "session",
    info.can.resume || info.can.launch ? "resume" : "",
    info.can.branch ? "branch" : "",
    info.can.fork ? "fork" : "",
    info.can.rename ? "rename" : "",
    info.pinned ? "pinned" : "unpinned",
    info.archived ? "archived" : "listed",
  ]
    .filter(Boolean)
    .join(" ");
  item.command = { command: "dsh.openSession", title: "Open Session", arguments: [{ sessionId: info.sessionId }] };
  return item;
}

function sessionTooltip(info: SessionInfo, now: number): vscode.MarkdownString {
  const tooltip = new vscode.MarkdownString();
  const lines = [
    info.title,
    sessionFacts(info, now),
    info.cwd === null ? "" : tilde(info.cwd, homedir()) + (info.cwdExists ? "" : " (not there any more)"),
    info.model ?? "",
    info.costTotal ? `$${info.costTotal.toFixed(2)}` : "",
    info.forkText === undefined ? "" : `forked after: ${info.forkText}`,
    info.live ? `${info.live.certain ? "held" : "perhaps held"} by ${info.live.client}` : "",
    info.lastActivityAt === null ? "" : new Date(info.lastActivityAt).toLocaleString(),
    info.sessionId,
  ];
  tooltip.appendMarkdown(lines.filter(Boolean).map((line) => escapeMarkdown(oneLine(line))).join("\n\n"));
  return tooltip;
}
