import assert from "node:assert/strict";
import { test } from "node:test";
import { entryText } from "../../src/entry";

const message = (role: string, content: unknown) => ({
  type: "message", id: "0123456789ab", parentId: null, message: { role, content },
});

test("a message reads as it was said, in a document named as its row reads", () => {
  const { name, extension, text } = entryText(message("user", "Fix it\r\nand add a test"), "Fix it and add a test");

  assert.deepEqual([name, extension, text], ["Fix it and add a test", "", "Fix it\nand add a test"]);
});

test("thoughts, calls and pictures stand between the texts", () => {
  const { text } = entryText(message("assistant", [
    { type: "thinking", thinking: "hm" },
    { type: "text", text: "I look." },
    { type: "toolCall", name: "bash", arguments: { command: "ls\npwd", timeout: 5 } },
    { type: "image", mimeType: "image/png", data: "AAAA" },
    { type: "strange", x: 1 },
  ]), "I look.");

  assert.equal(text, '[thinking]\nhm\n\nI look.\n\n[bash]\ncommand:\nls\npwd\ntimeout: 5\n\n[image image/png]\n\n{\n  "type": "strange",\n  "x": 1\n}');
});

test("the result of a tool has the language of its file or of a patch", () => {
  const result = (row: string, text: string) => entryText(message("toolResult", [{ type: "text", text }]), row).extension;

  assert.equal(result("[read: src/a.ts]", "export {}"), ".ts");
  assert.equal(result("[edit: README.md]", "@@ -1,2 +1,2 @@\n-a\n+b"), ".diff");
  assert.equal(result("[bash: cat a.ts && ls]", "a"), "");
  assert.equal(entryText(message("user", "@@ -1,2 +1,2 @@"), "[read: a.ts]").extension, "");
});

test("no log opens in a language whose editor follows links or loads what a text names", () => {
  for (const ending of ["md", "html", "json", "jsonc", "ipynb", "svg", "png", "code-workspace", "vue", "tsx.md"]) {
    const { extension } = entryText(message("toolResult", "x"), `[read: a.${ending}]`);
    assert.equal(extension, "", ending);
  }
});

test("an entry without words is shown as it is stored", () => {
  const { name, extension, text } = entryText({ type: "model_change", id: "a~2", provider: "p", modelId: "m" }, "");

  assert.equal(name, "model_change");
  assert.equal(extension, ".jsonl");
  assert.deepEqual(JSON.parse(text), { type: "model_change", id: "a~2", provider: "p", modelId: "m" });
});

test("what was cut off is said", () => {
  const { text } = entryText({ ...message("toolResult", "long"), truncated: { field: "message.content", bytes: 5_000_000 } }, "long");

  assert.match(text, /^long\n\n… message\.content has 5,000,000 bytes, it is cut here$/);
});

test("nothing in an entry turns the text or hides in a name", () => {
  const { name, text } = entryText(message("user", "a\u202eb\u001b[31m"), "us\u202eer\u0007\n".repeat(20));

  for (const mark of ["\u202e", "\u0007", "\u001b", "\n"]) {
    assert.ok(!(name + text).includes(mark), JSON.stringify(mark));
  }
});
