// Finding `dshd` on this machine, and saying what to do where there is none or another version.
import { constants } from "node:fs";
import { access, stat } from "node:fs/promises";
import { homedir } from "node:os";
import * as path from "node:path";
import * as vscode from "vscode";
import { Client, State } from "./client";
import { candidates } from "./find";
import { settings } from "./settings";
import { withoutLinks } from "./text";
import type { Closing } from "./types";

const INSTALL = `# The daemon of Agent Sessions

The extension shows what \`dshd\` reads: one program per user that serves the sessions of all agents to every tool.
It needs Linux and Python 3.11 or newer. In the folder of dsh-daemon:

    python3 -m venv ~/.local/share/dshd && ~/.local/share/dshd/bin/pip install .
    mkdir -p ~/.local/bin && ln -s ~/.local/share/dshd/bin/dshd ~/.local/bin/dshd

It is looked for in this order:

1. the setting \`dsh.daemon.path\`
2. the \`PATH\` of the editor
3. \`.venv/bin/dshd\` in the folders of a trusted workspace
4. \`~/.local/bin/dshd\`

Then run **Agent Sessions: Restart the Daemon**. In a remote window the program has to be on the remote machine.
`;

export async function find(log: (line: string) => void): Promise<string | undefined> {
  const folders = vscode.workspace.isTrusted
    ? (vscode.workspace.workspaceFolders ?? []).filter(({ uri }) => uri.scheme === "file").map(({ uri }) => uri.fsPath)
    : [];
  const places = { setting: settings.daemonPath(), searchPath: process.env["PATH"] ?? "", folders, home: homedir() };
  const looked = candidates(places);
  for (const candidate of looked) {
    if (await isProgram(candidate)) {
      return candidate;
    }
  }
  log(`looked for dshd: ${looked.join(", ")}`);
  return undefined;
}

/** What the daemon is started with, where this window starts it. */
export function environment(): NodeJS.ProcessEnv {
  const roots = settings.roots();
  return roots.length === 0 ? process.env : { ...process.env, DSHD_ROOTS: roots.join(path.delimiter) };
}

async function isProgram(file: string): Promise<boolean> {
  try {
    await access(file, constants.X_OK);
    return (await stat(file)).isFile();
  } catch {
    return false;
  }
}

export async function showInstallation(): Promise<void> {
  const document = await vscode.workspace.openTextDocument({ language: "markdown", content: INSTALL });
  await vscode.window.showTextDocument(document);
}

/** Says once what keeps the connection from being made, and offers what helps. */
export function offers(client: Client): Closing {
  let told = "";
  const silence = client.onSilence((silent) => {
    if (silent) {
      void offerRestart();
    }
  });
  const states = client.onState((state) => {
    if (state.kind === "ready") {
      told = "";
    } else if ((state.kind === "missing" || state.kind === "mismatch") && told !== state.message) {
      told = state.message;
      void offer(client, state);
    }
  });
  return vscode.Disposable.from(silence, states);
}

async function offerRestart(): Promise<void> {
  const text = "Agent Sessions: the daemon does not answer. What was asked of it is waited for.";
  if ((await vscode.window.showWarningMessage(text, "Restart the Daemon")) !== undefined) {
    await vscode.commands.executeCommand("dsh.restartDaemon");
  }
}

/** Stops the daemon so that another one starts; one that hangs is killed if the person agrees. */
export async function restart(client: Client): Promise<void> {
  const options = { location: vscode.ProgressLocation.Notification, title: "Restarting the daemon of Agent Sessions" };
  await vscode.window.withProgress(options, () => client.restart(mayKill));
}

async function mayKill(pid: number): Promise<boolean> {
  const question = `The daemon (process ${pid}) does not answer. End it at once? What it was writing may be lost.`;
  return (await vscode.window.showWarningMessage(question, { modal: true }, "End It")) === "End It";
}

async function offer(client: Client, state: Extract<State, { kind: "missing" | "mismatch" }>): Promise<void> {
  const setting = settings.daemonPath();
  const text =
    state.kind === "missing" && setting
      ? `There is no program at ${setting}, which dsh.daemon.path names.`
      : state.message;
  const choices =
    state.kind === "missing"
      ? ["Install…", "Choose Its Path", "Look Again"]
      : state.action === "updateDaemon"
        ? ["Restart the Daemon"]
        : [];
  switch (await vscode.window.showWarningMessage(`Agent Sessions: ${withoutLinks(text)}`, ...choices)) {
    case "Install…":
      await showInstallation();
      break;
    case "Choose Its Path":
      await vscode.commands.executeCommand("workbench.action.openSettings", "dsh.daemon.path");
      break;
    case "Look Again":
      client.retry();
      break;
    case "Restart the Daemon":
      await vscode.commands.executeCommand("dsh.restartDaemon");
      break;
    case undefined:
  }
}
