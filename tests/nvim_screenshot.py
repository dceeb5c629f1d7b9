"""Make the picture in the README of clients/nvim: `pip install pillow && python -m tests.nvim_screenshot FILE.png`.

The editor, the daemon and the sessions are real. The font is DejaVu Sans Mono, which most systems have.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from dsh_daemon.cli import story

from .nvim import Desk, Screen

SIZE = (132, 26)
POINTS = 22
INIT = """\
vim.o.termguicolors = true
vim.o.laststatus = 0
vim.o.ruler = false
vim.o.wrap = false
"""
CODE = """\
import { redirect } from "./http"

export function back(url: URL) {
  return redirect(url.pathname)
}

export function login(request: Request) {
  const url = new URL(request.url)
  if (!request.user) {
    return redirect("/login?next=" + encodeURIComponent(url.pathname + url.search))
  }
  return back(url)
}
"""


def font(style: str) -> ImageFont.FreeTypeFont:
    pattern = f"DejaVu Sans Mono:style={style}"
    found = subprocess.run(["fc-match", "-f", "%{file}", pattern], capture_output=True, text=True, check=True)
    return ImageFont.truetype(found.stdout, POINTS)


def rgb(number: int) -> tuple[int, int, int]:
    return (number >> 16 & 255, number >> 8 & 255, number & 255)


def picture(screen: Screen) -> Image.Image:
    plain, bold = font("Book"), font("Bold")
    ascent, descent = plain.getmetrics()
    width, height = round(plain.getlength("M")), ascent + descent
    image = Image.new("RGB", (screen.width * width, screen.height * height), rgb(screen.background))
    draw = ImageDraw.Draw(image)
    for y, row in enumerate(screen.cells):
        for x, (text, number) in enumerate(row):
            style: dict[str, Any] = screen.highlights.get(number, {})
            fore, back = style.get("foreground", screen.foreground), style.get("background", screen.background)
            if style.get("reverse") or (y, x) == screen.cursor:
                fore, back = back, fore
            left, top = x * width, y * height
            if text:  # the second cell of a wide character has none
                cells = 2 if x + 1 < len(row) and not row[x + 1][0] else 1
                draw.rectangle((left, top, left + cells * width - 1, top + height - 1), rgb(back))
                draw.text((left, top), text, rgb(fore), bold if style.get("bold") else plain)
            if style.get("underline"):
                draw.line((left, top + ascent + 2, left + width, top + ascent + 2), rgb(fore))
    return image


def main(target: str) -> None:
    with tempfile.TemporaryDirectory(prefix="shot-") as folder, Desk(Path(folder)) as desk:
        code = desk.project / "src" / "auth" / "login.ts"
        code.parent.mkdir(parents=True)
        code.write_text(CODE)
        story.append_as_pi(desk.login, story.DONE)
        desk.ask("session/label", sessionId=story.LOGIN, entryId=story.DONE, label="before-refactor")
        editor = desk.editor(size=SIZE, init=INIT)
        editor.command("edit src/auth/login.ts")
        editor.command("Dsh")
        editor.wait_screen("← leaf")
        editor.lua("require('dsh.view').go_to(...)", story.REFACTOR)
        editor.wait(lambda: editor.lua("return (require('dsh').current() or {}).entry_id") == story.REFACTOR)
        editor.keys("<CR>")
        editor.wait_screen("prompt · :w sends it")
        editor.wait_screen("before-refactor  ← leaf")
        picture(editor.screen()).save(target)


if __name__ == "__main__":
    main(sys.argv[1])
