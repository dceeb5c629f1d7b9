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
local PAUSE = 300 -- ms, at most so long what is typed in Insert mode is not kept
local FIRST = 40 -- cells of a draft in a question

---@class dsh.Keeping
---@field known string the draft as we know it
---@field text string what is to be kept, the latest
---@field after fun()[] what waits for the end

local keeping = {} ---@type table<string, dsh.Keeping> what is on its way, by the session's id
local given = {} ---@type table<string, string> what a log said and nobody has typed, by the session's id

---@param buf integer
---@return string
local function text_of(buf)
  return table.concat(vim.api.nvim_buf_get_lines(buf, 0, -1, false), "\n")
end

--- A draft as it stands in a buffer.
---@param draft { text?: string }
---@return string
local function shown(draft)
  return table.concat(require("dsh.text").lines(draft.text or ""), "\n")
end

---@param text string
local function blank(text)
  return not text:find("%S")
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
  vim.b[buf].dsh_theirs = nil
end

--- Tell what could not be kept; the buffer is a changed one then.
---@param buf integer
---@param err dsh.Error
local function not_kept(buf, err)
  say.error(err)
  if vim.api.nvim_buf_is_loaded(buf) then
    vim.bo[buf].modified = true
  end
end

--- Another editor has written a draft of its own: none takes the place of the other unasked. That is said once.
---@param buf integer
---@param theirs string
local function two_drafts(buf, theirs)
  if not vim.api.nvim_buf_is_loaded(buf) then
    say.warn("another editor has changed this draft; what was typed here is not kept")
    return
  end
  vim.bo[buf].modified = true
  if vim.b[buf].dsh_theirs ~= theirs then
    vim.b[buf].dsh_theirs = theirs
    say.warn("another editor has changed this draft: :edit! reads it, :w sends what is here")
  end
end

---@param session_id string
local function end_keeping(session_id)
  local work = keeping[session_id]
  keeping[session_id] = nil
  vim.iter(work.after):each(function(fn)
    fn()
  end)
end

--- Have the latest text kept, where the draft is still the one that we know.
---@param buf integer
---@param session_id string
local function store(buf, session_id)
  local work = keeping[session_id]
  client.request("session/draft", { sessionId = session_id }, function(unread, draft)
    local theirs, text = not unread and shown(draft) or "", work.text
    if unread or (not blank(theirs) and theirs ~= work.known and theirs ~= text) then
      end_keeping(session_id)
      if unread then
        not_kept(buf, unread)
      else
        two_drafts(buf, theirs)
      end
      return
    end
    local params = { sessionId = session_id, text = text ~= "" and text or vim.NIL }
    client.request("session/draft", params, function(err)
      if err then
        end_keeping(session_id)
        not_kept(buf, err)
        return
      end
      work.known = text
      if vim.api.nvim_buf_is_valid(buf) then
        vim.b[buf].dsh_draft, vim.b[buf].dsh_theirs = text, nil
      end
      if work.text ~= text then
        store(buf, session_id)
      else
        end_keeping(session_id)
      end
    end)
  end)
end

--- Have the daemon keep what is typed, when it is other than what it keeps.
---@param buf integer
local function keep(buf)
  local text, session_id = text_of(buf), vim.b[buf].dsh_session
  if not vim.b[buf].dsh_theirs then
    vim.bo[buf].modified = false -- so that `:wall` and `:quitall` need not send it
  end
  if keeping[session_id] then
    keeping[session_id].text = text
  elseif text ~= vim.b[buf].dsh_draft then
    keeping[session_id] = { known = vim.b[buf].dsh_draft, text = text, after = {} }
    store(buf, session_id)
  end
end

--- In Insert mode no event tells that something was typed and then that nothing is.
---@param buf integer
local function keep_soon(buf)
  if vim.b[buf].dsh_due then
    return
  end
  vim.b[buf].dsh_due = true
  vim.defer_fn(function()
    if vim.api.nvim_buf_is_loaded(buf) and vim.b[buf].dsh_session then
      vim.b[buf].dsh_due = false
      keep(buf)
    end
  end, PAUSE)
end

--- Neovim is about to end: there is no later in which a draft could be kept.
local function keep_now()
  vim.wait(LONGEST, function()
    return next(keeping) == nil
  end, 5)
end

---@param session_id string
---@param fn fun()
local function when_kept(session_id, fn)
  if keeping[session_id] then
    table.insert(keeping[session_id].after, fn)
  else
    fn()
  end
end

--- Ask for a draft, after what is on its way was kept.
---@param session_id string
---@param callback fun(err?: dsh.Error, draft: { text?: string })
local function with_draft(session_id, callback)
  when_kept(session_id, function()
    client.request("session/draft", { sessionId = session_id }, callback)
  end)
end

--- Show what another editor has made of the draft, where nothing was typed here.
---@param buf integer
local function look_again(buf)
  if client.state() ~= "ready" then
    return -- a daemon that was stopped is not needed for this
  end
  local session_id = vim.b[buf].dsh_session
  with_draft(session_id, function(err, draft)
    local theirs = not err and shown(draft) or ""
    if
      not blank(theirs)
      and vim.api.nvim_buf_is_loaded(buf)
      and not keeping[session_id]
      and text_of(buf) == vim.b[buf].dsh_draft
      and theirs ~= vim.b[buf].dsh_draft
    then
      fill(buf, theirs)
    end
  end)
end

--- The prompt was taken: it is no draft any more, and its windows close.
---@param buf integer
---@param session_id string
---@param text string that was sent
local function sent(buf, session_id, text)
  if vim.api.nvim_buf_is_loaded(buf) and text_of(buf) ~= text then
    say.info("sent to the agent; what was typed since is still here")
    return
  end
  if not (vim.api.nvim_buf_is_valid(buf) and vim.b[buf].dsh_theirs) then
    client.request("session/draft", { sessionId = session_id, text = vim.NIL }, function() end)
  end
  say.info("sent to the agent")
  if not vim.api.nvim_buf_is_valid(buf) then
    return
  end
  vim.b[buf].dsh_draft = text
  vim.b[buf].dsh_sent = true
  if vim.api.nvim_get_current_buf() == buf then
    vim.cmd.stopinsert() -- else what is typed on goes into the text behind
  end
  for _, win in ipairs(vim.fn.win_findbuf(buf)) do
    pcall(vim.api.nvim_win_close, win, true) -- the last window of Neovim stays
  end
  vim.api.nvim_buf_delete(buf, { force = true })
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
  local text, session_id = text_of(buf), vim.b[buf].dsh_session
  if blank(text) then
    say.warn("the prompt is empty")
    return
  elseif vim.b[buf].dsh_sending then
    return -- it is on its way
  end
  vim.b[buf].dsh_sending = true
  client.request("agent/send", { sessionId = session_id, content = text }, function(err)
    if vim.api.nvim_buf_is_valid(buf) then
      vim.b[buf].dsh_sending = false
    end
    if not err then
      when_kept(session_id, function()
        sent(buf, session_id, text)
      end)
    elseif not vim.api.nvim_buf_is_valid(buf) then
      say.error(err)
    elseif err.kind == "noAgent" or err.kind == "notSupportedByFormat" then
      copied(buf)
    else
      say.error(err)
    end
  end)
end

--- A prompt that goes from the screen by `:x`, `ZZ` or `:q` was not sent.
---@param buf integer
local function left(buf)
  local ends = vim.v.exiting ~= vim.NIL
  local unsent = not (ends or vim.b[buf].dsh_sent or vim.b[buf].dsh_sending)
  if unsent and not vim.bo[buf].modified and not blank(text_of(buf)) then
    say.info("the prompt was not sent, it is kept as a draft (:DshPrompt)")
  end
end

--- After `:saveas` or `:file` a buffer is a file like any other.
---@param buf integer
---@param group integer
local function become_file(buf, group)
  vim.api.nvim_del_augroup_by_id(group)
  for _, key in pairs(require("dsh.config").get().prompt.keys) do
    for _, mode in ipairs(key and { "n", "i" } or {}) do
      pcall(vim.keymap.del, mode, key, { buffer = buf })
    end
  end
  vim.bo[buf].buftype = ""
  vim.bo[buf].modified = false
  vim.b[buf].dsh_session = nil
  for _, win in ipairs(vim.fn.win_findbuf(buf)) do
    vim.wo[win][0].winbar = ""
  end
end

--- Write the text to a file.
---@param buf integer
---@param path string
---@return boolean
local function write(buf, path)
  local done, err = pcall(vim.fn.writefile, vim.api.nvim_buf_get_lines(buf, 0, -1, false), path)
  if not done then
    say.error((tostring(err):gsub("^Vim:", "")))
  end
  return done
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
    if args.match == NAME .. session_id then
      send(buf)
    elseif write(buf, args.match) and args.match == vim.api.nvim_buf_get_name(buf) then
      become_file(buf, group)
    end
  end)
  on({ "InsertLeave", "TextChanged", "BufLeave", "BufUnload" }, function()
    keep(buf)
  end)
  on({ "TextChangedI", "TextChangedP" }, function()
    keep_soon(buf)
  end)
  on({ "BufEnter", "FocusGained" }, function()
    look_again(buf)
  end)
  on("BufWinLeave", function()
    left(buf)
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
  scratch.arrive(function()
    local win = vim.fn.bufwinid(buf)
    if win ~= -1 then
      vim.api.nvim_set_current_win(win)
      return
    end
    scratch.new_window("belowright " .. HEIGHT .. "split")
    vim.api.nvim_win_set_buf(0, buf)
    dress()
  end)
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
  local last = vim.api.nvim_buf_line_count(buf)
  local line = vim.api.nvim_buf_get_lines(buf, last - 1, last, false)[1]
  show(buf)
  vim.api.nvim_win_set_cursor(vim.fn.bufwinid(buf), { last, #line })
end

---@param session_id string
---@param text string that was written for it and not sent
---@param go_on fun()
local function ask_to_replace(session_id, text, go_on)
  local first = require("dsh.text").cut(vim.trim(text):match("^[^\n]*"), FIRST)
  local replace = "Replace it"
  vim.ui.select({ replace, "Cancel" }, {
    prompt = ("An unsent prompt would be lost: “%s”"):format(first),
  }, function(choice)
    if choice == replace then
      go_on()
    end
  end)
end

--- Go on with a move of the leaf, after asking where its prompt would take the place of one that was not sent.
---@param params dsh.SessionNavigateParams
---@param go_on fun()
function M.make_way(params, go_on)
  local session_id = params.sessionId
  ---@param mine string
  local function compare(mine)
    local preview = vim.tbl_extend("force", params, { preview = true, summarize = false })
    client.request("session/navigate", preview, function(err, planned)
      local text = not err and planned.editorText
      if text and shown({ text = text }) ~= mine then
        ask_to_replace(session_id, mine, go_on)
      else
        go_on()
      end
    end)
  end
  with_draft(session_id, function(err, draft)
    local buf = scratch.find(NAME .. session_id)
    local typed = buf and text_of(buf)
    local text = not err and shown(draft) or ""
    if buf and typed ~= vim.b[buf].dsh_draft then
      text = typed --[[@as string]]
    end
    if blank(text) or text == given[session_id] then
      go_on()
    else
      compare(text)
    end
  end)
end

--- Open the prompt of a session with `text`, which is its draft already; without it with the session's draft.
---@param session_id string
---@param text? string
function M.open(session_id, text)
  if text then
    given[session_id] = shown({ text = text })
    open(session_id, text)
    return
  end
  with_draft(session_id, function(err, draft)
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
  with_draft(session_id, function(err, draft)
    if err then
      say.error(err)
    elseif vim.api.nvim_buf_is_valid(buf) and text_of(buf) == "" then
      fill(buf, draft.text or "", true)
    end
  end)
end

return M
