import { pathToFileURL } from "node:url";
import { serve } from "./oracle.mjs";

const session = `${pathToFileURL(process.argv[2]!)}/src/session`;
const { SessionManager } = await import(`${session}/session-manager.ts`);
const { convertToLlm } = await import(`${session}/messages.ts`);

await serve({
  convertToLlm,
  open: (path: string, cwd?: string) =>
    SessionManager.open(path, undefined, undefined, { initialCwd: cwd, suppressBreadcrumb: true }),
  close: (manager: InstanceType<typeof SessionManager>) => manager.close(),
});
process.exit(0);
