// Which row of a view the keys mean. VS Code tells an extension what is selected, not where the keyboard is.
import * as vscode from "vscode";

let turn: Promise<unknown> = Promise.resolve();

/**
 * Selects the row of the focused view that has the keyboard's focus, without opening it; gives its node. One key after
 * the other: what a second one toggles meanwhile would look like what the first one did.
 */
export function selectFocused<T>(view: vscode.TreeView<T>): Promise<T | undefined> {
  const mine = turn.then(() => toggled(view));
  turn = mine.catch(() => undefined);
  return mine;
}

async function toggled<T>(view: vscode.TreeView<T>): Promise<T | undefined> {
  const before = view.selection;
  await vscode.commands.executeCommand("list.toggleSelection");
  const after = view.selection;
  const node = after.find((one) => !before.includes(one)) ?? before.find((one) => !after.includes(one));
  if (node !== undefined) {
    await view.reveal(node, { select: true, focus: false }); // given once more, the focus would close what opens next
  }
  return node;
}
