--- What a person does to a session: move its leaf, branch, fork, label, rename. For the sidebar and the commands alike.
local client = require("dsh.client")
local config = require("dsh.config")
local say = require("dsh.say")
local text = require("dsh.text")

local M = {}

--- Ask, and go on when the answer is yes.
---@param question string
---@param yes string
---@param go_on fun()
local function confirm(question, yes, go_on)
  vim.ui.select({ yes, "Cancel" }, { prompt = text.line(question) }, function(choice)
    if choice == yes then
      go_on()
    end
  end)
end

--- What a refused move or branch can do instead, where the format of the log has one path only.
---@param session_id string
---@param err dsh.Error
local function offer_fork(session_id, err)
  local boundary = err.data and err.data.boundary
  if
    err.kind ~= "notSupportedByFormat"
    or (err.data or {}).instead ~= "session/fork"
    or not boundary
  then
    say.error(err)
    return
  end
  confirm(
    "The log of this agent has one path. Fork the session before that place?",
    "Fork",
    function()
      M.fork(session_id, boundary)
    end
  )
end

--- Open the prompt that a move or branch brought back.
---@param session_id string where it will be sent
---@param result dsh.NavigateResult|dsh.BranchResult|dsh.ForkResult
local function edit(session_id, result)
  if not result.editorText then
    return
  end
  require("dsh.prompt").open(session_id, result.editorText)
  local images = #(result.editorImages or {})
  if images > 0 then
    local pictures = text.plural(images, "picture", "pictures")
    say.warn(pictures .. " of this prompt cannot be shown here; it is sent without")
  end
end

---@param result dsh.NavigateResult
---@param session_id string
---@param back? boolean
local function moved(result, session_id, back)
  if result.outcome == "unchanged" then
    say.info(back and "there is no move to undo" or "already here")
  elseif result.outcome == "cancelled" then
    say.info("cancelled, the leaf is where it was")
  elseif result.outcome == "refused" then
    say.warn("refused by " .. (result.refusedBy or "an extension"))
  else
    local view = require("dsh.view")
    if view.session_id() == session_id and result.leafId then
      view.go_to(result.leafId)
    end
    edit(session_id, result)
  end
end

--- Send a navigation that a model summarises; <Esc> in the sidebar gives it up.
---@param params dsh.SessionNavigateParams
---@param callback dsh.Callback
local function navigate_summarising(params, callback)
  local buf = require("dsh.view").ids()
  local id
  local before ---@type table<string, any>? what <Esc> did in the sidebar
  local function unmap()
    if not (buf and vim.api.nvim_buf_is_valid(buf)) then
      return
    end
    pcall(vim.keymap.del, "n", "<Esc>", { buffer = buf })
    if before then
      vim.api.nvim_buf_call(buf, function()
        vim.fn.mapset("n", false, before)
      end)
    end
  end
  id = client.work(
    "session/navigate",
    params,
    "summarising what is left behind (<Esc> cancels)",
    function(...)
      unmap()
      callback(...)
    end
  )
  if buf then
    vim.api.nvim_buf_call(buf, function()
      local map = vim.fn.maparg("<Esc>", "n", false, true)
      before = map.buffer == 1 and map or nil
    end)
    vim.keymap.set("n", "<Esc>", function()
      client.cancel(id)
    end, { buffer = buf, nowait = true, desc = "Cancel the summary" })
  end
end

---@class dsh.NavigateOptions
---@field summarize? true|{ instructions: string }
---@field back? boolean to where the last move came from, instead of to a target

--- Move the leaf. What was a prompt comes back as one that can be edited.
---@param session_id string
---@param target_id? string
---@param options? dsh.NavigateOptions
function M.navigate(session_id, target_id, options)
  options = options or {}
  local params = {
    sessionId = session_id,
    targetId = target_id,
    back = options.back,
    summarize = options.summarize,
  }
  local function answered(err, result)
    if err then
      offer_fork(session_id, err)
    else
      moved(result, session_id, options.back)
    end
  end
  require("dsh.prompt").make_way(params, function()
    if options.summarize then
      navigate_summarising(params, answered)
    else
      client.request("session/navigate", params, answered)
    end
  end)
end

--- Ask how what is left behind is to be summarised, and move the leaf.
---@param session_id string
---@param target_id string
---@param abandoned integer
local function choose_summary(session_id, target_id, abandoned)
  local left = text.plural(abandoned, "entry is", "entries are")
  local choices = { "No summary", "Summary", "Summary with instructions" }
  vim.ui.select(choices, { prompt = left .. " left behind" }, function(_, choice)
    if choice == 1 then
      M.navigate(session_id, target_id)
    elseif choice == 2 then
      M.navigate(session_id, target_id, { summarize = true })
    elseif choice == 3 then
      vim.ui.input({ prompt = "What the summary should look at: " }, function(instructions)
        if instructions then
          M.navigate(session_id, target_id, { summarize = { instructions = instructions } })
        end
      end)
    end
  end)
end

--- Move the leaf, with a summary of what is left behind when the person wants one.
---@param session_id string
---@param target_id string
function M.navigate_with_summary(session_id, target_id)
  local function ask()
    local params = { sessionId = session_id, targetId = target_id, preview = true }
    client.request("session/navigate", params, function(err, preview)
      if err then
        offer_fork(session_id, err)
      elseif preview.abandoned == 0 then
        M.navigate(session_id, target_id)
      else
        choose_summary(session_id, target_id, preview.abandoned)
      end
    end)
  end
  -- Models come and go, and no change of a session tells of it.
  local params = { sessionId = session_id, subscribe = false }
  client.request("session/open", params, function(err, state)
    if err then
      say.error(err)
    elseif not state.can.summarize then
      say.warn("there is no model to summarise with")
    else
      ask()
    end
  end)
end

--- Show the session that a branch or fork has made.
---@param result dsh.BranchResult|dsh.ForkResult
local function made(result)
  if result.outcome == "cancelled" then
    say.info("cancelled, no session was made")
  elseif result.outcome == "refused" then
    say.warn("refused by an extension, no session was made")
  else
    require("dsh.scratch").arrive(function()
      require("dsh.view").open({ session_id = result.session.sessionId })
    end)
    edit(result.session.sessionId, result)
  end
end

--- Choose the prompt to branch from.
---@param session_id string
local function choose_prompt(session_id)
  if config.get().branch_picker == "tree" then
    require("dsh.view").open({ session_id = session_id })
    local key = config.get().keys.branch
    say.info(
      key and ("%s on a prompt makes a branch from it"):format(key)
        or "choose a prompt, then :DshBranch"
    )
    return
  end
  require("dsh.pick").user_messages(session_id, function(entry_id)
    M.branch(session_id, entry_id)
  end)
end

--- Make a new session file from a prompt, which then can be edited.
---@param session_id string
---@param entry_id? string of a prompt; without it one is chosen
function M.branch(session_id, entry_id)
  if not entry_id then
    choose_prompt(session_id)
    return
  end
  client.request(
    "session/branch",
    { sessionId = session_id, entryId = entry_id },
    function(err, result)
      if err then
        say.error(err)
      else
        made(result)
      end
    end
  )
end

--- Make a new session file of everything up to the end of a turn.
---@param session_id string
---@param boundary? string entry; without it the leaf
function M.fork(session_id, boundary)
  client.request(
    "session/fork",
    { sessionId = session_id, boundary = boundary },
    function(err, result)
      if not err then
        made(result)
      elseif err.kind == "boundaryInTurn" and err.data.nearestClosed then
        confirm(
          ("Turn %d is not over there. Fork where the turn before it ends?"):format(err.data.turn),
          "Fork",
          function()
            M.fork(session_id, err.data.nearestClosed)
          end
        )
      else
        say.error(err)
      end
    end
  )
end

--- Give an entry a label; a blank one takes it away.
---@param session_id string
---@param entry_id string
---@param label string
function M.label(session_id, entry_id, label)
  local blank = vim.trim(label) == ""
  local params = { sessionId = session_id, entryId = entry_id, label = blank and vim.NIL or label }
  client.request("session/label", params, function(err, result)
    if err then
      say.error(err)
    elseif result.stored == "state" then
      -- Nothing was written to the log, so no change tells of it.
      require("dsh.view").changed()
    end
  end)
end

---@param session_id string
---@param title string blank takes the title away
function M.rename(session_id, title)
  local blank = vim.trim(title) == ""
  local params = { sessionId = session_id, title = blank and vim.NIL or title }
  client.request("session/rename", params, function(err)
    if err then
      say.error(err)
    end
  end)
end

return M
