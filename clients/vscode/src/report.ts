// What the daemon says of itself, in a list.
import { homedir } from "node:os";
import * as vscode from "vscode";
import { tilde } from "./catalog";
import type { Client } from "./client";
import { size } from "./rows";
import { oneLine, plural, withoutIcons } from "./text";
import type { StatusResult } from "./types";

type Item = vscode.QuickPickItem & { readonly run?: () => unknown };

export async function showStatus(client: Client, log: vscode.LogOutputChannel): Promise<void> {
  const { state } = client;
  const facts: Item[] =
    state.kind === "ready"
      ? statusItems(await client.request("daemon/status", {}))
      : [{ label: "message" in state ? oneLine(state.message) : "Connecting to the daemon …" }];
  const actions: Item[] = [
    { label: "", kind: vscode.QuickPickItemKind.Separator },
    { label: "$(output) Show the Log of This Window", run: () => { log.show(); } },
    { label: "$(debug-restart) Restart the Daemon", run: () => vscode.commands.executeCommand("dsh.restartDaemon") },
    { label: "$(cloud-download) How to Install the Daemon", run: () => vscode.commands.executeCommand("dsh.install") },
  ];
  const choice = await vscode.window.showQuickPick([...facts, ...actions], { placeHolder: "The daemon of Agent Sessions" });
  await choice?.run?.();
}

function statusItems(status: StatusResult): Item[] {
  const { pid, version, uptimeMs, memoryBytes, connections, openSessions, index, watch, roots } = status;
  const clients = connections.map(({ name }) => oneLine(name)).join(", ");
  return [
    { label: `dsh-daemon ${version}`, description: `pid ${pid} · up ${duration(uptimeMs)} · ${size(memoryBytes)}` },
    { label: plural(connections.length, "client"), description: withoutIcons(clients) },
    { label: `${plural(openSessions, "session")} open` },
    {
      label: index.state === "building" ? `Reading: ${index.indexed} of ${index.total}` : "All sessions are read",
      description: watch.mode === "polling" ? `changes are looked for now and then: ${watch.reason ?? ""}` : "",
    },
    { label: "Folders", kind: vscode.QuickPickItemKind.Separator },
    ...roots.map(({ path, format, exists, readable, sessions }) => ({
      label: withoutIcons(tilde(oneLine(path), homedir())),
      description: [format, !exists ? "not there yet" : readable ? plural(sessions, "session") : "cannot be read"].join(" · "),
    })),
  ];
}

function duration(ms: number): string {
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
