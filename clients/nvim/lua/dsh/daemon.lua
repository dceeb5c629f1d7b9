--- What the daemon is doing, and ending it.
local client = require("dsh.client")
local say = require("dsh.say")
local text = require("dsh.text")

local M = {}

---@param ms integer
---@return string
local function duration(ms)
  local minutes = math.floor(ms / 60000)
  if minutes < 60 then
    return text.plural(minutes, "minute", "minutes")
  elseif minutes < 48 * 60 then
    return text.plural(math.floor(minutes / 60), "hour", "hours")
  end
  return text.plural(math.floor(minutes / 1440), "day", "days")
end

---@param root dsh.RootInfo
---@return string
local function root_line(root)
  local state = not root.exists and "not there"
    or not root.readable and "cannot be read"
    or text.plural(root.sessions, "session", "sessions")
  return ("  %-8s %s  (%s)"):format(root.format, vim.fn.fnamemodify(root.path, ":~"), state)
end

---@param status dsh.StatusResult
---@return string[]
function M.lines(status)
  local lines = {
    ("dshd %s, process %d, protocol %d, %s"):format(
      status.version,
      status.pid,
      status.protocolVersion,
      status.state
    ),
    ("up for %s, %.0f MB of memory, %s open"):format(
      duration(status.uptimeMs),
      status.memoryBytes / 1e6,
      text.plural(status.openSessions, "session", "sessions")
    ),
    "",
    "Roots",
  }
  vim.list_extend(lines, vim.tbl_map(root_line, status.roots))
  vim.list_extend(lines, { "", "Connections" })
  for _, connection in ipairs(status.connections) do
    local pid = connection.pid and (", process %d"):format(connection.pid) or ""
    table.insert(
      lines,
      ("  %s%s, follows %d"):format(connection.name, pid, connection.subscriptions)
    )
  end
  local watch, index = status.watch, status.index
  vim.list_extend(lines, {
    "",
    "Watching  " .. watch.mode .. (watch.reason and (": " .. watch.reason) or ""),
    ("Index     %s, %d of %d sessions"):format(index.state, index.indexed, index.total),
    "Socket    " .. (status.socketPath or "none"),
    "Log       " .. (status.logFile or "none"),
  })
  return vim.tbl_map(text.line, lines)
end

function M.status()
  client.request("daemon/status", nil, function(err, status)
    if err then
      say.error(err)
      return
    end
    local scratch = require("dsh.scratch")
    local buf = scratch.buffer({ name = "dsh-status://" }, M.lines(status))
    scratch.float(buf, "dsh daemon")
  end)
end

--- End the daemon: after what it is doing, or (`force`) at once. It serves other editors and terminals too.
---@param opts? { force?: boolean }
function M.stop(opts)
  local force = opts ~= nil and opts.force == true
  client.request("daemon/stop", { force = force }, function(err)
    if err then
      say.error(err)
      return
    end
    client.stop()
    say.info("the daemon is stopped")
  end)
end

return M
