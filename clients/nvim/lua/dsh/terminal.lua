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

--- The terminal in which the agent of a session runs already: two would write to one log.
---@param session_id string
---@return integer? buf
local function running(session_id)
  return vim.iter(vim.api.nvim_list_bufs()):find(function(buf)
    return vim.bo[buf].buftype == "terminal"
      and vim.b[buf].dsh_session == session_id
      and vim.fn.jobwait({ vim.bo[buf].channel }, 0)[1] == -1
  end)
end

--- Go to that terminal, in a window where it is already or in a new one.
---@param buf integer
local function go_to(buf)
  local win = vim.fn.win_findbuf(buf)[1]
  if win then
    vim.api.nvim_set_current_win(win)
  else
    require("dsh.scratch").new_window("belowright split")
    vim.api.nvim_win_set_buf(0, buf)
  end
end

---@param session_id string
---@param launch dsh.LaunchResult
local function start(session_id, launch)
  require("dsh.scratch").new_window("belowright split")
  vim.api.nvim_win_set_buf(0, vim.api.nvim_create_buf(true, false))
  local options = { cwd = launch.cwd, env = launch.env }
  if vim.fn.has("nvim-0.11") == 1 then
    options.term = true
    vim.fn.jobstart(launch.argv, options)
  else
    vim.fn.termopen(launch.argv, options)
  end
  vim.b.dsh_session = session_id
end

--- Start the agent of a session in a terminal, or go to the one where it runs.
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
    local terminal = running(session_id)
    local wrong = not terminal and problem(launch)
    if wrong then
      say.error(wrong)
      return
    end
    local taken_along = require("dsh.scratch").arrive(function()
      if terminal then
        go_to(terminal)
      else
        start(session_id, launch)
      end
    end)
    if taken_along then
      vim.cmd.startinsert()
    end
  end)
end

return M
