--- Going on with a session in the agent that owns it, in a terminal of Neovim.
local client = require("dsh.client")
local say = require("dsh.say")

local M = {}

---@param launch dsh.LaunchResult
---@return string? problem
local function problem(launch)
  if vim.fn.executable(launch.argv[1]) == 0 then
    return ("%s is not on the PATH"):format(launch.argv[1])
  elseif launch.cwd and vim.fn.isdirectory(launch.cwd) == 0 then
    return ("the folder of this session is gone: %s"):format(launch.cwd)
  end
end

---@param session_id string
---@param launch dsh.LaunchResult
local function start(session_id, launch)
  require("dsh.scratch").go_to_text_window()
  vim.cmd("belowright new")
  local options = { cwd = launch.cwd, env = launch.env }
  if vim.fn.has("nvim-0.11") == 1 then
    options.term = true
    vim.fn.jobstart(launch.argv, options)
  else
    vim.fn.termopen(launch.argv, options)
  end
  vim.b.dsh_session = session_id
  vim.cmd.startinsert()
end

---@param session_id string
function M.resume(session_id)
  client.request("session/launch", { sessionId = session_id }, function(err, launch)
    if err and err.kind == "notSupportedByFormat" then
      say.warn(
        "no program owns this session; any agent that speaks to the daemon can go on with it"
      )
      return
    elseif err then
      say.error(err)
      return
    end
    local wrong = problem(launch)
    if wrong then
      say.error(wrong)
    else
      start(session_id, launch)
    end
  end)
end

return M
