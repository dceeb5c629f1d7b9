// Bundles the extension into one file; `--watch` builds again on every change.
import * as esbuild from "esbuild";

const options = {
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  external: ["vscode"],
  minify: !process.argv.includes("--watch"),
  sourcemap: process.argv.includes("--watch") && "inline",
  legalComments: "inline",
};

if (process.argv.includes("--watch")) {
  const context = await esbuild.context(options);
  await context.watch();
} else {
  await esbuild.build(options);
}
