// Run by VS Code in its extension host (`extensionTestsPath`); the report is for who started it.
import { readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Mocha from "mocha";

interface Result {
  suite: string;
  title: string;
  state: "passed" | "failed" | "pending";
  error?: string;
}

export async function run(): Promise<void> {
  const mocha = new Mocha({ ui: "bdd", color: false, timeout: 20_000 });
  for (const name of readdirSync(__dirname).filter((name) => name.endsWith(".test.js"))) {
    mocha.addFile(join(__dirname, name));
  }
  const results: Result[] = [];
  const failures = await new Promise<number>((resolve) => {
    const runner = mocha.run(resolve);
    const add = (test: Mocha.Runnable, state: Result["state"], error?: Error) => {
      const failed = error && { error: error.stack ?? String(error) };
      results.push({ suite: test.parent?.fullTitle() ?? "", title: test.title, state, ...failed });
    };
    runner.on("pass", (test) => { add(test, "passed"); });
    runner.on("pending", (test) => { add(test, "pending"); });
    runner.on("fail", (test, error: Error) => { add(test, "failed", error); });
  });
  const report = process.env["DSH_TEST_REPORT"];
  if (report) {
    writeFileSync(report, JSON.stringify(results));
  }
  if (failures) {
    throw new Error(`${failures} of ${results.length} failed`);
  }
}
