// What the daemon says to a client that is not the extension, and how the tests wait.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import * as vscode from "vscode";

const PATIENCE_MS = 10_000;
const run = promisify(execFile);

/** The session that who started the tests has put into the store. */
export const SESSION = process.env["DSH_TEST_SESSION"] ?? "";

/** One that belongs to pi. */
export const PI_SESSION = process.env["DSH_TEST_PI"] ?? "";

/** One whose transcript is too long for a preview. */
export const LONG_SESSION = process.env["DSH_TEST_LONG"] ?? "";

export async function dshd(...words: string[]): Promise<Record<string, unknown>> {
  const program = vscode.workspace.getConfiguration("dsh").get<string>("daemon.path", "");
  const { stdout } = await run(program, [...words, "--json"]);
  return JSON.parse(stdout) as Record<string, unknown>;
}

export async function leaf(): Promise<unknown> {
  return (await dshd("tree", SESSION))["leafId"];
}

/** Waits for what comes by itself. */
export async function until<T>(what: string, look: () => T | undefined | Promise<T | undefined>): Promise<T> {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== false) {
      return found;
    }
    if (Date.now() > end) {
      throw new Error(`${what} does not come`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export function editor(scheme: string): vscode.TextDocument | undefined {
  const document = vscode.window.activeTextEditor?.document;
  return document?.uri.scheme === scheme ? document : undefined;
}
