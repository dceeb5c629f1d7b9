// node format.mjs [--check] NODE_MODULES STYLUA_TOML FILE…: formats Lua; prints the names of files that were not formatted.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const check = process.argv.includes("--check");
const [modules, toml, ...files] = process.argv.slice(2).filter((argument) => argument !== "--check");
const { Config, IndentType, OutputVerification, formatCode } = createRequire(modules + "/")("@johnnymorganz/stylua");
const settings = [...readFileSync(toml, "utf8").matchAll(/^(\w+) = "?(\w+)"?$/gm)];

// formatCode takes its configuration away from us, so each file gets a new one.
function config() {
  const made = Config.new();
  for (const [, name, value] of settings) {
    made[name] = name === "indent_type" ? IndentType[value] : Number(value);
  }
  return made;
}

for (const file of files) {
  const text = readFileSync(file, "utf8");
  const formatted = formatCode(text, config(), undefined, OutputVerification.None);
  if (formatted !== text) {
    console.log(file);
    if (!check) writeFileSync(file, formatted);
  }
}
