--- Search with results while typing: a line to type in, and below it what was found.
local client = require("dsh.client")
local text = require("dsh.text")

local M = {}

local PAUSE = 80 -- ms without a key before the daemon is asked
local AGAIN = 400 -- ms until it is asked again where the index was not complete
local MOST = 50 -- results shown
local namespace = vim.api.nvim_create_namespace("dsh_search")

---@class dsh.Found one result
---@field session_id string
---@field entry_id? string nil where the title is what was found: that is the session itself
---@field lines dsh.FoundLine[]

---@class dsh.FoundLine
---@field text string
---@field marks [integer, integer, string][] byte columns and the group

---@class dsh.Search
---@field session_id? string searched alone
---@field input integer window
---@field results integer window
---@field found dsh.Found[]
---@field chosen integer place in `found`
---@field asked? integer the request that is on its way
---@field pause? uv.uv_timer_t

---@param hit dsh.Hit
---@return dsh.FoundLine
local function hit_line(hit)
  local head = ("  %s  "):format(text.line(hit.role))
  local snippet = text.line(hit.snippet)
  local marks = { { 0, #head, "DshKind" } }
  for _, range in ipairs(snippet == hit.snippet and hit.ranges or {}) do
    local from, to = text.byte_range(snippet, range[1], range[2])
    table.insert(marks, { #head + from, #head + to, "DshMatch" })
  end
  local about = { text.age(hit.timestamp) }
  if hit.branch == "abandoned" then
    table.insert(about, "another branch")
  end
  if hit.compacted then
    table.insert(about, "compacted")
  end
  local line = head .. snippet
  local tail = ("  (%s)"):format(table.concat(about, " · "))
  table.insert(marks, { #line, #line + #tail, "DshInactive" })
  return { text = line .. tail, marks = marks }
end

---@param hit dsh.Hit
---@return string?
local function entry_of(hit)
  if hit.role ~= "title" then
    return hit.entryId
  end
end

---@param item dsh.SessionHits
---@return dsh.Found
local function of_session(item)
  local info = item.session
  local title = text.line(info.title)
  local hits = text.plural(item.hits, "hit", "hits")
  local tail = ("  %s · %s · %s"):format(
    info.format,
    vim.fn.fnamemodify(text.line(info.cwd or "no folder"), ":~"),
    hits
  )
  local marks = { { 0, #title, "DshUser" }, { #title, #title + #tail, "DshInactive" } }
  return {
    session_id = info.sessionId,
    entry_id = entry_of(item.best),
    lines = { { text = title .. tail, marks = marks }, hit_line(item.best) },
  }
end

---@param search dsh.Search
---@return integer first line of the chosen result, 1-based
local function chosen_line(search)
  local line = 1
  for i = 1, search.chosen - 1 do
    line = line + #search.found[i].lines
  end
  return line
end

---@param search dsh.Search
---@param found dsh.Found[]
---@param note string below the results
local function draw(search, found, note)
  local before = search.found[search.chosen]
  search.found, search.chosen = found, 1
  for i, one in ipairs(found) do
    if before and one.session_id == before.session_id and one.entry_id == before.entry_id then
      search.chosen = i
    end
  end
  local lines, marks = {}, {}
  for _, one in ipairs(found) do
    for _, line in ipairs(one.lines) do
      table.insert(lines, line.text)
      marks[#lines] = line.marks
    end
  end
  local buf = vim.api.nvim_win_get_buf(search.results)
  vim.bo[buf].modifiable = true
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, lines)
  vim.bo[buf].modifiable = false
  for row, of_line in pairs(marks) do
    for _, mark in ipairs(of_line) do
      vim.api.nvim_buf_set_extmark(buf, namespace, row - 1, mark[1], {
        end_col = mark[2],
        hl_group = mark[3],
      })
    end
  end
  vim.api.nvim_win_set_cursor(search.results, { chosen_line(search), 0 })
  vim.wo[search.results].cursorline = #lines > 0
  vim.api.nvim_win_set_config(
    search.results,
    { border = "rounded", footer = note ~= "" and (" " .. note .. " ") or "" }
  )
end

---@param result dsh.SearchSessionsResult|dsh.SearchEntriesResult
---@return string
local function note_of(result)
  local notes = {}
  if #result.items == 0 then
    table.insert(notes, "nothing found")
  elseif result.nextCursor then
    table.insert(notes, ("the best %d, more words narrow it down"):format(#result.items))
  end
  local coverage = result.coverage
  if coverage and coverage.indexed < coverage.total then
    table.insert(
      notes,
      ("%d of %d sessions are indexed so far"):format(coverage.indexed, coverage.total)
    )
  end
  return table.concat(notes, " · ")
end

---@param search dsh.Search
---@param result dsh.SearchSessionsResult|dsh.SearchEntriesResult
local function take(search, result)
  local found = vim.tbl_map(function(item)
    if search.session_id then
      return {
        session_id = search.session_id,
        entry_id = entry_of(item),
        lines = { hit_line(item) },
      }
    end
    return of_session(item)
  end, result.items)
  draw(search, found, note_of(result))
end

---@param search dsh.Search
local function is_open(search)
  return vim.api.nvim_win_is_valid(search.input) and vim.api.nvim_win_is_valid(search.results)
end

---@param search dsh.Search
---@return string
local function query_of(search)
  return vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(search.input), 0, 1, false)[1]
end

---@param search dsh.Search
local function drop_asked(search)
  if search.asked then
    client.cancel(search.asked)
    search.asked = nil
  end
end

---@param search dsh.Search
local function stop_pause(search)
  if search.pause then
    search.pause:stop()
    search.pause:close()
    search.pause = nil
  end
end

local ask_after ---@type fun(search: dsh.Search, ms: integer)

---@param search dsh.Search
local function ask(search)
  drop_asked(search)
  local query = query_of(search)
  if not query:find('[^%s"]') then
    draw(search, {}, "")
    return
  end
  local method = search.session_id and "search/entries" or "search/sessions"
  local params = { query = query, limit = MOST, sessionId = search.session_id }
  local id
  id = client.request(method, params, function(err, result)
    if search.asked ~= id or not is_open(search) then
      return
    end
    search.asked = nil
    if err then
      draw(search, {}, text.line(err.message))
    else
      take(search, result)
      if result.coverage and result.coverage.indexed < result.coverage.total then
        ask_after(search, AGAIN)
      end
    end
  end)
  search.asked = id
end

function ask_after(search, ms)
  stop_pause(search)
  search.pause = vim.defer_fn(function()
    search.pause = nil
    if is_open(search) then
      ask(search)
    end
  end, ms)
end

---@param search dsh.Search
local function close(search)
  stop_pause(search)
  drop_asked(search)
  vim.cmd.stopinsert()
  for _, win in ipairs({ search.input, search.results }) do
    if vim.api.nvim_win_is_valid(win) then
      vim.api.nvim_win_close(win, true)
    end
  end
end

---@param search dsh.Search
---@param step integer
local function move(search, step)
  if #search.found > 0 then
    search.chosen = (search.chosen - 1 + step) % #search.found + 1
    vim.api.nvim_win_set_cursor(search.results, { chosen_line(search), 0 })
  end
end

---@param search dsh.Search
local function choose(search)
  local found = search.found[search.chosen]
  if found then
    close(search)
    require("dsh.view").open({ session_id = found.session_id, entry_id = found.entry_id })
  end
end

---@param search dsh.Search
---@param buf integer
local function set_keys(search, buf)
  local keys = {
    ["<CR>"] = { choose, "Show the result in its tree" },
    ["<C-n>"] = { move, "Next result", 1 },
    ["<Down>"] = { move, "Next result", 1 },
    ["<C-p>"] = { move, "Previous result", -1 },
    ["<Up>"] = { move, "Previous result", -1 },
    ["<Esc>"] = { close, "Close" },
    ["<C-c>"] = { close, "Close" },
  }
  for key, what in pairs(keys) do
    vim.keymap.set({ "n", "i" }, key, function()
      what[1](search, what[3])
    end, { buffer = buf, desc = what[2], nowait = true })
  end
end

---@param config vim.api.keyset.win_config
---@param enter boolean
---@return integer win
local function window(config, enter)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.bo[buf].bufhidden = "wipe"
  vim.bo[buf].modeline = false
  local win = vim.api.nvim_open_win(
    buf,
    enter,
    vim.tbl_extend("force", config, {
      relative = "editor",
      style = "minimal",
      border = "rounded",
    })
  )
  vim.wo[win].wrap = false
  return win
end

---@param session_id? string
---@return dsh.Search
local function windows(session_id)
  local width = math.max(20, math.min(110, vim.o.columns - 4))
  local col = math.floor((vim.o.columns - width - 2) / 2)
  local height = math.max(3, math.min(24, vim.o.lines - vim.o.cmdheight - 8))
  local results = window({ width = width, height = height, row = 4, col = col }, false)
  local title = session_id and " Search in this session " or " Search everywhere "
  local input = window({ width = width, height = 1, row = 1, col = col, title = title }, true)
  return { session_id = session_id, input = input, results = results, found = {}, chosen = 1 }
end

--- Open the search, with these words in it to begin with.
---@param query string
---@param session_id? string
function M.open(query, session_id)
  require("dsh.highlights").define()
  local search = windows(session_id)
  local buf = vim.api.nvim_win_get_buf(search.input)
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, { text.line(query) })
  set_keys(search, buf)
  vim.api.nvim_create_autocmd({ "TextChanged", "TextChangedI" }, {
    buffer = buf,
    callback = function()
      ask_after(search, PAUSE)
    end,
  })
  vim.api.nvim_create_autocmd("WinLeave", {
    buffer = buf,
    once = true,
    callback = function()
      close(search)
    end,
  })
  vim.cmd("startinsert!")
  ask(search)
end

return M
