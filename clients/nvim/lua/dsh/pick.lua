--- Choosing a session, an entry, a place: lists through `vim.ui.select`, which telescope, fzf-lua, snacks and mini.pick
--- take over.
local client = require("dsh.client")
local render = require("dsh.render")
local say = require("dsh.say")
local text = require("dsh.text")

local M = {}

local MOST_SESSIONS = 1000
local WINDOW = 5000 -- rows in one answer

---@generic T
---@param items T[]
---@param about { prompt: string, kind: string, format: fun(item: T): string }
---@param on_choice fun(item: T)
local function select(items, about, on_choice)
  vim.ui.select(items, {
    prompt = about.prompt,
    kind = about.kind,
    format_item = about.format,
  }, function(item)
    if item then
      on_choice(item)
    end
  end)
end

---@param info dsh.SessionInfo
---@param everywhere boolean
---@return string
local function session_line(info, everywhere)
  local where = everywhere and info.cwd and " · " .. vim.fn.fnamemodify(info.cwd, ":~") or ""
  local bullet = render.bullet(info)[1]
  return text.line(("%s %s  (%s%s)"):format(bullet, info.title, render.facts(info, false), where))
end

---@param list dsh.ListResult
---@param query string
---@param everywhere boolean
---@return string?
local function nothing_found(list, query, everywhere)
  if #list.items > 0 then
    return
  end
  local what = query == "" and "no session" or ("no session matches “%s”"):format(query)
  local where = everywhere and "" or " in this directory (:DshSessions! lists all)"
  return what .. where
end

--- Pick a session and show its tree.
---@param query? string
---@param opts? { all?: boolean } of all directories
function M.sessions(query, opts)
  query = query or ""
  local everywhere = opts ~= nil and opts.all == true
  local params = {
    query = query ~= "" and query or nil,
    cwd = not everywhere and vim.fn.getcwd() or nil,
    scope = not everywhere and require("dsh.config").get().sessions.scope or nil,
    limit = MOST_SESSIONS,
  }
  client.request("session/list", params, function(err, list)
    local problem = err or nothing_found(list, query, everywhere)
    if problem then
      local tell = err and say.error or say.info
      tell(problem)
      return
    end
    local prompt = list.total > #list.items
        and ("Session (the latest %d of %d):"):format(#list.items, list.total)
      or "Session:"
    select(list.items, {
      prompt = prompt,
      kind = "dsh_session",
      format = function(info)
        return session_line(info, everywhere)
      end,
    }, function(info)
      require("dsh.view").open({ session_id = info.sessionId })
    end)
  end)
end

--- All rows of a tree, window by window.
---@param params dsh.SessionTreeParams
---@param use fun(rows: dsh.Row[])
---@param rows? dsh.Row[] those that are here already
local function with_rows(params, use, rows)
  rows = rows or {}
  params.start, params.count = #rows, WINDOW
  client.request("session/tree", params, function(err, tree)
    if err then
      say.error(err)
      return
    end
    vim.list_extend(rows, tree.rows)
    if #rows < tree.total and #tree.rows > 0 then
      with_rows(params, use, rows)
    else
      use(rows)
    end
  end)
end

---@param row dsh.Row
---@return string
local function row_line(row)
  local line = render.row(row)
  local marks = vim.tbl_map(function(chunk)
    return chunk[1]
  end, line.marks)
  return line.text .. table.concat(marks)
end

---@param session_id string
---@param filter "default"|"user-only"
---@param prompt string
---@param on_choice fun(entry_id: string)
local function pick_row(session_id, filter, prompt, on_choice)
  with_rows({ sessionId = session_id, filter = filter }, function(rows)
    if #rows == 0 then
      say.info("there is nothing in this session to choose from")
      return
    end
    select(rows, { prompt = prompt, kind = "dsh_entry", format = row_line }, function(row)
      on_choice(row.id)
    end)
  end)
end

--- Pick one of the user messages of all branches.
---@param session_id string
---@param on_choice fun(entry_id: string)
function M.user_messages(session_id, on_choice)
  pick_row(session_id, "user-only", "Branch from:", on_choice)
end

---@param session_id string
---@param opts { prompt?: string }
---@param on_choice fun(entry_id: string)
function M.entries(session_id, opts, on_choice)
  pick_row(session_id, "default", opts.prompt or "Entry:", on_choice)
end

---@param leaf dsh.LeafItem
---@return string
local function leaf_line(leaf)
  local label = leaf.label and ("  ⚑ " .. leaf.label) or ""
  local size = text.plural(leaf.entries, "entry", "entries")
  return text.line(("%s%s  (%s · %s)"):format(leaf.text, label, size, text.age(leaf.timestamp)))
end

--- Pick the tip of another branch.
---@param session_id string
---@param on_choice fun(entry_id: string)
function M.leaves(session_id, on_choice)
  client.request("session/leaves", { sessionId = session_id }, function(err, result)
    if err then
      say.error(err)
      return
    end
    local others = vim.tbl_filter(function(leaf)
      return not leaf.active
    end, result.items)
    if #others == 0 then
      say.info("this session has no other branch")
      return
    end
    local about = { prompt = "Tip of another branch:", kind = "dsh_entry", format = leaf_line }
    select(others, about, function(leaf)
      on_choice(leaf.entryId)
    end)
  end)
end

---@param item dsh.TouchedItem
---@return string
local function touched_line(item)
  local turn = item.turn and ("turn %d · "):format(item.turn) or ""
  local failed = item.failed and "  ✗" or ""
  local about = turn .. text.age(item.timestamp)
  return text.line(("%-5s  %s%s  (%s)"):format(item.action, item.text, failed, about))
end

--- The row of a call. The tree hides an answer that only calls tools; its calls are seen in the results below it.
---@param item dsh.TouchedItem
---@param use fun(entry_id: string)
local function with_row_of(item, use)
  local function ask(params, done)
    params.sessionId, params.count = item.sessionId, 1
    client.request("session/tree", params, function(err, tree)
      done(not err and tree.rows[1] and tree.rows[1].id)
    end)
  end
  ask({ around = item.entryId }, function(nearest)
    if nearest == item.entryId then
      use(nearest)
      return
    end
    ask({ at = item.entryId }, function(below)
      use(below or item.entryId)
    end)
  end)
end

--- Pick one of the entries that read or changed a file, of all sessions, and show it in its tree.
---@param path string absolute
function M.touched(path)
  client.work("session/touched", { path = path }, "looking for the file", function(err, result)
    if err then
      say.error(err)
    elseif #result.items == 0 then
      say.info("no session touched " .. vim.fn.fnamemodify(path, ":~:."))
    else
      local about = { prompt = "Touched it:", kind = "dsh_entry", format = touched_line }
      select(result.items, about, function(item)
        with_row_of(item, function(entry_id)
          require("dsh.view").open({ session_id = item.sessionId, entry_id = entry_id })
        end)
      end)
    end
  end)
end

--- Search what was said, everywhere or in one session, with results while typing.
---@param query? string to begin with
---@param opts? { session_id?: string }
function M.search(query, opts)
  require("dsh.search").open(query or "", opts and opts.session_id)
end

return M
