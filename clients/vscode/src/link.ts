// `dshd stdio` as a child, and the connection over its pipes. Nothing here knows of the editor.
import { spawn } from "node:child_process";
import { homedir } from "node:os";
import {
  Message,
  MessageConnection,
  StreamMessageReader,
  StreamMessageWriter,
  createMessageConnection,
} from "vscode-jsonrpc/node";

const CLOSING_MS = 2000;

export interface Link {
  readonly connection: MessageConnection;
  /** That of the daemon, once it has said so. */
  pid?: number;
  /** Resolves with what the program said when the link ends. */
  readonly ended: Promise<string>;
  readonly close: () => void;
}

/** A program that has ended is told by the link's end: then each request that waits is rejected, once. */
class Writer extends StreamMessageWriter {
  override async write(message: Message): Promise<void> {
    await super.write(message).catch(() => undefined);
  }
}

/** Starts the program; the connection does not listen yet. */
export function startLink(program: string, env: NodeJS.ProcessEnv): Link {
  const child = spawn(program, ["stdio"], { cwd: homedir(), env });
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    said = (said + text).slice(-4000);
  });
  child.stdin.on("error", () => undefined); // its end is told by `close`
  const ended = new Promise<string>((resolve) => {
    child.on("error", (error) => {
      resolve(`${program} could not be run: ${error.message}`);
    });
    child.on("close", (code) => {
      resolve(said.trim() || `dshd ended with status ${code ?? "none"}`);
    });
  });
  const connection = createMessageConnection(new StreamMessageReader(child.stdout), new Writer(child.stdin));
  void ended.then(() => {
    connection.dispose(); // what waits for an answer is told
  });
  return {
    connection,
    ended,
    close: () => {
      child.stdin.end();
      const late = setTimeout(() => child.kill(), CLOSING_MS);
      void ended.then(() => {
        clearTimeout(late);
      });
    },
  };
}
