// The connection to the daemon: found, started, lost and found again; and the sessions that are followed over it.
import { setTimeout as setTimeoutPromise } from "node:timers/promises";
import { CancellationToken, Disposable, Emitter, MessageConnection, ProgressType } from "vscode-jsonrpc/node";
import { Fault, asFault } from "./fault";
import { retryDelay } from "./find";
import { Link, startLink } from "./link";
import { applied, step } from "./resync";
import { InitializeResult, OpenResult, PROTOCOL_VERSION, Pushes, Requests } from "./protocol";

export type State =
  | { readonly kind: "idle" }
  | { readonly kind: "connecting" }
  | { readonly kind: "ready"; readonly version: string; readonly methods: ReadonlySet<string>; readonly formats: readonly string[] }
  | { readonly kind: "missing"; readonly message: string }
  | { readonly kind: "mismatch"; readonly message: string; readonly action: "updateClient" | "updateDaemon" }
  | { readonly kind: "failed"; readonly message: string };

export interface Options {
  /** Path of `dshd`, looked for anew at each attempt; undefined where there is none. */
  readonly find: () => Promise<string | undefined>;
  readonly environment: () => NodeJS.ProcessEnv;
  /** Whether the daemon shall refuse this client everything that changes anything. */
  readonly readOnly: () => boolean;
  readonly version: string;
  /** How long an answer may take before the daemon is asked whether it is there, and how long it may take for that. */
  readonly patienceMs: number;
  readonly log: (line: string) => void;
}

export interface Progress {
  readonly message?: string;
  readonly percentage?: number;
}

/** A connection that ends sooner counts as a failed attempt. */
const LASTING_MS = 5000;
/** In patiences: a daemon that starts, or that finishes what it does before it stops, takes longer. */
const SLOWLY = 3;
/** A state of a session that is asked for; the answer may be older than what was heard meanwhile. */
interface Opening {
  heard?: Pushes["session/changed"];
}

const PROGRESS = new ProgressType<Progress>();

export class Client implements Disposable {
  private readonly states = new Emitter<State>();
  private readonly sessions = new Emitter<string>();
  private readonly gone = new Emitter<Pushes["session/closed"]>();
  private readonly catalog = new Emitter<Pushes["catalog/changed"]>();
  private readonly agents = new Emitter<Pushes["agent/status"]>();
  private readonly silences = new Emitter<boolean>();
  private readonly followed = new Map<string, OpenResult>();
  private readonly opening = new Map<string, Opening>();
  private current: State = { kind: "idle" };
  private link: Link | undefined;
  private disposed = false;
  private running = false;
  private wake: (() => void) | undefined;
  private called = false;
  private tokens = 0;
  private probing = false;
  private noAnswer = false;

  readonly onState = this.states.event;
  /** A followed session changed: `session` gives its state. */
  readonly onSession = this.sessions.event;
  readonly onGone = this.gone.event;
  readonly onCatalog = this.catalog.event;
  readonly onAgent = this.agents.event;
  /** The daemon is connected and does not answer, or does so again. */
  readonly onSilence = this.silences.event;

  constructor(private readonly options: Options) {}

  get state(): State {
    return this.current;
  }

  get silent(): boolean {
    return this.noAnswer;
  }

  /** Connects and stays connected; more calls change nothing. */
  start(): void {
    if (!this.running && !this.disposed) {
      this.running = true;
      void this.run();
    }
  }

  /** Tries at once where an attempt is waited for. */
  retry(): void {
    this.start();
    this.called = true;
    this.wake?.();
  }

  /** Ends the connection; it is made anew with what the settings say now. */
  reconnect(): void {
    this.link?.close();
    this.retry();
  }

  /** Ends the daemon, for all its clients; the next connection starts one. `mayKill` is asked of one that hangs. */
  async restart(mayKill: (pid: number) => Promise<boolean>): Promise<void> {
    const link = this.link ?? (await this.another());
    if (link) {
      try {
        await this.stop(link, mayKill);
      } catch (error) {
        throw asFault(error);
      } finally {
        link.close();
      }
    }
    this.retry();
  }

  async request<M extends keyof Requests>(
    method: M,
    params: Requests[M]["params"],
    token?: CancellationToken,
    report?: (progress: Progress) => void,
  ): Promise<Requests[M]["result"]> {
    const link = await this.ready();
    const { connection } = link;
    if (this.current.kind === "ready" && !this.current.methods.has(method)) {
      throw new Fault(`The daemon (version ${this.current.version}) does not know ${method}: update it.`, "unavailable");
    }
    const workDoneToken = report && `vscode-${++this.tokens}`;
    const listening = workDoneToken && connection.onProgress(PROGRESS, workDoneToken, report);
    const late = setTimeout(() => void this.probe(link), this.options.patienceMs);
    try {
      return await connection.sendRequest<Requests[M]["result"]>(
        method,
        workDoneToken ? { ...params, workDoneToken } : params,
        token ?? CancellationToken.None, // left out it would be taken for a second parameter
      );
    } catch (error) {
      throw asFault(error);
    } finally {
      clearTimeout(late);
      if (listening) {
        listening.dispose();
      }
    }
  }

  /** The state of a session that is followed from now on. */
  async open(sessionId: string, token?: CancellationToken): Promise<OpenResult> {
    const known = this.followed.get(sessionId);
    if (known) {
      return known;
    }
    const opening = this.begin(sessionId);
    try {
      const state = await this.request("session/open", { sessionId }, token);
      this.followed.set(sessionId, state);
      return state;
    } finally {
      this.end(sessionId, opening);
    }
  }

  session(sessionId: string): OpenResult | undefined {
    return this.followed.get(sessionId);
  }

  /** What can be done with a session now: a summarizer comes and goes without a word about its sessions. */
  async can(sessionId: string): Promise<OpenResult["can"]> {
    return (await this.request("session/open", { sessionId, subscribe: false })).can;
  }

  async close(sessionId: string): Promise<void> {
    if (this.followed.delete(sessionId) && this.current.kind === "ready") {
      await this.request("session/close", { sessionId });
    }
  }

  dispose(): void {
    this.disposed = true;
    this.link?.close();
    this.wake?.();
    for (const emitter of [this.states, this.sessions, this.gone, this.catalog, this.agents, this.silences]) {
      emitter.dispose();
    }
  }

  /** The link once there is one; a Fault where there will be none before somebody acts. */
  private async ready(): Promise<Link> {
    this.start();
    while (this.current.kind !== "ready" || !this.link) {
      const { kind } = this.current;
      if (kind === "missing" || kind === "mismatch" || kind === "failed") {
        throw new Fault(this.current.message, "unavailable");
      }
      await new Promise<void>((resolve) => {
        const waiting = this.onState(() => {
          waiting.dispose();
          resolve();
        });
      });
    }
    return this.link;
  }

  private async run(): Promise<void> {
    let failures = 0;
    for (;;) {
      if (failures === 0) {
        this.become({ kind: "connecting" });
      }
      this.called = false;
      const { lastedMs, state } = await this.once();
      if (this.disposed) {
        return;
      }
      failures = lastedMs >= LASTING_MS ? 0 : failures + 1;
      this.become(state);
      const again = state.kind === "connecting" || state.kind === "failed";
      if (await this.sleep(again ? retryDelay(failures) : undefined)) {
        failures = 0;
      }
    }
  }

  /** One connection from its beginning to its end: how long it lasted, and what to say now. */
  private async once(): Promise<{ lastedMs: number; state: State }> {
    const program = await this.options.find();
    if (program === undefined) {
      return { lastedMs: 0, state: { kind: "missing", message: "The daemon dshd was not found." } };
    }
    this.options.log(`starting ${program} stdio`);
    const link = (this.link = this.linked(program));
    try {
      const late = this.after(SLOWLY, "The daemon does not answer.");
      const answer = await Promise.race([this.introduced(link.connection), link.ended, late]);
      if (typeof answer === "string") {
        return { lastedMs: 0, state: { kind: "failed", message: answer } };
      }
      const since = Date.now();
      const { dsh } = answer.capabilities.experimental;
      link.pid = dsh.daemon.pid;
      this.options.log(`connected to dsh-daemon ${answer.serverInfo.version}, pid ${dsh.daemon.pid}`);
      this.become({
        kind: "ready",
        version: answer.serverInfo.version,
        methods: new Set(dsh.methods),
        formats: dsh.formats,
      });
      this.reopenAll();
      this.options.log(await link.ended);
      return { lastedMs: Date.now() - since, state: { kind: "connecting" } };
    } catch (error) {
      return { lastedMs: 0, state: refused(error) };
    } finally {
      link.close();
      this.link = undefined;
    }
  }

  private async stop(link: Link, mayKill: (pid: number) => Promise<boolean>): Promise<void> {
    const asked = link.connection.sendRequest("daemon/stop", {}); // taken before `initialize` too
    if ((await Promise.race([asked.then(() => link.ended), this.after(SLOWLY, undefined)])) !== undefined) {
      return;
    }
    const { pid } = link;
    if (pid === undefined) {
      throw new Fault("The daemon does not answer: end its process, “dshd serve”, by hand.", "unavailable");
    }
    if (await Promise.race([mayKill(pid), link.ended.then(() => false)])) {
      process.kill(pid, "SIGKILL");
      await link.ended;
    }
  }

  /** Asks the daemon whether it is there, and tells where it does not say so. */
  private async probe({ connection }: Link): Promise<void> {
    if (this.probing) {
      return;
    }
    this.probing = true;
    const answered = connection.sendRequest("daemon/ping", {}).then(
      () => true,
      () => true, // the connection has ended, which is told as such
    );
    if (!(await Promise.race([answered, this.after(1, false)]))) {
      this.hear(true);
      await answered;
      this.hear(false);
    }
    this.probing = false;
  }

  private hear(silent: boolean): void {
    this.noAnswer = silent;
    this.silences.fire(silent);
  }

  private after<T>(patiences: number, value: T): Promise<T> {
    return setTimeoutPromise(patiences * this.options.patienceMs, value, { ref: false });
  }

  /** A link for one request, where there is no connection. */
  private async another(): Promise<Link | undefined> {
    const program = await this.options.find();
    return program === undefined ? undefined : this.linked(program);
  }

  private async introduced(connection: MessageConnection): Promise<InitializeResult> {
    const answer = await connection.sendRequest<InitializeResult>("initialize", {
      processId: process.pid,
      clientInfo: { name: "vscode", version: this.options.version },
      rootUri: null,
      capabilities: {},
      initializationOptions: { protocolVersion: PROTOCOL_VERSION, readOnly: this.options.readOnly() },
    });
    if ((answer as Partial<InitializeResult> | null)?.serverInfo?.name !== "dsh-daemon") {
      throw new Fault("The program that was started is not dsh-daemon.", "unavailable");
    }
    await connection.sendNotification("initialized", {});
    return answer;
  }

  private linked(program: string): Link {
    const link = startLink(program, this.options.environment());
    this.listen(link.connection);
    return link;
  }

  private listen(connection: MessageConnection): void {
    connection.onNotification("session/changed", (change: Pushes["session/changed"]) => {
      this.changed(change);
    });
    connection.onNotification("session/closed", (closed: Pushes["session/closed"]) => {
      if (this.followed.has(closed.sessionId)) {
        void this.reopen(closed.sessionId, false);
      }
    });
    connection.onNotification("catalog/changed", (change: Pushes["catalog/changed"]) => {
      this.listed(change);
      this.catalog.fire(change);
    });
    connection.onNotification("agent/status", (status: Pushes["agent/status"]) => {
      this.agents.fire(status);
    });
    connection.onError(([error]) => {
      this.options.log(error.message);
    });
    connection.listen();
  }

  private changed(change: Pushes["session/changed"]): void {
    const { sessionId } = change;
    const opening = this.opening.get(sessionId);
    if (opening) {
      opening.heard = change;
      return;
    }
    const mine = this.followed.get(sessionId);
    if (!mine) {
      return;
    }
    switch (step(mine, change)) {
      case "apply":
        this.followed.set(sessionId, applied(mine, change));
        this.sessions.fire(sessionId);
        break;
      case "reopen":
        void this.reopen(sessionId, true);
        break;
      case "afresh":
        void this.reopen(sessionId, false);
        break;
      case "ignore":
    }
  }

  private reopenAll(): void {
    for (const sessionId of this.followed.keys()) {
      this.opening.delete(sessionId); // what was asked of the connection before
      void this.reopen(sessionId, true);
    }
  }

  /** Asks for the state of a followed session again, `since` the one that is known or afresh. */
  private async reopen(sessionId: string, since: boolean): Promise<void> {
    const mine = this.followed.get(sessionId);
    if (!mine || this.opening.has(sessionId)) {
      return;
    }
    const opening = this.begin(sessionId);
    try {
      const { epoch, revision } = mine;
      const state = await this.request("session/open", since ? { sessionId, since: { epoch, revision } } : { sessionId });
      if (this.followed.has(sessionId)) {
        this.followed.set(sessionId, state);
        this.sessions.fire(sessionId);
      }
    } catch (error) {
      if (asFault(error).kind !== "unavailable") {
        this.followed.delete(sessionId);
        this.gone.fire({ sessionId, reason: "deleted" });
      }
    } finally {
      this.end(sessionId, opening);
    }
  }

  private begin(sessionId: string): Opening {
    const opening: Opening = {};
    this.opening.set(sessionId, opening);
    return opening;
  }

  private end(sessionId: string, opening: Opening): void {
    if (this.opening.get(sessionId) === opening) {
      this.opening.delete(sessionId);
      if (opening.heard) {
        this.changed(opening.heard);
      }
    }
  }

  /** What the list says of a session that is followed: a title or an ability changes without a change of its log. */
  private listed({ upserts }: Pushes["catalog/changed"]): void {
    for (const info of upserts) {
      const mine = this.followed.get(info.sessionId);
      if (mine) {
        this.followed.set(info.sessionId, { ...mine, ...info });
        if (mine.title !== info.title || JSON.stringify(mine.can) !== JSON.stringify(info.can)) {
          this.sessions.fire(info.sessionId);
        }
      }
    }
  }

  private become(state: State): void {
    this.current = state;
    if ("message" in state) {
      this.options.log(state.message);
    }
    this.states.fire(state);
  }

  /** Waits `ms`, or until `retry` is called, which may have been already; says whether it was. */
  private async sleep(ms: number | undefined): Promise<boolean> {
    if (!this.called) {
      await new Promise<void>((resolve) => {
        const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.wake = undefined;
    }
    return this.called;
  }
}

/** What the answer to `initialize` says about going on. */
function refused(error: unknown): State {
  const fault = asFault(error);
  if (fault.kind !== "versionMismatch") {
    return { kind: "failed", message: fault.message };
  }
  const { daemon, client, action } = fault.data;
  return action === "updateDaemon"
    ? {
        kind: "mismatch",
        action,
        message: `The daemon that runs is too old for this extension: it speaks version ${String(daemon)} of the protocol, the extension ${String(client)}. Update dsh-daemon and restart it.`,
      }
    : {
        kind: "mismatch",
        action: "updateClient",
        message: `This extension is too old for the daemon that runs: it speaks version ${String(client)} of the protocol, the daemon ${String(daemon)}. Update the extension.`,
      };
}
