--- `:checkhealth dsh`: what is missing, and how to get it.
local M = {}

local PATIENCE = 5000 -- ms for one command or answer

---@param arguments string[]
---@return string? output, string? problem
local function run(arguments)
  local command = vim.list_extend(vim.deepcopy(require("dsh.config").get().daemon.cmd), arguments)
  local started, process = pcall(vim.system, command, { text = true })
  if not started then
    return nil, "cannot be started"
  end
  local done = process:wait(PATIENCE)
  if done.code ~= 0 then
    return nil, vim.trim(done.stderr ~= "" and done.stderr or "exit status " .. done.code)
  end
  return vim.trim(done.stdout)
end

local function check_neovim()
  vim.health.start("Neovim")
  local version = tostring(vim.version())
  if vim.fn.has("nvim-0.10") == 1 then
    vim.health.ok("Neovim " .. version)
  else
    vim.health.error("Neovim " .. version .. " is too old", "0.10 or newer is needed")
  end
  if vim.fn.has("clipboard") == 1 then
    vim.health.ok("clipboard: texts of entries and prompts can be copied")
  else
    vim.health.info("no clipboard, texts are copied to the unnamed register: see :help clipboard")
  end
end

---@return boolean found
local function check_dshd()
  vim.health.start("dshd")
  local name = require("dsh.config").get().daemon.cmd[1]
  local path = vim.fn.exepath(name)
  if path == "" then
    vim.health.error(name .. " is not on the PATH of Neovim", {
      "Install it from the project's folder: `pipx install .` or `pip install .`",
      'Or name it: `require("dsh").setup({ daemon = { cmd = { "/path/to/dshd" } } })`',
    })
    return false
  end
  local version, problem = run({ "--version" })
  if not version then
    vim.health.error(("%s does not work: %s"):format(path, problem))
    return false
  end
  vim.health.ok(("%s (%s)"):format(version, path))
  return true
end

---@param status dsh.StatusResult
---@param ms number
local function report(status, ms)
  vim.health.ok(
    ("dshd %s answers in %.1f ms (process %d, protocol %d)"):format(
      status.version,
      ms,
      status.pid,
      status.protocolVersion
    )
  )
  vim.health.info("socket: " .. (status.socketPath or "none"))
  vim.health.info("log: " .. (status.logFile or "none"))
  if status.watch.mode == "polling" then
    vim.health.warn("files are polled: " .. (status.watch.reason or "no reason is known"))
  end
end

---@param roots dsh.RootInfo[]
local function check_roots(roots)
  vim.health.start("Roots, where sessions are looked for")
  local sessions = 0
  for _, root in ipairs(roots) do
    local place = ("%s: %s"):format(root.format, root.path)
    sessions = sessions + root.sessions
    if not root.exists then
      vim.health.info(place .. " (not there)")
    elseif not root.readable then
      vim.health.warn(place .. " cannot be read", "Check the permissions of that folder")
    else
      vim.health.ok(
        ("%s (%s)"):format(place, require("dsh.text").plural(root.sessions, "session", "sessions"))
      )
    end
  end
  if sessions == 0 then
    vim.health.warn("no session was found", {
      "Begin one in pi, omp or dsh",
      "Or name a folder that has some: `dshd config --help`",
    })
  end
end

local function check_daemon()
  vim.health.start("Daemon")
  local began = vim.uv.hrtime()
  local answer ---@type { [1]: dsh.Error?, [2]: dsh.StatusResult? }?
  require("dsh.client").request("daemon/ping", nil, function(err)
    if err then
      answer = { err }
      return
    end
    began = vim.uv.hrtime() -- the connection is there now
    require("dsh.client").request("daemon/status", nil, function(...)
      answer = { ... }
    end)
  end)
  local answered = vim.wait(PATIENCE, function()
    return answer ~= nil
  end, 1)
  local err, status = unpack(answer or {})
  if not answered or err then
    local why = err and err.message or "no answer within five seconds"
    vim.health.error("the daemon does not answer: " .. why, {
      "See what it says: `dshd serve --foreground`",
      "End one that hangs: `dshd stop --force`",
    })
    return
  end
  report(status, (vim.uv.hrtime() - began) / 1e6)
  check_roots(status.roots)
end

function M.check()
  check_neovim()
  if check_dshd() then
    check_daemon()
  end
end

return M
