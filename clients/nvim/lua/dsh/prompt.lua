--- The prompt of a session as a buffer: text that a move of the leaf or a branch gave back, or a new one.
---
--- What is in it is the session's draft, which the daemon keeps. Writing the buffer sends it to the session's agent, or
--- copies it where there is none.
local client = require("dsh.client")
local say = require("dsh.say")
local scratch = require("dsh.scratch")

local M = {}

local NAME = "dsh-prompt://" -- and the session's id
local HEIGHT = 10
local LONGEST = 3000 -- ms that the end of Neovim waits for a draft to be kept

local being_kept = 0 -- drafts that are on their way

---@param buf integer
---@return string
local function text_of(buf)
  return table.concat(vim.api.nvim_buf_get_lines(buf, 0, -1, false), "\n")
end

---@param buf integer
---@param text string
---@param first? boolean what the buffer begins with, which is not to be undone
local function fill(buf, text, first)
  local levels = vim.bo[buf].undolevels
  if first then
    vim.bo[buf].undolevels = -1
  end
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, require("dsh.text").lines(text))
  vim.bo[buf].undolevels = levels
  vim.bo[buf].modified = false
  vim.b[buf].dsh_draft = text_of(buf)
end

--- Have the daemon keep what is typed, when it is other than what it keeps.
---@param buf integer
local function keep(buf)
  local text = text_of(buf)
  if text == vim.b[buf].dsh_draft then
    return
  end
  vim.b[buf].dsh_draft = text
  vim.bo[buf].modified = false -- so that `:wall` and `:quitall` need not send it
  local stored = text ~= "" and text or vim.NIL
  being_kept = being_kept + 1
  client.request(
    "session/draft",
    { sessionId = vim.b[buf].dsh_session, text = stored },
    function(err)
      being_kept = being_kept - 1
      if err then
        say.error(err)
        if vim.api.nvim_buf_is_valid(buf) then
          vim.b[buf].dsh_draft = nil
          vim.bo[buf].modified = true
        end
      end
    end
  )
end

--- Neovim is about to end: there is no later in which a draft could be kept.
local function keep_now()
  vim.wait(LONGEST, function()
    return being_kept == 0
  end, 5)
end

---@param buf integer
local function sent(buf)
  client.request(
    "session/draft",
    { sessionId = vim.b[buf].dsh_session, text = vim.NIL },
    function() end
  )
  vim.b[buf].dsh_draft = text_of(buf)
  for _, win in ipairs(vim.fn.win_findbuf(buf)) do
    pcall(vim.api.nvim_win_close, win, true) -- the last window of Neovim stays
  end
  vim.api.nvim_buf_delete(buf, { force = true })
  say.info("sent to the agent")
end

---@param buf integer
local function copied(buf)
  require("dsh.preview").copy(vim.api.nvim_buf_get_lines(buf, 0, -1, false))
  vim.bo[buf].modified = false
  keep(buf)
  local where = vim.fn.has("clipboard") == 1 and "to the clipboard" or 'to the register "'
  say.info("no agent has this session: the prompt was copied " .. where)
end

---@param buf integer
local function send(buf)
  local text = text_of(buf)
  if not text:find("%S") then
    say.warn("the prompt is empty")
    return
  end
  client.request("agent/send", { sessionId = vim.b[buf].dsh_session, content = text }, function(err)
    if not vim.api.nvim_buf_is_valid(buf) then
      return
    elseif not err then
      sent(buf)
    elseif err.kind == "noAgent" or err.kind == "notSupportedByFormat" then
      copied(buf)
    else
      say.error(err)
    end
  end)
end

---@param buf integer
local function set_keys(buf)
  local keys = require("dsh.config").get().prompt.keys
  if keys.send then
    vim.keymap.set({ "n", "i" }, keys.send, function()
      send(buf)
    end, { buffer = buf, desc = "Send the prompt" })
  end
  if keys.branch then
    vim.keymap.set("n", keys.branch, function()
      require("dsh.actions").branch(vim.b[buf].dsh_session)
    end, { buffer = buf, desc = "Branch from another prompt" })
  end
end

--- Make a buffer the prompt of a session.
---@param buf integer
---@param session_id string
local function become(buf, session_id)
  vim.bo[buf].buftype = "acwrite"
  vim.bo[buf].bufhidden = "hide"
  vim.bo[buf].swapfile = false
  vim.bo[buf].modeline = false
  vim.bo[buf].syntax = "markdown"
  vim.b[buf].dsh_session = session_id
  local group = vim.api.nvim_create_augroup("dsh_prompt_" .. buf, {})
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, buffer = buf, callback = callback })
  end
  on("BufWriteCmd", function(args)
    if args.match == vim.api.nvim_buf_get_name(buf) then
      send(buf)
    else
      vim.fn.writefile(vim.api.nvim_buf_get_lines(buf, 0, -1, false), args.match)
    end
  end)
  on({ "InsertLeave", "TextChanged", "BufLeave", "BufUnload" }, function()
    keep(buf)
  end)
  vim.api.nvim_create_autocmd("VimLeavePre", { group = group, callback = keep_now })
  on({ "BufDelete", "BufWipeout" }, function()
    vim.api.nvim_del_augroup_by_id(group)
  end)
  set_keys(buf)
end

--- Set up the current window for a prompt.
local function dress()
  local keys = require("dsh.config").get().prompt.keys
  local branch = keys.branch and (" · %s branches from another one"):format(keys.branch) or ""
  vim.wo[0][0].wrap = true
  vim.wo[0][0].linebreak = true
  vim.wo[0][0].winbar = "%#DshHint#prompt · :w sends it" .. branch:gsub("%%", "%%%%") .. "%<"
end

---@param buf integer
local function show(buf)
  local win = vim.fn.bufwinid(buf)
  if win ~= -1 then
    vim.api.nvim_set_current_win(win)
    return
  end
  scratch.go_to_text_window()
  vim.cmd("belowright " .. HEIGHT .. "split")
  vim.api.nvim_win_set_buf(0, buf)
  dress()
end

---@param session_id string
---@param text string
local function open(session_id, text)
  local buf = scratch.find(NAME .. session_id)
  if buf then
    fill(buf, text)
  else
    buf = vim.api.nvim_create_buf(true, false)
    vim.api.nvim_buf_set_name(buf, NAME .. session_id)
    become(buf, session_id)
    fill(buf, text, true)
  end
  show(buf)
  vim.cmd("normal! G$")
end

--- Open the prompt of a session with `text`, without it with the session's draft.
---@param session_id string
---@param text? string
function M.open(session_id, text)
  if text then
    open(session_id, text)
    return
  end
  client.request("session/draft", { sessionId = session_id }, function(err, draft)
    local buf = scratch.find(NAME .. session_id)
    if err then
      say.error(err)
    elseif buf and text_of(buf) ~= vim.b[buf].dsh_draft then
      show(buf) -- with what was typed since
    else
      open(session_id, draft.text or "")
    end
  end)
end

--- Fill a buffer of this name with the draft.
---@param buf integer
---@param name string
function M.read(buf, name)
  local session_id = name:sub(#NAME + 1)
  become(buf, session_id)
  vim.b[buf].dsh_draft = "" -- nothing was typed yet
  if vim.api.nvim_get_current_buf() == buf then
    dress()
  end
  client.request("session/draft", { sessionId = session_id }, function(err, draft)
    if err then
      say.error(err)
    elseif vim.api.nvim_buf_is_valid(buf) and text_of(buf) == "" then
      fill(buf, draft.text or "", true)
    end
  end)
end

return M
