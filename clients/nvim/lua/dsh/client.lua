--- The connection to the daemon: finding it, requests, notifications, coming back after a loss, and followed sessions.
---
--- There is one connection for each Neovim. It is made by the first request, and made again after a loss while
--- somebody follows something; otherwise nothing runs, no timer either.
local say = require("dsh.say")

local M = {}

local uv = vim.uv

local FIRST_DELAY = 100 -- ms before the second attempt to come back; doubled with each
local LONGEST_DELAY = 10000
local ATTEMPTS = 12 -- about a minute; then the next request tries again
local PATIENCE = 20000 -- ms for the daemon to start and to answer
local CANCELLED = -32800

---@class dsh.Error
---@field kind string of the protocol's domain faults; "cancelled", "disconnected", "notFound" (no dshd) are made here, "protocol" is any other
---@field message string
---@field code? integer
---@field data? table

---@alias dsh.State "off"|"connecting"|"ready"|"lost"
---@alias dsh.Callback fun(err: dsh.Error?, result: any)

---@class dsh.Call
---@field id integer
---@field method string
---@field params table
---@field callback dsh.Callback
---@field rpc_id? integer set once it was sent

---@class dsh.Follower
---@field state? fun(state: dsh.SessionState, fresh: boolean) the baseline, and each one after a gap; fresh = not a continuation
---@field change? fun(change: dsh.Change, state: dsh.SessionState)
---@field closed? fun(closed: { reason: string, message: string? })

---@class dsh.Followed
---@field id string
---@field followers table<dsh.Follower, true>
---@field state? dsh.SessionState
---@field opening boolean

---@class dsh.Catalog
---@field filters table
---@field page fun(list: dsh.ListResult)
---@field change fun(changed: dsh.CatalogChanged)
---@field opening boolean

local state = "off" ---@type dsh.State
local rpc ---@type vim.lsp.rpc.PublicClient?
local socket_path ---@type string?
local generation = 0 -- of the connection; what belongs to an earlier one is not listened to
local attempts = 0
local trying = false
local died = false -- the daemon that we lost; else it was told to stop
local timer ---@type uv.uv_timer_t? of the next attempt, or of the end of our patience with this one

local last_id = 0
local calls = {} ---@type table<integer, dsh.Call> not answered yet
local queue = {} ---@type dsh.Call[] not sent yet
local listeners = {} ---@type table<string, table<function, true>>
local followed = {} ---@type table<string, dsh.Followed>
local catalog ---@type dsh.Catalog?

---@param name string
---@param ... any
local function emit(name, ...)
  -- A copy, since a listener may take itself or another one off.
  for _, fn in ipairs(vim.tbl_keys(listeners[name] or {})) do
    fn(...)
  end
end

---@param now dsh.State
local function set_state(now)
  if state ~= now then
    state = now
    emit("state", now)
  end
end

---@param call dsh.Call
---@param err? dsh.Error
---@param result? any
local function finish(call, err, result)
  if calls[call.id] then
    calls[call.id] = nil
    call.callback(err, result)
  end
end

---@param raw lsp.ResponseError
---@return dsh.Error
local function read_error(raw)
  local data = type(raw.data) == "table" and raw.data or nil
  local kind = raw.code == CANCELLED and "cancelled" or data and data.kind or "protocol"
  return { kind = kind, message = raw.message, code = raw.code, data = data }
end

---@param call dsh.Call
local function send(call)
  local client = rpc --[[@as vim.lsp.rpc.PublicClient]]
  local sent, rpc_id = client.request(call.method, call.params, function(err, result)
    finish(call, err and read_error(err), result)
  end, function()
    -- Neovim keeps the answer to a cancelled request for itself. This is called for every answer before the
    -- callback is, so what is still open one round later was cancelled.
    vim.schedule(function()
      finish(call, { kind = "cancelled", message = "cancelled", code = CANCELLED })
    end)
  end)
  if sent then
    call.rpc_id = rpc_id
  else
    finish(call, { kind = "disconnected", message = "the connection to the daemon is lost" })
  end
end

---@param err dsh.Error
---@param which fun(call: dsh.Call): boolean
local function fail(err, which)
  queue = vim.tbl_filter(function(call)
    return not which(call)
  end, queue)
  for _, call in pairs(vim.tbl_values(calls)) do
    if which(call) then
      finish(call, err)
    end
  end
end

local function anybody()
  return catalog ~= nil or next(followed) ~= nil or #queue > 0
end

---@param s dsh.Followed
---@param name "state"|"change"|"closed"
---@param ... any
local function tell(s, name, ...)
  for _, follower in ipairs(vim.tbl_keys(s.followers)) do
    if follower[name] then
      follower[name](...)
    end
  end
end

---@param s dsh.Followed
---@param closed { reason: string, message: string? }
local function drop(s, closed)
  followed[s.id] = nil
  tell(s, "closed", closed)
end

--- Fetch the state of a followed session: from where we are when that can be continued.
---@param s dsh.Followed
local function baseline(s)
  s.opening = true
  local known = s.state
  local since = known and { epoch = known.epoch, revision = known.revision } or nil
  M.request("session/open", { sessionId = s.id, since = since }, function(err, result)
    if followed[s.id] ~= s then
      return
    end
    s.opening = false
    if not err then
      s.state = result
      tell(s, "state", result, not (known and known.epoch == result.epoch))
    elseif err.kind ~= "disconnected" then -- after that one it is asked for again
      drop(s, { reason = err.kind, message = err.message })
    end
  end)
end

---@param change dsh.Change
local function on_changed(change)
  local s = followed[change.sessionId]
  if not s or s.opening or not s.state then
    return -- the answer that is on its way holds it already
  end
  local now = s.state --[[@as dsh.SessionState]]
  if change.epoch ~= now.epoch or change.resync then
    baseline(s)
  elseif change.revision <= now.revision then
    return
  elseif change.fromRevision == now.revision then
    for name, value in pairs(change.info or {}) do
      now[name] = value
    end
    now.revision, now.leafId, now.openTurn = change.revision, change.leafId, change.openTurn
    tell(s, "change", change, now)
  else
    baseline(s)
  end
end

---@param method string
---@param params table
local function on_notification(method, params)
  if method == "session/changed" then
    on_changed(params)
  elseif method == "session/closed" and followed[params.sessionId] then
    drop(followed[params.sessionId], params)
  elseif method == "catalog/changed" and catalog then
    catalog.change(params)
  end
  emit("<- " .. method, params)
end

local function subscribe_catalog()
  local mine = catalog --[[@as dsh.Catalog]]
  mine.opening = true
  M.request("catalog/subscribe", mine.filters, function(err, list)
    mine.opening = false
    if catalog == mine and not err then
      mine.page(list)
    elseif catalog == mine and err.kind ~= "disconnected" then
      say.error(err)
    end
  end)
end

local function stop_timer()
  if timer then
    timer:stop()
    timer:close()
    timer = nil
  end
end

---@param ms integer
---@param fn fun()
local function after(ms, fn)
  stop_timer()
  timer = vim.defer_fn(function()
    timer = nil
    fn()
  end, ms)
end

local connect ---@type fun()

--- An attempt has failed.
---@param err dsh.Error
local function failed(err)
  stop_timer()
  trying = false
  rpc = nil
  local before = state
  fail(err, function()
    return true
  end)
  if before == "lost" and err.kind == "disconnected" and attempts < ATTEMPTS and anybody() then
    local delay = math.min(FIRST_DELAY * 2 ^ attempts, LONGEST_DELAY)
    attempts = attempts + 1
    after(delay, connect)
    return
  end
  if before == "lost" and died then
    say.warn("the daemon does not come back; the next command tries again")
  end
  set_state("off")
end

--- The connection has ended without our asking.
local function lost()
  rpc = nil
  trying = false
  if state ~= "ready" then
    failed({ kind = "disconnected", message = "the daemon did not start (see :checkhealth dsh)" })
    return
  end
  set_state(anybody() and "lost" or "off")
  fail({ kind = "disconnected", message = "the connection to the daemon is lost" }, function(call)
    return call.rpc_id ~= nil
  end)
  if state == "lost" then
    attempts = 0
    -- A daemon that was told to stop takes its socket away. It is left in peace until it is needed; one that died
    -- is started again.
    died = uv.fs_stat(socket_path or "") ~= nil
    say.warn(died and "the daemon is gone, reconnecting" or "the daemon was stopped")
    -- One that is being killed still takes connections for a moment, and Neovim tells of each that comes to nothing.
    after(FIRST_DELAY, connect)
  end
end

local function ready()
  local client = rpc --[[@as vim.lsp.rpc.PublicClient]]
  client.notify("initialized", vim.empty_dict())
  stop_timer()
  trying = false
  local back = state == "lost"
  set_state("ready")
  if back then
    say.info("connected again")
  end
  local waiting = queue
  queue = {}
  -- What was asked for meanwhile may count on following, so that comes first.
  for _, s in pairs(followed) do
    if not s.opening then
      baseline(s)
    end
  end
  if catalog and not catalog.opening then
    subscribe_catalog()
  end
  for _, call in ipairs(waiting) do
    if calls[call.id] then
      send(call)
    end
  end
end

---@param factory fun(dispatchers: vim.lsp.rpc.Dispatchers): vim.lsp.rpc.PublicClient
local function attach(factory)
  generation = generation + 1
  local mine = generation
  local made, client = pcall(factory, {
    notification = function(method, params)
      if mine == generation then
        on_notification(method, params)
      end
    end,
    on_exit = vim.schedule_wrap(function()
      if mine == generation then
        generation = generation + 1
        lost()
      end
    end),
    on_error = function(code, err)
      if code ~= vim.lsp.rpc.client_errors.READ_ERROR then
        say.error("the daemon sent what cannot be read: " .. tostring(err))
      elseif rpc and mine == generation then
        rpc.terminate() -- a connection that was reset is not ended by itself
      end
    end,
  })
  if not made then
    failed({ kind = "notFound", message = "dshd cannot be started (see :checkhealth dsh)" })
    return
  end
  rpc = client
  after(PATIENCE, function()
    generation = generation + 1
    client.terminate()
    failed({ kind = "disconnected", message = "the daemon does not answer" })
  end)
  rpc.request("initialize", {
    processId = uv.os_getpid(),
    clientInfo = { name = "neovim", version = tostring(vim.version()) },
    capabilities = vim.empty_dict(),
    initializationOptions = { protocolVersion = require("dsh.protocol").version },
  }, function(err)
    if mine ~= generation then
      return
    elseif err then
      generation = generation + 1
      client.terminate()
      failed(read_error(err))
    else
      ready()
    end
  end)
end

--- Why there is no path of a socket, of a `dshd` that could be run.
---@param stderr string?
---@return string
local function failure(stderr)
  local line = vim.trim(stderr or ""):match("^[^\n]+")
  return "dshd failed" .. (line and ": " .. line or " (see :checkhealth dsh)")
end

--- Ask `dshd` for the path of the socket, once.
---@param callback fun(path: string?, problem: string?)
local function find_socket(callback)
  if socket_path then
    callback(socket_path)
    return
  end
  local command =
    vim.list_extend(vim.deepcopy(require("dsh.config").get().daemon.cmd), { "socket-path" })
  local waiting = true
  ---@param path string?
  ---@param problem string?
  local function answer(path, problem)
    if waiting then
      waiting = false
      callback(path, problem)
    end
  end
  local started, job = pcall(
    vim.system,
    command,
    { text = true },
    vim.schedule_wrap(function(done)
      answer(done.code == 0 and vim.trim(done.stdout) or nil, failure(done.stderr))
    end)
  )
  if not started then
    answer(nil, "dshd was not found (see :checkhealth dsh)")
    return
  end
  after(PATIENCE, function()
    job:kill("sigkill")
    answer(nil, "dshd does not answer (see :checkhealth dsh)")
  end)
end

--- Does somebody listen there?
---@param path string
---@param callback fun(up: boolean)
local function probe(path, callback)
  local pipe = assert(uv.new_pipe(false))
  pipe:connect(
    path,
    vim.schedule_wrap(function(err)
      pipe:close()
      callback(err == nil)
    end)
  )
end

--- Connect to the daemon that runs. Where there is none it is started, if somebody waits for an answer or if the one
--- before it died.
function connect()
  trying = true
  local mine = generation
  find_socket(function(path, problem)
    if mine ~= generation then
      return
    elseif not path then
      failed({
        kind = "notFound",
        message = problem --[[@as string]],
      })
      return
    end
    socket_path = path
    stop_timer()
    probe(path, function(up)
      if mine ~= generation then
        return
      elseif up then
        attach(vim.lsp.rpc.connect(path))
      elseif #queue > 0 or uv.fs_stat(path) then
        local command =
          vim.list_extend(vim.deepcopy(require("dsh.config").get().daemon.cmd), { "stdio" })
        attach(function(dispatchers)
          return vim.lsp.rpc.start(command, dispatchers)
        end)
      else
        failed({ kind = "disconnected", message = "the daemon is not running" })
      end
    end)
  end)
end

--- Have a connection made where there is none, at once.
local function wake()
  if state == "ready" or trying then
    return
  end
  stop_timer()
  if state == "off" then
    set_state("connecting")
  end
  connect()
end

--- Send a request, after connecting where that is needed. `vim.NIL` in `params` is the protocol's null.
---@param method dsh.Method|string
---@param params table?
---@param callback dsh.Callback
---@return integer id for `cancel`
function M.request(method, params, callback)
  last_id = last_id + 1
  if not params or next(params) == nil then
    params = vim.empty_dict()
  end
  local call = { id = last_id, method = method, params = params, callback = callback }
  calls[call.id] = call
  if state == "ready" then
    send(call)
  else
    table.insert(queue, call)
    wake()
  end
  return call.id
end

---@param method string
---@param params table
function M.notify(method, params)
  if rpc and state == "ready" then
    rpc.notify(method, params)
  end
end

--- Ask the daemon to give a request up. It is answered all the same: as cancelled, or with what came first.
---@param id integer
function M.cancel(id)
  local call = calls[id]
  if not call then
    return
  elseif call.rpc_id then
    M.notify("$/cancelRequest", { id = call.rpc_id })
  else
    fail({ kind = "cancelled", message = "cancelled", code = CANCELLED }, function(other)
      return other == call
    end)
  end
end

--- A request that takes its time: the daemon's progress is shown until the answer.
---@param method dsh.Method|string
---@param params table
---@param title string
---@param callback dsh.Callback
---@return integer id
function M.work(method, params, title, callback)
  local token = "dsh-" .. (last_id + 1)
  local function show(what)
    local text = require("dsh.text")
    vim.cmd.redraw() -- else it stands behind a question that was answered, and Neovim asks for <Enter>
    local line = text.line(what and ("dsh: %s: %s"):format(title, what) or "dsh: " .. title)
    vim.api.nvim_echo({ { text.cut(line .. " …", vim.v.echospace) } }, false, {})
  end
  local off = M.on("$/progress", function(progress)
    if progress.token == token then
      show(progress.value.message or progress.value.title)
    end
  end)
  show()
  return M.request(
    method,
    vim.tbl_extend("force", params, { workDoneToken = token }),
    function(err, result)
      off()
      vim.api.nvim_echo({ { "" } }, false, {})
      callback(err, result)
    end
  )
end

---@param name string
---@param fn function
---@return fun() off
local function listen(name, fn)
  listeners[name] = listeners[name] or {}
  listeners[name][fn] = true
  return function()
    listeners[name][fn] = nil
  end
end

--- Hear a notification of the daemon.
---@param method string
---@param fn fun(params: table)
---@return fun() off
function M.on(method, fn)
  return listen("<- " .. method, fn)
end

---@param fn fun(state: dsh.State)
---@return fun() off
function M.on_state(fn)
  return listen("state", fn)
end

---@return dsh.State
function M.state()
  return state
end

--- Leave the daemon. The next request connects again.
function M.stop()
  stop_timer()
  generation = generation + 1
  trying, attempts = false, 0
  if rpc and not rpc.is_closing() then
    rpc.terminate()
  end
  rpc, socket_path = nil, nil
  set_state("off")
  fail({ kind = "disconnected", message = "the connection to the daemon was closed" }, function()
    return true
  end)
end

--- Follow a session. The follower is told the state, then every change; all followers of a session share one stream.
---@param session_id string
---@param follower dsh.Follower
---@return fun() close
function M.open(session_id, follower)
  local s = followed[session_id]
  if not s then
    s = { id = session_id, followers = {}, opening = false }
    followed[session_id] = s
    s.followers[follower] = true
    baseline(s)
  else
    s.followers[follower] = true
    if s.state and not s.opening and follower.state then
      follower.state(s.state, true)
    end
  end
  return function()
    s.followers[follower] = nil
    if next(s.followers) == nil and followed[session_id] == s then
      followed[session_id] = nil
      if state == "ready" then
        M.request("session/close", { sessionId = session_id }, function() end)
      end
    end
  end
end

--- Follow the catalogue. There is one subscription for each connection: a new one ends the one before.
---@param filters table those of session/list
---@param page fun(list: dsh.ListResult) the baseline
---@param change fun(changed: dsh.CatalogChanged)
---@return fun() close
function M.follow_catalog(filters, page, change)
  local mine = { filters = filters, page = page, change = change, opening = false }
  catalog = mine
  subscribe_catalog()
  return function()
    if catalog == mine then
      catalog = nil
      if state == "ready" then
        M.request("catalog/unsubscribe", nil, function() end)
      end
    end
  end
end

return M
