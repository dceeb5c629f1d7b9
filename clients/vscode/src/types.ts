// Names for parts of the generated shapes that have none of their own, and for what several modules speak of.
import type { Row, SessionTreeParams } from "./protocol";

export type * from "./protocol";
export type Kind = Row["kind"];
export type FilterMode = NonNullable<SessionTreeParams["filter"]>;
/** What has to be closed one day: of the editor, or of the connection. */
export interface Closing {
  dispose(): unknown;
}
