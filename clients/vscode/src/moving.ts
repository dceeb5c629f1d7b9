// Going to another place of a session, and making new sessions from one: what these commands ask and show.
import * as vscode from "vscode";
import { Client } from "./client";
import type { Prompts } from "./documents";
import { Fault, asFault } from "./fault";
import type { Ref } from "./refs";
import { age, cut, manyLines, oneLine, plural, withoutIcons, withoutLinks } from "./text";
import type { Tree } from "./tree";
import type { NavigateResult, Requests, Row, SessionNavigateParams } from "./types";

type Summarize = NonNullable<SessionNavigateParams["summarize"]>;

/** Prompts that a list holds; it shows those around the leaf. */
const PROMPTS = 5000;
/** Others may be asked before something is done; after so long a person sees that it goes on, and can cancel it. */
const PATIENCE_MS = 700;
const REPLACE = "Replace It";
const KEEP = "Keep It";

export class Moving {
  constructor(
    private readonly client: Client,
    private readonly tree: Tree,
    private readonly prompts: Prompts,
  ) {}

  /** Goes to an entry, or past a prompt, whose text is then open for editing. */
  async navigate({ sessionId, entryId }: Required<Ref>): Promise<void> {
    await this.tree.show(sessionId);
    let preview: NavigateResult;
    try {
      preview = await this.client.request("session/navigate", { sessionId, targetId: entryId, preview: true });
    } catch (error) {
      await this.forkInstead(sessionId, asFault(error));
      return;
    }
    const unsent = preview.editorText === undefined ? "" : await this.prompts.unsent(sessionId);
    const lost = unsent !== "" && unsent !== manyLines(preview.editorText ?? "");
    const answer = lost ? await askToReplace(unsent) : REPLACE;
    if (answer === undefined) {
      return;
    }
    const asks = preview.abandoned > 0 && (await this.client.can(sessionId)).summarize;
    const summarize = asks ? await askForSummary(preview.abandoned) : false;
    if (summarize !== undefined) {
      const params = { sessionId, targetId: entryId, summarize, expectedLeafId: preview.oldLeafId };
      await this.move(params, answer === KEEP ? unsent : undefined);
    }
  }

  /** Undoes the last move of the leaf. */
  async back(sessionId: string): Promise<void> {
    await this.tree.show(sessionId);
    await this.move({ sessionId, back: true });
  }

  /** Goes to the tip of another branch. */
  async tips(sessionId: string): Promise<void> {
    const { items } = await this.client.request("session/leaves", { sessionId });
    const now = Date.now();
    const choice = await vscode.window.showQuickPick(
      items
        .filter(({ active }) => !active)
        .map((tip) => ({
          label: withoutIcons(`${tip.label === undefined ? "" : `⚑ ${oneLine(tip.label)}  `}${oneLine(tip.text)}`),
          description: `${plural(tip.entries, "entry", "entries")} · ${age(tip.timestamp, now) ?? ""}`,
          entryId: tip.entryId,
        })),
      { placeHolder: "The branch to go to", matchOnDescription: true },
    );
    if (choice) {
      await this.navigate({ sessionId, entryId: choice.entryId });
    }
  }

  /** Makes a new session of the way to a prompt, which is then open for editing. */
  async branch({ sessionId, entryId }: Required<Ref>): Promise<void> {
    const made = await this.asked("session/branch", { sessionId, entryId }, "Branching into a new session", PATIENCE_MS);
    if (made.session) {
      await this.tree.show(made.session.sessionId);
      await this.edit(made.session.sessionId, made.session.title, made.editorText, made.editorImages);
    } else if (made.outcome === "refused") {
      refused("the new session", made);
    } else {
      say("Cancelled: no session was made.");
    }
  }

  /** Makes a new session of the way to an entry; `boundary` undefined: to the leaf. */
  async fork(sessionId: string, boundary: string | undefined): Promise<void> {
    try {
      const made = await this.client.request(
        "session/fork",
        boundary === undefined ? { sessionId } : { sessionId, boundary },
      );
      if (made.outcome === "forked") {
        await this.tree.show(made.session.sessionId);
        say(`Forked: ${plural(made.seedLength, "entry", "entries")} in the new session.`);
      } else {
        say(`The fork was ${made.outcome}.`);
      }
    } catch (error) {
      const fault = asFault(error);
      const { nearestClosed } = fault.data;
      if (fault.kind !== "boundaryInTurn" || typeof nearestClosed !== "string") {
        throw fault;
      }
      const text = "This entry stands within a turn. A fork ends where a turn is closed.";
      if ((await vscode.window.showInformationMessage(text, "Fork at the End of the Turn Above")) !== undefined) {
        await this.fork(sessionId, nearestClosed);
      }
    }
  }

  /** A prompt of any branch, chosen from a list that begins at the leaf. */
  async choosePrompt(sessionId: string): Promise<string | undefined> {
    const leafId = this.client.session(sessionId)?.leafId ?? undefined;
    const { rows, selected } = await this.client.request("session/tree", {
      sessionId,
      filter: "user-only",
      count: PROMPTS,
      ...(leafId === undefined ? {} : { around: leafId }),
    });
    const pick = vscode.window.createQuickPick<vscode.QuickPickItem & { entryId: string }>();
    pick.placeholder = "The prompt to write anew in a session of its own";
    pick.matchOnDescription = true;
    pick.items = rows.map((row) => promptItem(row));
    const nearest = selected === undefined ? undefined : pick.items[selected];
    pick.activeItems = nearest ? [nearest] : [];
    return chosen(pick);
  }

  /** Opens the prompt that a move or branch brought back. */
  async edit(sessionId: string, title: string, text: string | undefined, images?: unknown[]): Promise<void> {
    if (text === undefined) {
      return;
    }
    await this.prompts.openAnew(sessionId, title, text);
    if (images && images.length > 0) {
      say(`${plural(images.length, "picture")} of this prompt can not be shown here; it is sent without.`);
    }
  }

  /** `keep`: the prompt that stays in the place of the one that the move brings. */
  private async move(params: SessionNavigateParams, keep?: string): Promise<void> {
    const [title, patience] = params.summarize
      ? (["Summarizing what is left behind", 0] as const)
      : (["Moving the leaf", PATIENCE_MS] as const);
    const written = this.prompts.text(params.sessionId);
    const moved = await this.asked("session/navigate", params, title, patience);
    const typed = this.prompts.text(params.sessionId); // meanwhile: a summary takes its time
    const stays = keep ?? (typed === written ? undefined : typed);
    switch (moved.outcome) {
      case "moved":
        if (moved.editorText !== undefined) {
          const title = this.client.session(params.sessionId)?.title ?? "";
          if (stays !== undefined) {
            await this.prompts.keep(params.sessionId, title, stays);
            break;
          }
          await this.edit(params.sessionId, title, moved.editorText, moved.editorImages);
        }
        break;
      case "unchanged":
        say(params.back ? "There is no move to undo." : "The leaf is here already.");
        break;
      case "cancelled":
        say("Cancelled: the leaf is where it was.");
        break;
      case "refused":
        refused("the move", moved);
        break;
      case "preview":
    }
  }

  /** A request for which others may be asked: what goes on is shown after `patience`, and can be cancelled. */
  private async asked<M extends "session/navigate" | "session/branch">(
    method: M,
    params: Requests[M]["params"],
    title: string,
    patience: number,
  ): Promise<Requests[M]["result"]> {
    const cancelling = new vscode.CancellationTokenSource();
    let tell: (progress: { message?: string }) => void = () => undefined;
    const answer = this.client.request(method, params, cancelling.token, (progress) => {
      tell(progress);
    });
    const timer = setTimeout(() => {
      const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
      void vscode.window.withProgress(options, (shown, token) => {
        tell = ({ message }) => {
          shown.report(message === undefined ? {} : { message });
        };
        token.onCancellationRequested(() => {
          cancelling.cancel();
        });
        return answer.then(
          () => undefined,
          () => undefined,
        );
      });
    }, patience);
    try {
      return await answer;
    } finally {
      clearTimeout(timer);
      cancelling.dispose();
    }
  }

  /** A log with one path has no other place to go to: a fork of it has. */
  private async forkInstead(sessionId: string, fault: Fault): Promise<void> {
    const { instead, boundary } = fault.data;
    if (fault.kind !== "notSupportedByFormat" || instead !== "session/fork" || typeof boundary !== "string") {
      throw fault;
    }
    const text = "This log has one path: one can not go back in it. A fork goes on from a closed turn.";
    if ((await vscode.window.showInformationMessage(text, "Fork There")) !== undefined) {
      await this.fork(sessionId, boundary);
    }
  }
}

/** What was not done because another program does not want it; this stays until it was read. */
function refused(what: string, { refusedBy, reason }: { refusedBy?: string; reason?: string }): void {
  const who = refusedBy === undefined ? "Another program" : `“${cut(oneLine(refusedBy), 60)}”`;
  const why = reason ? `: ${cut(oneLine(reason), 300)}` : ".";
  void vscode.window.showWarningMessage(`Agent Sessions: ${withoutLinks(`${who} refused ${what}${why}`)}`);
}

/** Whether a prompt that was not sent gives way to the one that a move brings; undefined: no move. */
function askToReplace(unsent: string): Thenable<typeof REPLACE | typeof KEEP | undefined> {
  const question = "The prompt of this session was written and not sent. Does the one that you go back to replace it?";
  const detail = cut(withoutLinks(unsent.trim()), 200);
  return vscode.window.showWarningMessage(question, { modal: true, detail }, REPLACE, KEEP);
}

async function askForSummary(abandoned: number): Promise<Summarize | undefined> {
  const choice = await vscode.window.showQuickPick(
    [
      { label: "No summary", value: false },
      { label: "Summarize", value: true },
      { label: "Summarize with instructions…", value: undefined },
    ],
    { placeHolder: `${plural(abandoned, "entry", "entries")} will be left behind. Put a summary of them at the new place?` },
  );
  if (choice?.value !== undefined || !choice) {
    return choice?.value;
  }
  const instructions = await vscode.window.showInputBox({ prompt: "What the summary should look at" });
  return instructions === undefined ? undefined : { instructions };
}

function promptItem(row: Row): vscode.QuickPickItem & { entryId: string } {
  const label = row.label === undefined ? "" : `⚑ ${oneLine(row.label)}  `;
  return {
    label: withoutIcons(cut(label + oneLine(row.text), 160)),
    description: [row.active ? "" : "other branch", age(row.timestamp, Date.now()) ?? ""].filter(Boolean).join(" · "),
    entryId: row.id,
  };
}

function chosen(pick: vscode.QuickPick<vscode.QuickPickItem & { entryId: string }>): Promise<string | undefined> {
  return new Promise((resolve) => {
    pick.onDidAccept(() => {
      resolve(pick.activeItems[0]?.entryId);
      pick.hide();
    });
    pick.onDidHide(() => {
      resolve(undefined);
      pick.dispose();
    });
    pick.show();
  });
}

/** Something that happened as asked, or did not need to: no window that has to be closed. */
export function say(text: string): void {
  vscode.window.setStatusBarMessage(`$(info) ${withoutIcons(text)}`, 6000);
}
