import * as vscode from "vscode";
import { Client, State } from "./client";
import { Commands } from "./commands";
import { environment, find, offers } from "./daemon";
import { Documents, ENTRY, PROMPT, Prompts, TRANSCRIPT } from "./documents";
import { Links } from "./links";
import { Sessions } from "./sessions";
import { currentFolder } from "./settings";
import { Status } from "./status";
import { RowTints, Tree } from "./tree";
import type { OpenResult } from "./types";

export function activate(context: vscode.ExtensionContext): void {
  const { extension, workspaceState } = context;
  const log = vscode.window.createOutputChannel("Agent Sessions", { log: true });
  const write = (line: string) => {
    log.info(line);
  };
  const client = new Client({
    find: () => find(write),
    environment,
    readOnly: () => !vscode.workspace.isTrusted,
    version: (extension.packageJSON as { version: string }).version,
    patienceMs: 5000,
    log: write,
  });
  const sessions = new Sessions(client, workspaceState);
  const tree = new Tree(client, workspaceState);
  const documents = new Documents(client);
  const prompts = new Prompts(client);
  const commands = new Commands(client, sessions, tree, documents, prompts, log, extension.id);
  context.subscriptions.push(
    log,
    client,
    sessions,
    tree,
    documents,
    prompts,
    new Status(client, tree, sessions),
    commands.register(),
    offers(client),
    vscode.workspace.registerTextDocumentContentProvider(ENTRY, documents),
    vscode.workspace.registerTextDocumentContentProvider(TRANSCRIPT, documents),
    vscode.workspace.registerFileSystemProvider(PROMPT, prompts, { isCaseSensitive: true }),
    vscode.window.registerFileDecorationProvider(new RowTints()),
    vscode.window.registerUriHandler(new Links((ref) => commands.open(ref))),
    vscode.workspace.onDidGrantWorkspaceTrust(() => {
      client.reconnect();
    }),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("dsh.daemon.path")) {
        client.reconnect();
      } else if (change.affectsConfiguration("dsh.sessions.scope")) {
        void sessions.list();
      }
    }),
    vscode.window.onDidChangeWindowState(({ focused }) => {
      if (focused) {
        sessions.redraw();
        tree.redraw();
      }
    }),
    client.onState((state) => {
      void told(state);
      if (state.kind === "ready") {
        void first(client, tree);
      }
    }),
    tree.onDidShow((session) => void abilities(session)),
    tree.onDidSwitch((sessionId) => void sessions.reveal(sessionId)),
  );
  client.start();
}

function setContext(name: string, value: unknown): Thenable<unknown> {
  return vscode.commands.executeCommand("setContext", `dsh.${name}`, value);
}

/** What menus and welcome texts ask for. */
async function told(state: State): Promise<void> {
  await setContext("state", state.kind);
  await setContext("connected", state.kind === "ready");
}

async function abilities(session: OpenResult | undefined): Promise<void> {
  await setContext("session", session !== undefined);
  for (const name of ["navigate", "branch", "fork", "resume", "label", "rename", "launch"] as const) {
    await setContext(`can.${name}`, session?.can[name] === true);
  }
}

/** Shows the session that the window showed last, else the latest one of the workspace. */
async function first(client: Client, tree: Tree): Promise<void> {
  if (tree.session) {
    return;
  }
  const folder = currentFolder();
  const last = folder ? [{ ref: "last", cwd: folder.uri.fsPath }] : [];
  for (const params of [...(tree.remembered === undefined ? [] : [{ ref: tree.remembered }]), ...last]) {
    try {
      const { sessionId } = await client.request("session/resolve", params);
      await tree.show(sessionId);
      return;
    } catch {
      // It is gone, or there is none here: the view says what to do.
    }
  }
}
