// Searching all sessions: a list that fills while one types.
import * as vscode from "vscode";
import { Client } from "./client";
import { asFault } from "./fault";
import type { Ref } from "./refs";
import { settings } from "./settings";
import { Range, age, cut, marked, oneLine, plural, utf16Ranges, withoutIcons } from "./text";
import type { Hit, SessionInfo, Where } from "./types";

const DEBOUNCE_MS = 120;
const LIMIT = 50;
/** While not everything is searched yet, the same is asked again after so long. */
const AGAIN_MS = 1000;
/** Code points of a title, so that the facts beside it are seen. */
const TITLE = 60;

type Item = vscode.QuickPickItem & { readonly ref?: Ref; readonly session?: SessionInfo };

interface Found {
  readonly items: Item[];
  /** Sessions that are not searched yet. */
  readonly left: number;
}

const EVERYWHERE: vscode.QuickInputButton = { iconPath: new vscode.ThemeIcon("globe"), tooltip: "Search all projects" };
const ALL_HITS: vscode.QuickInputButton = { iconPath: new vscode.ThemeIcon("list-flat"), tooltip: "All hits in this session" };
const BACK = vscode.QuickInputButtons.Back;

/** Asks for words and gives what was chosen: an entry, or a session for its title. */
export function search(client: Client, folder: vscode.WorkspaceFolder | undefined): Promise<Ref | undefined> {
  return new Promise((resolve) => {
    const dialog = new SearchDialog(client, folder, resolve);
    dialog.show();
  });
}

class SearchDialog {
  private readonly pick = vscode.window.createQuickPick<Item>();
  private timer: NodeJS.Timeout | undefined;
  private asked = new vscode.CancellationTokenSource();
  private readonly only: vscode.QuickInputButton;
  private here = false;
  private within: SessionInfo | undefined;

  constructor(
    private readonly client: Client,
    private readonly folder: vscode.WorkspaceFolder | undefined,
    private readonly done: (ref: Ref | undefined) => void,
  ) {
    const { pick } = this;
    this.only = { iconPath: new vscode.ThemeIcon("root-folder"), tooltip: `Search ${folder?.name ?? ""} only` };
    pick.matchOnDetail = true;
    pick.onDidChangeValue(() => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => void this.ask(), DEBOUNCE_MS);
    });
    pick.onDidTriggerButton((button) => {
      if (button === BACK) {
        this.within = undefined;
      } else {
        this.here = button === this.only;
      }
      void this.ask();
    });
    pick.onDidTriggerItemButton(({ item }) => {
      this.within = item.session;
      void this.ask();
    });
    pick.onDidAccept(() => {
      const ref = pick.selectedItems[0]?.ref;
      if (ref) {
        this.finish(ref); // what only tells something is no choice
      }
    });
    pick.onDidHide(() => {
      this.finish(undefined);
    });
  }

  show(): void {
    this.dress();
    this.pick.show();
  }

  private finish(ref: Ref | undefined): void {
    clearTimeout(this.timer);
    this.asked.cancel();
    this.done(ref);
    this.pick.dispose();
  }

  private dress(): void {
    const scope = this.here ? EVERYWHERE : this.only;
    this.pick.buttons = this.within ? [BACK] : this.folder ? [scope] : [];
    this.pick.placeholder = this.within
      ? `Words in “${oneLine(this.within.title)}”`
      : this.here
        ? `Words in the sessions of ${this.folder?.name ?? ""}`
        : "Words in all sessions";
  }

  /** `again`: the words are the same, more may be found now. */
  private async ask(again = false): Promise<void> {
    this.dress();
    clearTimeout(this.timer);
    this.asked.cancel();
    const asked = (this.asked = new vscode.CancellationTokenSource());
    const query = this.pick.value;
    if (!/[^\s"]/.test(query)) {
      this.pick.items = [];
      this.pick.busy = false;
      return;
    }
    this.pick.busy = true;
    try {
      const { items, left } = await (this.within
        ? this.hitsOf(this.within, query, asked.token)
        : this.hits(query, asked.token));
      if (!asked.token.isCancellationRequested) {
        this.fill(items, `Nothing found for “${query}”`, again);
        if (left > 0) {
          this.timer = setTimeout(() => void this.ask(true), AGAIN_MS);
        }
      }
    } catch (error) {
      const fault = asFault(error);
      if (fault.kind !== "cancelled" && !asked.token.isCancellationRequested) {
        this.fill([], fault.message);
      }
    } finally {
      if (this.asked === asked) {
        this.pick.busy = false;
      }
    }
  }

  private async hits(query: string, token: vscode.CancellationToken): Promise<Found> {
    const where: Where = this.here && this.folder ? { cwd: this.folder.uri.fsPath, scope: settings.scope() } : {};
    const found = await this.client.request("search/sessions", { query, where, limit: LIMIT }, token);
    const { indexed, total } = found.coverage;
    const items = found.items.map(({ session, hits, best }): Item => {
      const shown = best.role === "title" ? 0 : 1; // of its hits, which are entries only
      const more = hits > shown ? { buttons: [ALL_HITS] } : {};
      const description = [hits > shown ? plural(hits, "hit") : "", facts(session, best)].filter(Boolean).join(" · ");
      return { ...item(session, best, query), label: withoutIcons(cut(oneLine(session.title), TITLE)), description, ...more };
    });
    const left = total - indexed;
    const rest = { label: `${plural(left, "session")} not searched yet …`, alwaysShow: true };
    return left > 0 ? { items: [...items, rest], left } : { items, left: 0 };
  }

  private async hitsOf(session: SessionInfo, query: string, token: vscode.CancellationToken): Promise<Found> {
    const { sessionId } = session;
    const found = await this.client.request("search/entries", { sessionId, query, limit: LIMIT }, token);
    return { items: found.items.map((hit) => item(session, hit, query)), left: 0 };
  }

  /** `text` stands where there are no items; what is about to be chosen stays so where `again` more is found. */
  private fill(items: Item[], text: string, again = false): void {
    const { pick } = this;
    const active = again ? pick.activeItems[0]?.ref : undefined;
    pick.keepScrollPosition = again;
    pick.items = items.length > 0 ? items : [{ label: withoutIcons(oneLine(text)), alwaysShow: true }];
    const same = active && items.find(({ ref }) => ref?.sessionId === active.sessionId && ref.entryId === active.entryId);
    if (same) {
      pick.activeItems = [same];
    }
  }
}

/** A hit; the list itself shows in bold what was typed where that stands together, several words are marked. */
function item(session: SessionInfo, hit: Hit, query: string): Item {
  const { sessionId } = session;
  const snippet = oneLine(hit.snippet);
  const ranges: readonly Range[] = snippet === hit.snippet ? utf16Ranges(snippet, hit.ranges) : [];
  const together = snippet.toLowerCase().includes(query.trim().toLowerCase());
  return {
    label: withoutIcons(oneLine(hit.role)),
    description: facts(session, hit),
    detail: withoutIcons(together ? snippet : marked(snippet, ranges)),
    alwaysShow: true,
    ref: hit.role === "title" || hit.entryId === null ? { sessionId } : { sessionId, entryId: hit.entryId },
    session,
  };
}

function facts(session: SessionInfo, hit: Hit): string {
  const branch = hit.branch === "abandoned" ? "other branch" : "";
  return [withoutIcons(oneLine(hit.role)), session.format, branch, hit.compacted ? "before a compaction" : "", age(hit.timestamp, Date.now()) ?? ""]
    .filter(Boolean)
    .join(" · ");
}
