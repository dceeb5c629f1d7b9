import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import * as vscode from "vscode";
import { LONG_SESSION, PI_SESSION, SESSION, dshd, editor, leaf, until } from "./daemon";

interface Manifest {
  readonly contributes: {
    readonly commands: { command: string; title: string; icon?: string }[];
    readonly menus: Record<string, { command: string; when?: string }[]>;
    readonly configuration: { properties: Record<string, unknown> };
  };
}

const PROMPT = "0c9e2a58"; // "Now refactor the handler", on the branch that is not active
const ANSWER = "7d25fb90"; // of the assistant, on both branches
const LEAF = "3b72d8ee";

function extension(): vscode.Extension<unknown> {
  const found = vscode.extensions.getExtension("dsh-daemon.dsh-sessions");
  assert.ok(found);
  return found;
}

async function run(command: string, ...words: unknown[]): Promise<unknown> {
  return vscode.commands.executeCommand(command, ...words);
}

describe("before it is used", () => {
  it("the extension is not active", () => {
    assert.equal(extension().isActive, false);
  });
});

describe("the commands", () => {
  const { contributes } = JSON.parse(readFileSync(`${extension().extensionPath}/package.json`, "utf8")) as Manifest;

  before(async () => {
    await run("dsh.openSession", { sessionId: SESSION });
  });

  it("are those of the manifest, no more and no fewer", async () => {
    const there = (await vscode.commands.getCommands(true)).filter((name) => /^dsh\.[a-z]+$/i.test(name));

    assert.deepEqual(there.sort(), contributes.commands.map(({ command }) => command).sort());
  });

  it("have a title each, and an icon where a menu shows them as a button", () => {
    const named = new Map(contributes.commands.map((one) => [one.command, one]));
    const buttons = ["view/title", "view/item/context", "editor/title"].flatMap((menu) =>
      (contributes.menus[menu] ?? []).filter((item) => /navigation|inline/.test((item as { group?: string }).group ?? "")),
    );

    assert.ok(buttons.length > 0);
    assert.deepEqual(buttons.filter(({ command }) => !named.get(command)?.icon), []);
    assert.deepEqual(contributes.commands.filter(({ title }) => !title), []);
  });

  it("are in the palette unless the manifest hides them", () => {
    const hidden = (contributes.menus["commandPalette"] ?? []).filter(({ when }) => when === "false");

    assert.deepEqual(hidden.map(({ command }) => command).sort(), ["dsh.showEarlier", "dsh.showLater"]);
  });
});

describe("a session that is open", () => {
  before(async () => {
    await run("dsh.openSession", { sessionId: SESSION });
  });

  afterEach(async () => {
    await run("workbench.action.closeAllEditors");
  });

  it("gives its link and the text of an entry to the clipboard", async () => {
    await run("dsh.copyLink", { sessionId: SESSION, entryId: ANSWER });
    const link = await vscode.env.clipboard.readText();
    assert.equal(link, `${vscode.env.uriScheme}://dsh-daemon.dsh-sessions/session/${SESSION}#${ANSWER}`);

    await run("dsh.copyText", { sessionId: SESSION, entryId: ANSWER });
    assert.match(await vscode.env.clipboard.readText(), /^The handler rebuilds the URL from pathname only/);
  });

  it("opens an entry as a document that cannot be changed", async () => {
    await run("dsh.openEntry", { sessionId: SESSION, entryId: ANSWER });
    const document = await until("the entry", () => editor("dsh-entry"));

    await run("type", { text: "x" });

    assert.match(document.getText(), /^The handler rebuilds/);
    assert.equal(document.isDirty, false);
  });

  it("opens its transcript in the preview", async () => {
    await run("dsh.openTranscript", { sessionId: SESSION });

    const tab = await until("the preview", () => {
      const input = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
      return input instanceof vscode.TabInputWebview ? input : undefined;
    });

    assert.match(tab.viewType, /markdown\.preview/);
  });

  it("opens a transcript as text where it is too long for the preview", async () => {
    await run("dsh.openTranscript", { sessionId: LONG_SESSION });

    assert.ok((await until("the text", () => editor("dsh-transcript"))).getText().length > 1_500_000);
  });

  it("navigates, gives the prompt to edit, keeps it as the draft and goes back", async () => {
    await run("dsh.navigate", { sessionId: SESSION, entryId: PROMPT });
    const document = await until("the prompt", () => editor("dsh-prompt"));
    assert.equal(document.getText(), "Now refactor the handler");
    await vscode.env.clipboard.writeText("not sent");
    await run("dsh.sendPrompt"); // the key that went to the prompt, pressed twice
    assert.equal(await vscode.env.clipboard.readText(), "not sent");
    assert.notEqual(await leaf(), LEAF);

    const edit = new vscode.WorkspaceEdit();
    edit.insert(document.uri, new vscode.Position(0, 0), "Please: ");
    await vscode.workspace.applyEdit(edit);
    await document.save();
    await run("workbench.action.closeAllEditors");
    await run("dsh.openPrompt", { sessionId: SESSION });
    assert.equal((await until("the draft", () => editor("dsh-prompt"))).getText(), "Please: Now refactor the handler");

    await run("dsh.back", { sessionId: SESSION });
    assert.equal(await until("the old leaf", async () => ((await leaf()) === LEAF ? LEAF : undefined)), LEAF);
  });

  it("is branched and forked into sessions of their own", async () => {
    const before = (await dshd("list"))["total"] as number;

    await run("dsh.branch", { sessionId: SESSION, entryId: PROMPT });
    assert.equal((await until("the prompt", () => editor("dsh-prompt"))).getText(), "Now refactor the handler");
    await run("dsh.fork", { sessionId: SESSION, entryId: LEAF });

    const total = await until("two sessions", async () => {
      const now = (await dshd("list"))["total"] as number;
      return now === before + 2 ? now : undefined;
    });
    assert.equal(total, before + 2);
  });

  it("is resumed in one terminal where it belongs to an agent of its own", async () => {
    const before = vscode.window.terminals.length;
    await Promise.all([run("dsh.resume", { sessionId: PI_SESSION }), run("dsh.resume", { sessionId: PI_SESSION })]);
    await run("dsh.resume", { sessionId: PI_SESSION });

    const terminal = await until("the terminal", () => vscode.window.terminals.at(-1));
    assert.equal(vscode.window.terminals.length, before + 1);
    const { shellPath, shellArgs } = terminal.creationOptions as vscode.TerminalOptions;
    terminal.dispose();
    assert.match(shellPath ?? "", /pi$/);
    assert.ok(shellArgs?.includes("--session"));
    assert.equal(terminal.name, "Start");
  });

  it("is not harmed by what a command is given wrongly", async () => {
    const before = await leaf();

    for (const command of ["dsh.openEntry", "dsh.copyText", "dsh.navigate", "dsh.fork"]) {
      void run(command, { sessionId: SESSION, entryId: "no-such-entry" });
      void run(command, { sessionId: "no-such-session", entryId: ANSWER });
    }
    await run("dsh.openSession", { sessionId: "no-such-session" });

    assert.equal(await leaf(), before);
    await run("dsh.openSession", { sessionId: SESSION });
  });
});
