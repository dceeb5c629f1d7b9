--- `require("dsh")`: what a person's configuration uses. `:help dsh` describes it.
local M = {}

--- Set options. Not needed when the defaults will do.
---@param options dsh.Config?
function M.setup(options)
  require("dsh.config").set(options)
end

---@class dsh.Current
---@field session_id string
---@field entry_id? string
---@field row? dsh.Row under the cursor of the sidebar
---@field state? dsh.SessionState

--- The session, and the entry, that the current buffer is about; else the session of the sidebar.
---@return dsh.Current?
function M.current()
  local view = package.loaded["dsh.view"]
  if view and view.is_current() then
    local listed, row = view.listed_session(), view.row()
    local session_id = listed and listed.sessionId or view.session_id()
    return session_id
      and {
        session_id = session_id,
        entry_id = row and row.id,
        row = row,
        state = not listed and view.state() or nil,
      }
  elseif vim.b.dsh_session then
    return { session_id = vim.b.dsh_session, entry_id = vim.b.dsh_entry }
  elseif view and view.session_id() then
    return { session_id = view.session_id(), state = view.state() }
  end
end

--- `⑂ title · leaf label · running` of the session in the sidebar; nothing without one.
---@return string for 'statusline': text of logs cannot use it for anything
function M.statusline()
  local view = package.loaded["dsh.view"]
  local state = view and view.state()
  if not state then
    return ""
  end
  local words = { state.title }
  table.insert(words, view.leaf_label())
  if state.live and state.live.status == "running" then
    table.insert(words, "running")
  end
  return "⑂ " .. require("dsh.render").escape(table.concat(words, " · "))
end

return M
