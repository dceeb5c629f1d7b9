// Where `dshd` is, and when to try again. Nothing here knows of the editor.
import * as path from "node:path";

export interface Places {
  /** The setting; empty where nothing is set. */
  readonly setting: string;
  /** The variable PATH. */
  readonly searchPath: string;
  /** Folders of a trusted workspace: a program of an untrusted one is not run. */
  readonly folders: readonly string[];
  readonly home: string;
}

/** The places where `dshd` may be, in the order in which they count. */
export function candidates({ setting, searchPath, folders, home }: Places): string[] {
  if (setting) {
    const expanded = setting.startsWith("~/") ? path.join(home, setting.slice(2)) : setting;
    return path.isAbsolute(expanded) ? [expanded] : folders.map((folder) => path.join(folder, expanded));
  }
  const onPath = searchPath.split(path.delimiter).filter((folder) => path.isAbsolute(folder));
  return [
    ...onPath.map((folder) => path.join(folder, "dshd")),
    ...folders.map((folder) => path.join(folder, ".venv", "bin", "dshd")),
    path.join(home, ".local", "bin", "dshd"),
  ];
}

/** Milliseconds to wait before the attempt after `failures` failed ones. */
export function retryDelay(failures: number): number {
  return Math.min(250 * 2 ** failures, 10_000);
}
