import { pathToFileURL } from "node:url";
import { serve } from "./oracle.mjs";

const core = `${pathToFileURL(process.argv[2])}/dist/core`;
const { SessionManager } = await import(`${core}/session-manager.js`);
const { convertToLlm } = await import(`${core}/messages.js`);

await serve({ convertToLlm, open: (path, cwd) => SessionManager.open(path, undefined, cwd) });
