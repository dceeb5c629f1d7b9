// The settings, read where they are used: they may change at any time.
import * as vscode from "vscode";
import type { FilterMode } from "./types";

function get<T>(name: string, otherwise: T): T {
  return vscode.workspace.getConfiguration("dsh").get<T>(name, otherwise);
}

/** The folder of the workspace that is worked in: that of the editor, else the first one. */
export function currentFolder(): vscode.WorkspaceFolder | undefined {
  const uri = vscode.window.activeTextEditor?.document.uri;
  const found = uri?.scheme === "file" ? vscode.workspace.getWorkspaceFolder(uri) : undefined;
  return found ?? vscode.workspace.workspaceFolders?.find((folder) => folder.uri.scheme === "file");
}

export const settings = {
  daemonPath: () => get("daemon.path", "").trim(),
  roots: () => get<string[]>("roots", []).filter(Boolean),
  scope: () => get<"exact" | "subtree" | "repo" | "all">("sessions.scope", "repo"),
  filter: () => get<FilterMode>("tree.filter", "default"),
  followLeaf: () => get("tree.followLeaf", true),
  picker: () => get<"messages" | "tree">("branch.picker", "messages"),
};
