// What a push about a session means to somebody who follows it ("Resync" in protocol-spec). Pure.
import type { Change, OpenResult } from "./types";

export interface Position {
  readonly epoch: string;
  readonly revision: number;
}

/** `reopen`: ask again from here on; `afresh`: what is known is of another epoch. */
export type Step = "apply" | "ignore" | "reopen" | "afresh";

export function step(mine: Position, change: Pick<Change, "epoch" | "fromRevision" | "revision" | "resync">): Step {
  if (change.epoch !== mine.epoch) {
    return "afresh";
  }
  if (change.resync) {
    return "reopen";
  }
  if (change.revision <= mine.revision) {
    return "ignore";
  }
  return change.fromRevision === mine.revision ? "apply" : "reopen";
}

/** The state after a change that applies. */
export function applied(state: OpenResult, change: Change): OpenResult {
  return {
    ...state,
    ...change.info,
    revision: change.revision,
    leafId: change.leafId,
    openTurn: change.openTurn,
  };
}
