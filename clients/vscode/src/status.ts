// The item in the status bar: how the daemon is, and who works in the session of the Tree view.
import * as vscode from "vscode";
import type { Client } from "./client";
import type { Sessions } from "./sessions";
import { cut, oneLine, withoutIcons } from "./text";
import type { Tree } from "./tree";
import type { AgentStatus, Closing } from "./types";

export class Status implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("dsh.status", vscode.StatusBarAlignment.Left, 10);
  private readonly disposables: Closing[];
  private heard: AgentStatus | undefined;

  constructor(
    private readonly client: Client,
    private readonly tree: Tree,
    private readonly sessions: Sessions,
  ) {
    this.item.name = "Agent Sessions";
    this.item.command = "dsh.showStatus";
    const draw = () => {
      this.draw();
    };
    this.disposables = [
      this.item,
      client.onState(draw),
      client.onSilence(draw),
      client.onCatalog(draw),
      client.onAgent((status) => {
        this.heard = status;
        draw();
      }),
      tree.onDidShow(draw),
    ];
    this.draw();
    this.item.show();
  }

  dispose(): void {
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private draw(): void {
    const { state } = this.client;
    const { item } = this;
    item.backgroundColor = undefined;
    if (this.client.silent) {
      this.warn("The daemon does not answer");
      return;
    }
    switch (state.kind) {
      case "ready":
        this.drawSession(state.version);
        return;
      case "idle":
        item.text = "$(list-tree) Sessions";
        item.tooltip = "Not connected to the daemon yet";
        return;
      case "connecting":
        item.text = "$(sync~spin) Sessions";
        item.tooltip = "Connecting to the daemon …";
        return;
      default:
        this.warn(oneLine(state.message));
    }
  }

  private warn(message: string): void {
    this.item.text = "$(warning) Sessions";
    this.item.tooltip = message;
    this.item.backgroundColor = new vscode.ThemeColor("statusBarItem.warningBackground");
  }

  private drawSession(version: string): void {
    const session = this.tree.session;
    const running = session !== undefined && this.isRunning(session.sessionId);
    const title = session ? withoutIcons(cut(oneLine(session.title), 30)) : "Sessions";
    this.item.text = `${running ? "$(play-circle)" : "$(list-tree)"} ${title}${running ? " · running" : ""}`;
    const detail = running && this.heard?.detail ? `: ${oneLine(this.heard.detail)}` : "";
    const agent = session && (running ? `an agent works in it${detail}` : "no agent works in it");
    this.item.tooltip = session ? `${oneLine(session.title)}: ${agent ?? ""}\ndsh-daemon ${version}` : `dsh-daemon ${version}`;
    void vscode.commands.executeCommand("setContext", "dsh.agentRunning", running);
  }

  /** What the agent said last counts, else what the list of sessions says. */
  private isRunning(sessionId: string): boolean {
    const live = this.sessions.get(sessionId)?.live ?? this.client.session(sessionId)?.live;
    if (!live) {
      return false;
    }
    return (this.heard?.sessionId === sessionId ? this.heard.status : live.status) === "running";
  }
}
