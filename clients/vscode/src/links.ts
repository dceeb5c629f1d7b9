// Links from elsewhere: `vscode://dsh-daemon.dsh-sessions/session/<id>#<entry>` opens the entry.
import * as vscode from "vscode";
import { Ref, parseLink } from "./refs";

export class Links implements vscode.UriHandler {
  constructor(private readonly open: (ref: Ref) => Promise<void>) {}

  async handleUri(uri: vscode.Uri): Promise<void> {
    const ref = parseLink(uri.path, uri.fragment);
    if (ref) {
      await this.open(ref);
    } else {
      void vscode.window.showWarningMessage("Agent Sessions: this link names no session.");
    }
  }
}
