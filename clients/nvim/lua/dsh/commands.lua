--- What the commands do. `plugin/dsh.lua` has a stub for each, which comes here when it is used.
local M = {}

local function say()
  return require("dsh.say")
end

local function view()
  return require("dsh.view")
end

local function actions()
  return require("dsh.actions")
end

--- The session in use, or the latest of this directory, and the entry under the cursor.
---@param callback fun(session_id: string, entry_id: string?, row: dsh.Row?)
local function here(callback)
  local current = require("dsh").current()
  require("dsh.reference").session(nil, function(session_id)
    callback(session_id, current and current.entry_id, current and current.row)
  end)
end

--- The entry that is named, else the one under the cursor.
---@param ref string
---@param callback fun(session_id: string, entry_id: string?, row: dsh.Row?)
local function entry_or_here(ref, callback)
  here(function(session_id, entry_id, row)
    if ref == "" then
      callback(session_id, entry_id, row)
    else
      require("dsh.reference").entry(session_id, ref, function(named)
        callback(session_id, named)
      end)
    end
  end)
end

---@class dsh.Use
---@field args string
---@field bang boolean

local SIDEBAR = {
  [""] = function()
    view().toggle()
  end,
  toggle = function()
    view().toggle()
  end,
  open = function()
    view().open({ sessions = true })
  end,
  close = function()
    view().close()
  end,
}

---@type table<string, fun(use: dsh.Use)>
M.run = {
  Dsh = function(use)
    local run = SIDEBAR[use.args]
    if run then
      run()
    else
      say().error(("no such word: %s (toggle, open, close)"):format(use.args))
    end
  end,

  DshSessions = function(use)
    require("dsh.pick").sessions(use.args, { all = use.bang })
  end,

  DshTree = function(use)
    local alone = not view().is_shown()
    local function show(session_id)
      local options = { session_id = session_id }
      if alone then
        options.sessions = false
      end
      view().open(options)
    end
    if use.args == "" then
      require("dsh.reference").latest(show)
    else
      require("dsh.reference").session(use.args, show)
    end
  end,

  DshBranch = function(use)
    entry_or_here(use.args, function(session_id, entry_id, row)
      local prompt = use.args ~= "" or row and row.kind == "user"
      actions().branch(session_id, prompt and entry_id or nil)
    end)
  end,

  DshFork = function(use)
    entry_or_here(use.args, function(session_id, entry_id)
      actions().fork(session_id, entry_id)
    end)
  end,

  DshResume = function(use)
    require("dsh.reference").session(use.args, require("dsh.terminal").resume)
  end,

  DshLabel = function(use)
    here(function(session_id, entry_id)
      local function label(id)
        if use.args ~= "" or use.bang then
          actions().label(session_id, id, use.bang and "" or use.args)
          return
        end
        vim.ui.input({ prompt = "Label (blank takes it away): " }, function(text)
          if text then
            actions().label(session_id, id, text)
          end
        end)
      end
      if entry_id then
        label(entry_id)
      else
        require("dsh.reference").entry(session_id, "leaf", label)
      end
    end)
  end,

  DshSearch = function(use)
    if use.bang then
      here(function(session_id)
        require("dsh.pick").search(use.args, { session_id = session_id })
      end)
    else
      require("dsh.pick").search(use.args)
    end
  end,

  DshRename = function(use)
    here(function(session_id)
      if use.args ~= "" or use.bang then
        actions().rename(session_id, use.bang and "" or use.args)
        return
      end
      vim.ui.input({ prompt = "Title: " }, function(title)
        if title and vim.trim(title) ~= "" then
          actions().rename(session_id, title)
        end
      end)
    end)
  end,

  DshTouched = function(use)
    local path = use.args ~= "" and use.args or vim.api.nvim_buf_get_name(0)
    if path == "" then
      say().warn("this buffer has no file")
    else
      require("dsh.pick").touched(vim.fn.fnamemodify(path, ":p"))
    end
  end,

  DshTranscript = function(use)
    require("dsh.reference").session(use.args, require("dsh.transcript").open)
  end,

  DshPrompt = function(use)
    require("dsh.reference").session(use.args, require("dsh.prompt").open)
  end,

  DshStatus = function()
    require("dsh.daemon").status()
  end,

  DshStop = function(use)
    require("dsh.daemon").stop({ force = use.bang })
  end,
}

--- Fill a buffer that came by its name, from a session file or by `:edit`.
---@param buf integer
---@param name string
function M.read(buf, name)
  if name == "dsh://sidebar" then
    view().restore(buf)
  else
    require("dsh.prompt").read(buf, name)
  end
end

---@type table<string, fun(lead: string): string[]>
M.complete = {
  Dsh = function(lead)
    return vim.tbl_filter(function(word)
      return vim.startswith(word, lead)
    end, { "toggle", "open", "close" })
  end,
  DshTree = function(lead)
    return require("dsh.reference").complete_session(lead)
  end,
  DshBranch = function(lead)
    return require("dsh.reference").complete_prompt(lead)
  end,
  DshFork = function(lead)
    return require("dsh.reference").complete_entry(lead)
  end,
  DshLabel = function(lead)
    return require("dsh.reference").complete_label(lead)
  end,
}
M.complete.DshResume = M.complete.DshTree
M.complete.DshTranscript = M.complete.DshTree
M.complete.DshPrompt = M.complete.DshTree

--- Candidates for the last word of a command line, which may be one of several of a title or label.
---@param name string of the command
---@param lead string the last word
---@param line string up to the cursor
---@return string[]
function M.completed(name, lead, line)
  local typed = line:match("Dsh%a*!?%s+(.*)$") or lead
  if not vim.endswith(typed, lead) then
    typed = lead
  end
  return vim.tbl_map(function(candidate)
    return candidate:sub(#typed - #lead + 1)
  end, M.complete[name](typed))
end

return M
