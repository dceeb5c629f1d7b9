// One level of the tree: a line of rows with each branch that leaves it folded to its first row. The editor takes a
// level whole, so a long one is shown through a window that a person can widen. Nothing here knows of the editor.
import type { Row, TreeResult } from "./types";

/** Rows of a level that are shown at first, and by which it is widened. */
export const PAGE = 500;
/** Rows that the daemon gives in one answer. */
export const MOST = 5000;

export type Ask = { readonly around: string; readonly count: number } | { readonly start: number; readonly count: number };
export type Page = Pick<TreeResult, "total" | "start" | "rows" | "selected" | "leafId">;

export class Level {
  private window: Ask | undefined;
  private page: Promise<Page> | undefined;
  /** What was known last; good to show where there is no answer. */
  shown: Page | undefined;

  /** `leaf` gives the entry around which the level is shown at first. */
  constructor(
    private readonly fetch: (ask: Ask) => Promise<Page>,
    private readonly leaf: () => string | null,
  ) {}

  load(): Promise<Page> {
    this.page ??= this.windowed();
    return this.page;
  }

  /** What is known may not be so any more. */
  stale(): void {
    this.page = undefined;
  }

  /**
   * Has the row in the window that stands for an entry: its own, its nearest visible ancestor's, or its branch's.
   * `moved`: the window has gone there, and what is on the screen is another one.
   */
  async seek(entryId: string): Promise<{ row: Row; moved: boolean } | undefined> {
    const page = await this.load();
    const own = page.rows.find((row) => row.id === entryId);
    if (own) {
      return { row: own, moved: false };
    }
    const place = await this.fetch({ around: entryId, count: 1 });
    const row = place.selected === undefined ? undefined : place.rows[place.selected];
    const moved = row !== undefined && !page.rows.some(({ id }) => id === row.id);
    if (moved) {
      this.page = this.fetched(around(entryId));
      await this.page;
    }
    return row && { row, moved };
  }

  /** Shows more rows on one side; the farthest ones of the other side go where the window would get too large. */
  async widen(side: "earlier" | "later"): Promise<void> {
    const { start, rows, total } = await this.load();
    this.window = widened({ start, count: rows.length }, total, side);
    this.page = undefined;
  }

  private async windowed(): Promise<Page> {
    const page = await this.fetched(this.window ?? around(this.leaf()));
    const past = page.rows.length === 0 && page.total > 0; // the level has become shorter than where the window was
    return past ? this.fetched(around(this.leaf())) : page;
  }

  private async fetched(ask: Ask): Promise<Page> {
    try {
      this.shown = await this.fetch(ask);
    } catch (error) {
      this.page = undefined;
      throw error;
    }
    this.window = kept(this.shown);
    return this.shown;
  }
}

function around(entryId: string | null): Ask {
  return entryId === null ? { start: 0, count: PAGE } : { around: entryId, count: PAGE };
}

/** The window to ask for next time: what is shown stays in its place, and an end that was shown stays in view. */
export function kept({ start, rows, total }: Page): Ask | undefined {
  if (start + rows.length < total) {
    return { start, count: rows.length };
  }
  return rows.length < MOST ? { start, count: MOST } : undefined;
}

export function widened(shown: { start: number; count: number }, total: number, side: "earlier" | "later"): Ask {
  const end = shown.start + shown.count;
  if (side === "earlier") {
    const start = Math.max(0, shown.start - PAGE);
    return { start, count: Math.min(end - start, MOST) };
  }
  const stop = Math.min(total, end + PAGE);
  const start = Math.max(shown.start, stop - MOST);
  return { start, count: stop - start };
}
