// Links to sessions and entries, as people pass them on. Nothing here knows of the editor.

export interface Ref {
  readonly sessionId: string;
  readonly entryId?: string;
}

const PATH = "/session/";

/** `vscode://<extension>/session/<id>#<entry>` */
export function linkTo({ sessionId, entryId }: Ref, scheme: string, extension: string): string {
  const entry = entryId === undefined ? "" : `#${encodeURIComponent(entryId)}`;
  return `${scheme}://${extension}${PATH}${encodeURIComponent(sessionId)}${entry}`;
}

/** What a link names, its parts decoded already; undefined where it is none of ours. */
export function parseLink(path: string, fragment: string): Ref | undefined {
  const sessionId = path.startsWith(PATH) ? path.slice(PATH.length) : "";
  if (!sessionId || sessionId.includes("/")) {
    return undefined;
  }
  return fragment ? { sessionId, entryId: fragment } : { sessionId };
}
