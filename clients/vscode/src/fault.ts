// What went wrong with a request, in one shape. Nothing here knows of the editor.
import { ConnectionError, ResponseError } from "vscode-jsonrpc/node";
import type { ErrorKind } from "./types";

/** What the daemon answered instead of a result, or why there is no answer. */
export class Fault extends Error {
  constructor(
    message: string,
    readonly kind: ErrorKind | "cancelled" | "unavailable" | undefined,
    readonly data: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }
}

const CANCELLED = -32800;
const LOST = -32097; // given by the connection itself to what waits when it ends

export function asFault(error: unknown): Fault {
  if (error instanceof Fault) {
    return error;
  }
  if (error instanceof ConnectionError || (error instanceof ResponseError && error.code === LOST)) {
    return new Fault("The connection to the daemon was lost.", "unavailable");
  }
  if (error instanceof ResponseError) {
    const data = (error.data ?? {}) as Record<string, unknown>;
    return new Fault(error.message, error.code === CANCELLED ? "cancelled" : (data["kind"] as ErrorKind | undefined), data);
  }
  return new Fault(error instanceof Error ? error.message : String(error), undefined);
}
