// Compiles the tests into `out/test`: those of `unit` run under node, those of `host` inside VS Code's extension host.
import * as esbuild from "esbuild";
import { readdirSync, rmSync } from "node:fs";

const here = import.meta.dirname;
const out = `${here}/../out/test`;
rmSync(out, { recursive: true, force: true });

const sources = (folder) => readdirSync(`${here}/${folder}`).filter((name) => /(^index|^stand-in|\.test)\.ts$/.test(name));

await esbuild.build({
  entryPoints: ["unit", "host"].flatMap((folder) => sources(folder).map((name) => `${here}/${folder}/${name}`)),
  outdir: out,
  outbase: here,
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  external: ["vscode", "mocha"],
  sourcemap: "inline",
});
