--- Rows and sessions as lines of the sidebar: the text of a line, its highlights, and what hangs at its right edge.
local text = require("dsh.text")

local M = {}

---@alias dsh.Chunk { [1]: string, [2]: string } text and highlight group

---@class dsh.Line
---@field text string
---@field spans { [1]: integer, [2]: integer, [3]: string }[] from byte, to byte, group
---@field marks dsh.Chunk[] at the right edge
---@field matched? boolean whether words in it are marked

local KIND_WIDTH = 9
local SHORTEST = 4 -- cells that a label has at least
local TITLE = 16 -- cells that a title has before the facts beside it are left out
local FLAGS = {
  error = "DshError",
  aborted = "DshError",
  interrupted = "DshWarn",
  dangling = "DshError",
  orphan = "DshError",
  shadowed = "DshFacts", -- a compaction or a plugin took it from the model, which is nothing wrong
}
local BULLETS = {
  done = { "●", "DshRunning" },
  open = { "◐", "DshWarn" },
  interrupted = { "◐", "DshWarn" },
  pendingTool = { "◐", "DshWarn" },
  aborted = { "✗", "DshError" },
  error = { "✗", "DshError" },
  empty = { "○", "DshFacts" },
}
local TAILS = { pendingTool = "tool pending", open = "turn open" }

--- The word before the text; none where the text names itself in brackets.
---@param row dsh.Row
---@return string
local function kind_word(row)
  if row.kind == "tool" or vim.startswith(row.text, "[") then
    return ""
  end
  return row.kind == "other" and text.line(row.type):sub(1, 16) or row.kind
end

---@param row dsh.Row
---@return boolean
local function failed(row)
  return vim.list_contains(row.flags or {}, "error")
    or vim.list_contains(row.flags or {}, "aborted")
end

---@param row dsh.Row
---@return string group of the word, string group of the text
local function groups(row)
  if not (row.active or row.leaf) then
    return "DshInactive", "DshInactive"
  elseif row.kind == "user" then
    return "DshUser", "DshUser"
  elseif failed(row) then
    return row.kind == "assistant" and "DshAssistant" or "DshKind", "DshError"
  elseif row.kind == "tool" or row.kind == "bash" then
    return "DshKind", "DshTool"
  end
  return row.kind == "assistant" and "DshAssistant" or "DshKind", "DshActive"
end

---@param chunks dsh.Chunk[]
---@return dsh.Chunk[] with two blanks before each
local function spaced(chunks)
  local out = {}
  for _, chunk in ipairs(chunks) do
    vim.list_extend(out, { { "  ", "DshHint" }, chunk })
  end
  return out
end

---@param chunks dsh.Chunk[]
---@return integer
local function cells(chunks)
  local all = vim.tbl_map(function(chunk)
    return chunk[1]
  end, chunks)
  return vim.api.nvim_strwidth(text.line(table.concat(all)))
end

--- A label, cut to what there is room for: Neovim shows no marks that are wider than the window.
---@param label string
---@param width? integer of the window
---@param marks dsh.Chunk[] the others of the row
---@return dsh.Chunk
local function label_mark(label, width, marks)
  label = text.line(label)
  if width then
    local room = width - cells(spaced(marks)) - 4 -- two blanks before it, the flag and its blank
    label = text.cut(label, math.max(SHORTEST, math.min(room, math.floor(width / 2))))
  end
  return { "⚑ " .. label, "DshLabel" }
end

--- Hidden count, flags, label, the leaf's mark.
---@param row dsh.Row
---@param width? integer
---@return dsh.Chunk[]
local function row_marks(row, width)
  local marks = {}
  if row.collapsed and (row.hidden or 0) > 0 then
    table.insert(marks, { ("(%s)"):format(text.number(row.hidden)), "DshInactive" })
  end
  for _, flag in ipairs(row.flags or {}) do
    if FLAGS[flag] then
      table.insert(marks, { flag, FLAGS[flag] })
    end
  end
  local place = #marks + 1
  if row.leaf then
    table.insert(marks, { "← leaf", "DshLeaf" })
  end
  if row.label then
    table.insert(marks, place, label_mark(row.label, width, marks))
  end
  return spaced(marks)
end

---@param row dsh.Row
---@param width? integer of the window; without it labels are whole
---@return dsh.Line
function M.row(row, width)
  local body = text.line(row.text)
  local word = kind_word(row)
  local word_group, text_group = groups(row)
  local fold = row.collapsed and "▸ " or ""
  local gutter = #row.gutter + #fold
  local head = row.gutter .. fold .. word
  if word ~= "" then
    head = head .. (" "):rep(math.max(KIND_WIDTH - #word, 0) + 2)
  end
  local spans = {
    { 0, gutter, "DshGutter" },
    { gutter, #head, word_group },
    { #head, #head + #body, text_group },
  }
  for _, range in ipairs(row.matches or {}) do
    local from, to = text.byte_range(body, range[1], range[2])
    table.insert(spans, { #head + from, #head + to, "DshMatch" })
  end
  return {
    text = head .. body,
    spans = spans,
    marks = row_marks(row, width),
    matched = row.matches ~= nil,
  }
end

---@param info dsh.SessionInfo
---@return dsh.Chunk
function M.bullet(info)
  if info.live and info.live.status == "running" then
    return { "▶", "DshRunning" }
  end
  return BULLETS[info.tail] or { "●", "DshFacts" }
end

--- Words for what is not as usual: running, how it ended, damage, pin, archive.
---@param info dsh.SessionInfo
---@return string[]
local function unusual(info)
  local words = {}
  if info.live and info.live.status == "running" then
    table.insert(words, info.live.certain and "running" or "perhaps running")
  elseif info.tail ~= "done" and info.tail ~= "empty" then
    table.insert(words, TAILS[info.tail] or info.tail)
  end
  if info.health ~= "ok" and info.health ~= "empty" then
    table.insert(words, info.health)
  end
  for _, word in ipairs({ "pinned", "archived" }) do
    if info[word] then
      table.insert(words, word)
    end
  end
  return words
end

--- `pi · 2 h ago · 214 entries` and what else is worth a word.
---@param info dsh.SessionInfo
---@param brief boolean without the number of entries
---@return string
function M.facts(info, brief)
  local words = { info.format, text.age(info.lastActivityAt) }
  if not brief and info.entryCount then
    table.insert(words, text.plural(info.entryCount, "entry", "entries"))
  end
  return text.line(table.concat(vim.list_extend(words, unusual(info)), " · "))
end

--- What stands beside the title of a session: as much as leaves room for that.
---@param info dsh.SessionInfo
---@param room integer cells for both
---@return dsh.Chunk[]
local function session_marks(info, room)
  local needed = math.min(vim.api.nvim_strwidth(text.line(info.title)), TITLE)
  for _, facts in ipairs({ M.facts(info, true), text.age(info.lastActivityAt) }) do
    if needed + 2 + vim.api.nvim_strwidth(facts) <= room then
      return spaced({ { facts, "DshFacts" } })
    end
  end
  return {}
end

---@param info dsh.SessionInfo
---@param in_use boolean
---@param width integer of the window
---@return dsh.Line
function M.session(info, in_use, width)
  local bullet = M.bullet(info)
  local title = text.line(info.title)
  local from = #bullet[1] + 1
  return {
    text = bullet[1] .. " " .. title,
    spans = {
      { 0, #bullet[1], bullet[2] },
      { from, from + #title, in_use and "DshTitle" or "DshSession" },
    },
    marks = session_marks(info, width - 3), -- the edge, the bullet, a blank
  }
end

--- A line of our own words.
---@param words string
---@return dsh.Line
function M.hint(words)
  return { text = words, spans = { { 0, #words, "DshHint" } }, marks = {} }
end

--- Text of a log as part of a statusline or winbar, where % means something.
---@param s string
---@return string
function M.escape(s)
  return (text.line(s):gsub("%%", "%%%%"))
end

---@param chunks dsh.Chunk[]
---@return string for 'winbar'
local function painted(chunks)
  return table.concat(vim.tbl_map(function(chunk)
    return ("%%#%s#%s%%*"):format(chunk[2], M.escape(chunk[1]))
  end, chunks))
end

--- A winbar: the bullet and title of a session, and at the edge `modes` and as much of its facts as there is room for.
---@param width integer
---@param title string
---@param info? dsh.SessionInfo
---@param modes dsh.Chunk[]
---@return string
function M.bar(width, title, info, modes)
  title = text.line(title)
  local before = { { " ", "DshHint" } }
  if info then
    vim.list_extend(before, { M.bullet(info), { " ", "DshHint" } })
  end
  local after, room
  local function with(facts)
    after = spaced(facts and vim.list_extend({ { facts, "DshFacts" } }, modes) or modes)
    table.insert(after, { " ", "DshHint" })
    room = width - cells(before) - cells(after)
    return room
  end
  local needed = vim.api.nvim_strwidth(title)
  local fits = info and (with(M.facts(info, false)) >= needed or with(M.facts(info, true)) >= TITLE)
  if not fits then
    with()
  end
  table.insert(before, { text.cut(title, math.max(room, 1)), "DshTitle" })
  return painted(before) .. "%=" .. painted(after)
end

return M
