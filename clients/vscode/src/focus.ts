// Which row of a view the keys mean. VS Code tells an extension what is selected, not where the keyboard is.
import * as vscode from "vscode";

/** Selects the row of the focused view that has the keyboard's focus, without opening it; gives its node. */
export async function selectFocused<T>(view: vscode.TreeView<T>): Promise<T | undefined> {
  const before = view.selection;
  await vscode.commands.executeCommand("list.toggleSelection");
  const after = view.selection;
  const node = after.find((one) => !before.includes(one)) ?? before.find((one) => !after.includes(one));
  if (node !== undefined) {
    await view.reveal(node, { select: true, focus: false }); // given once more, the focus would close what opens next
  }
  return node;
}
