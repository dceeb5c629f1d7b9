--- What a person names: sessions and entries, resolved by the daemon, and completed on the command line.
local client = require("dsh.client")
local say = require("dsh.say")

local M = {}

local PATIENCE = 1000 -- ms that completion waits
local FEW = 50 -- candidates

--- The latest session of this directory.
---@param callback fun(session_id: string)
function M.latest(callback)
  local scope = require("dsh.config").get().sessions.scope
  local cwd = scope ~= "all" and vim.fn.getcwd() or nil
  client.request("session/list", { cwd = cwd, scope = scope, limit = 1 }, function(err, list)
    if err then
      say.error(err)
    elseif list.items[1] then
      callback(list.items[1].sessionId)
    else
      say.warn("no sessions of this directory; :DshSessions! picks from all")
    end
  end)
end

--- Find the session that a reference names: an id or its prefix, a title, a path, "last".
---@param ref string? without it the session in use, else the latest of this directory
---@param callback fun(session_id: string)
function M.session(ref, callback)
  local current = require("dsh").current()
  if ref and ref ~= "" then
    client.request("session/resolve", { ref = ref, cwd = vim.fn.getcwd() }, function(err, result)
      if err then
        say.error(err)
      else
        callback(result.sessionId)
      end
    end)
  elseif current then
    callback(current.session_id)
  else
    M.latest(callback)
  end
end

---@param session_id string
---@param ref string
---@param callback fun(entry_id: string)
local function by_label(session_id, ref, callback)
  client.request("session/labels", { sessionId = session_id }, function(err, labels)
    local item = not err
      and vim.iter(labels.items):find(function(item)
        return item.label == ref
      end)
    if item then
      callback(item.entryId)
    else
      say.error(err or ("no entry or label %s in this session"):format(ref))
    end
  end)
end

--- Find the entry that a reference names: "leaf", an id, a label.
---@param session_id string
---@param ref string
---@param callback fun(entry_id: string)
function M.entry(session_id, ref, callback)
  if ref == "leaf" then
    client.request(
      "session/open",
      { sessionId = session_id, subscribe = false },
      function(err, state)
        if err or not state.leafId then
          say.error(err or "the session stands before its first entry")
        else
          callback(state.leafId)
        end
      end
    )
    return
  end
  local params = { sessionId = session_id, ids = { ref }, maxBytes = 1024 }
  client.request("session/entries", params, function(err, found)
    if err then
      say.error(err)
    elseif #found.entries == 1 then
      callback(ref)
    else
      by_label(session_id, ref, callback)
    end
  end)
end

--- Ask and wait for the answer, as completion must.
---@param method string
---@param params table
---@return any? result
local function wait_for(method, params)
  local answer, done
  local id = client.request(method, params, function(_, result)
    answer, done = result, true
  end)
  vim.wait(PATIENCE, function()
    return done
  end, 5)
  if not done then
    client.cancel(id)
  end
  return answer
end

--- Candidates that go on from what was typed.
---@param lead string
---@param candidates string[]
---@return string[]
local function fitting(lead, candidates)
  local seen = {}
  return vim.tbl_filter(function(candidate)
    local fits = vim.startswith(candidate, lead) and candidate ~= "" and not seen[candidate]
    seen[candidate] = true
    return fits
  end, vim.tbl_map(require("dsh.text").line, candidates))
end

--- Ids and titles of sessions.
---@param lead string
---@return string[]
function M.complete_session(lead)
  local list = wait_for("session/list", { cwd = vim.fn.getcwd(), limit = FEW })
  if list and #list.items == 0 then
    list = wait_for("session/list", { limit = FEW })
  end
  local candidates = { "last" }
  for _, info in ipairs(list and list.items or {}) do
    vim.list_extend(candidates, { info.title, info.sessionId })
  end
  return fitting(lead, candidates)
end

---@return string?
local function session_for_completion()
  local current = require("dsh").current()
  if current then
    return current.session_id
  end
  local found = wait_for("session/resolve", { ref = "last", cwd = vim.fn.getcwd() })
  return found and found.sessionId
end

--- Labels and ids of entries; for a branch of prompts only.
---@param lead string
---@param filter dsh.Filter
---@return string[]
local function complete_entry(lead, filter)
  local session_id = session_for_completion()
  if not session_id then
    return {}
  end
  local candidates = { "leaf" }
  local labels = filter == "default" and wait_for("session/labels", { sessionId = session_id })
  for _, item in ipairs(labels and labels.items or {}) do
    table.insert(candidates, item.label)
  end
  local around = wait_for("session/path", { sessionId = session_id })
  local params = { sessionId = session_id, filter = filter, count = 1000, textLimit = 1 }
  params.around = around and around.ids[#around.ids]
  local page = wait_for("session/tree", params)
  for _, row in ipairs(page and page.rows or {}) do
    table.insert(candidates, row.id)
  end
  return fitting(lead, candidates)
end

---@param lead string
---@return string[]
function M.complete_entry(lead)
  return complete_entry(lead, "default")
end

---@param lead string
---@return string[]
function M.complete_prompt(lead)
  return vim.tbl_filter(function(candidate)
    return candidate ~= "leaf"
  end, complete_entry(lead, "user-only"))
end

--- Labels of the session in use, to be given again.
---@param lead string
---@return string[]
function M.complete_label(lead)
  local session_id = session_for_completion()
  local labels = session_id and wait_for("session/labels", { sessionId = session_id })
  return fitting(
    lead,
    vim.tbl_map(function(item)
      return item.label
    end, labels and labels.items or {})
  )
end

return M
