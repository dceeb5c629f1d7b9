import assert from "node:assert/strict";
import { test } from "node:test";
import { age, cut, escapeMarkdown, manyLines, marked, oneLine, utf16Ranges, withoutIcons, withoutLinks } from "../../src/text";

test("ranges in code points become ranges in UTF-16 units", () => {
  const text = "🙂🙂 naïve 한국어 redirect";
  const from = Array.from(text).indexOf("r");

  const [range] = utf16Ranges(text, [[from, from + 8]]);

  assert.deepEqual(range, [from + 2, from + 10]);
  assert.equal(text.slice(...range), "redirect");
});

test("ranges may touch, come in any order, end at the end and lie beyond it", () => {
  assert.deepEqual(utf16Ranges("a🙂b", [[2, 3], [0, 1], [1, 2]]), [[3, 4], [0, 1], [1, 3]]);
  assert.deepEqual(utf16Ranges("ab", [[1, 9]]), [[1, 2]]);
  assert.deepEqual(utf16Ranges("ab", [[5, 9]]), []);
  assert.deepEqual(utf16Ranges("ab", [[1, 1]]), []);
  assert.deepEqual(utf16Ranges("", [[0, 0]]), []);
});

test("one line has no control character and nothing that turns its direction", () => {
  const hostile = "a\u202eb\u2066c\u200fd\u001b[31me\u0007f\ng\u2028h\ud800i";

  assert.match(oneLine(hostile), /^ab?c?d? ?\[31me f g h i$/);
  assert.equal(oneLine("한국어 🙂 naïve → ok"), "한국어 🙂 naïve → ok");
});

test("lines and tabs stay where several lines are shown", () => {
  assert.equal(manyLines("a\tb\r\nc\u202ed\re\u0000f"), "a\tb\ncd\ne f");
});

test("what looks like an icon is text", () => {
  const shown = withoutIcons("$(rocket) $x $$(sync~spin) ($)");

  assert.doesNotMatch(shown, /\$\(/);
  assert.equal(shown.replaceAll("\u2060", ""), "$(rocket) $x $$(sync~spin) ($)");
});

test("a text is cut between characters, and only when it is too long", () => {
  assert.equal(cut("🙂🙂🙂", 3), "🙂🙂🙂");
  assert.equal(cut("🙂🙂🙂", 2), "🙂…");
  assert.equal(cut("one two", 5), "one…");
});

test("marks stand around ranges in order, overlapping ones once", () => {
  assert.equal(marked("one two", [[4, 7], [0, 3]]), "‹one› ‹two›");
  assert.equal(marked("one two", [[0, 5], [3, 7]]), "‹one t›wo");
});

test("ages are rough, and dates after a month", () => {
  const now = Date.parse("2026-03-02T12:00:00.000Z");
  const ages = ["2026-03-02T11:59:30.000Z", "2026-03-02T11:58:59.000Z", "2026-03-02T09:14:07.120Z", "2026-02-27T12:00:00.000Z", "2025-12-24T00:00:00.000Z"];

  assert.deepEqual(ages.map((stamp) => age(stamp, now)), ["just now", "1 min ago", "2 h ago", "3 d ago", "2025-12-24"]);
  assert.equal(age("2026-03-02T12:00:05.000Z", now), "just now");
  assert.equal(age(null, now), undefined);
  assert.equal(age("yesterday", now), undefined);
});

test("text in a hover means nothing to Markdown", () => {
  const escaped = escapeMarkdown("[x](command:a) <b> `c` $(rocket) *d* & ![p](u) https://x.org a@b.org");

  for (const mark of ["[", "](", "<b", "$(", "![", "&", "://", "@"]) {
    assert.ok(!escaped.replaceAll(/\\./g, "").replaceAll(/&(lt|amp);/g, "").includes(mark), mark);
  }
});

test("what the editor would make a link in a message is text", () => {
  assert.equal(withoutLinks("see [x](command:y)\nand [z]"), "see [x]\u2060(command:y) and [z]");
});
