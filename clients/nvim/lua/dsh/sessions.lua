--- The sessions of a directory, as the sidebar lists them above the tree.
local client = require("dsh.client")
local config = require("dsh.config")
local render = require("dsh.render")
local text = require("dsh.text")

local M = {}

---@class dsh.Listener
---@field listed fun() another list is there
---@field changed fun(info: dsh.SessionInfo) something is known anew about a session

M.cwd = nil ---@type string? the directory
M.known = false -- whether its list is there
local items = {} ---@type dsh.SessionInfo[]
local total = 0 -- of all sessions of the directory
local wide = false -- whether changes of all sessions are told, since the one in use is not listed
local close ---@type fun()?

---@return table
local function filters()
  local scope = config.get().sessions.scope
  return {
    cwd = scope ~= "all" and M.cwd or nil,
    scope = scope,
    limit = config.get().sidebar.sessions,
  }
end

---@param list dsh.ListResult
local function take(list)
  items, total, M.known = list.items, list.total, true
end

--- Ask for the list again.
---@param listener dsh.Listener
function M.fetch(listener)
  client.request("session/list", filters(), function(err, list)
    if not err and close then
      take(list)
      listener.listed()
    end
  end)
end

---@param listener dsh.Listener
local function subscribe(listener)
  local before = close
  close = client.follow_catalog(wide and { scope = "all", limit = 1 } or filters(), function(list)
    if wide then
      M.fetch(listener)
    else
      take(list)
      listener.listed()
    end
  end, function(changed)
    vim.iter(changed.upserts):each(listener.changed)
    M.fetch(listener)
  end)
  if before then
    before()
  end
end

--- List the sessions of this directory from now on.
---@param cwd string
---@param listener dsh.Listener
function M.follow(cwd, listener)
  if close and M.cwd == cwd then
    return
  elseif M.cwd ~= cwd then
    M.cwd, M.known, items, total = cwd, false, {}, 0
  end
  wide = false
  subscribe(listener)
end

--- Have it told, too, what happens to this session when it is not among those that are listed.
---@param session_id string
---@param listener dsh.Listener
function M.include(session_id, listener)
  local needed = not M.lists(session_id)
  if close and M.known and needed ~= wide then
    wide = needed
    subscribe(listener)
  end
end

function M.leave()
  if close then
    close()
    close = nil
  end
end

---@param session_id string
---@return boolean
function M.lists(session_id)
  return M.line_of(session_id) ~= nil
end

--- The one that was active last, of those that can be opened.
---@return dsh.SessionInfo?
function M.latest()
  return vim.iter(items):find(function(info)
    return info.health ~= "unsupported" and info.health ~= "unreadable"
  end)
end

---@param session_id string? the one in use
---@param width integer of the window
---@return dsh.Line[]
function M.lines(session_id, width)
  if not M.known then
    return {}
  end
  local lines = vim.tbl_map(function(info)
    return render.session(info, info.sessionId == session_id, width)
  end, items)
  if total == 0 then
    table.insert(
      lines,
      render.hint("no sessions of " .. text.line(vim.fn.fnamemodify(M.cwd, ":~")))
    )
    table.insert(lines, render.hint(":DshSessions! picks from all directories"))
  elseif total > #items then
    table.insert(lines, render.hint(("… %s more"):format(text.number(total - #items))))
  end
  table.insert(lines, render.hint(""))
  return lines
end

--- The ids of those that are listed, line by line.
---@return string[]
function M.ids()
  return vim.tbl_map(function(info)
    return info.sessionId
  end, items)
end

---@param session_id string
---@return integer?
function M.line_of(session_id)
  return (vim.iter(ipairs(M.ids())):find(function(_, id)
    return id == session_id
  end))
end

--- The session of a line.
---@param line integer
---@return dsh.SessionInfo?
function M.at(line)
  return items[line]
end

--- Does this line stand for the sessions that are not listed?
---@param line integer
---@return boolean
function M.is_more(line)
  return total > #items and line == #items + 1
end

return M
