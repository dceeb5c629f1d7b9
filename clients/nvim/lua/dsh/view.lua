--- The sidebar: the sessions of a directory, and below them the tree of the one in use.
---
--- The buffer has a line for each row of the tree, however many there are. Only the rows around what can be seen are
--- asked for and drawn; the other lines are blank until the view comes near them.
local canvas = require("dsh.canvas")
local client = require("dsh.client")
local config = require("dsh.config")
local render = require("dsh.render")
local say = require("dsh.say")
local sessions = require("dsh.sessions")
local text = require("dsh.text")
local Tree = require("dsh.tree")
local window = require("dsh.window")

local M = {}

local api = vim.api

local DEBOUNCE = 50 -- ms from a change to asking for the rows again
local LEAST = 400 -- rows that are held at least
local HELD = 10 -- screenfuls that are held
local AHEAD = 2 -- screenfuls on either side that are asked for before they are needed

---@class dsh.Wanted where the cursor goes with the next rows
---@field id string of an entry
---@field offset? integer lines below the top of the window; without it that scrolls only when it must
---@field anew? boolean scroll as in a window that was just opened
---@field leaf? boolean the leaf, which may be another entry by the time that the rows come
---@field itself? boolean the entry and not the nearest above it that is shown: what hides it is taken back

---@class dsh.View
---@field buf? integer
---@field win? integer
---@field with_sessions boolean whether the sessions of the directory stand above the tree
---@field head integer lines above the tree
---@field drawn string[] ids of the sessions in them
---@field tree? dsh.Tree
---@field state? dsh.SessionState
---@field leaf_label? string
---@field trouble? string why there is no tree
---@field closed? string id of the session that is not shown any more for that reason
---@field loading boolean
---@field again boolean rows are to be asked for once more when the answer on its way is there
---@field wanted? dsh.Wanted
---@field left? string entry under the cursor when the sidebar was closed
---@field due boolean
local view =
  { with_sessions = false, head = 0, drawn = {}, loading = false, again = false, due = false }

local close_session ---@type fun()?
local close_state ---@type fun()?
local refresh ---@type fun(at_once?: boolean)

local function shown()
  return view.win ~= nil
    and api.nvim_win_is_valid(view.win)
    and api.nvim_win_get_buf(view.win) == view.buf
end

---@return integer
local function height()
  return shown() and api.nvim_win_get_height(view.win) or vim.o.lines
end

---@return integer
local function width()
  return shown() and api.nvim_win_get_width(view.win) or vim.o.columns
end

---@return integer
local function cursor_line()
  return shown() and api.nvim_win_get_cursor(view.win)[1] or 1
end

--- The index of the row under the cursor, from 0; negative above the tree.
---@return integer
function M.index()
  return cursor_line() - view.head - 1
end

---@return dsh.Row?
function M.row()
  return view.tree and M.index() >= 0 and view.tree:at(M.index()) or nil
end

--- Lines between the top of the window and the cursor.
---@return integer
local function offset()
  return shown() and cursor_line() - vim.fn.line("w0", view.win) or 0
end

-- Drawing

--- The list is sorted anew by what happens elsewhere. The cursor stays on its session, so that a key that is pressed
--- just then means the one that it was pressed for; below the list when that is not listed any more.
local function draw_head()
  local before, line, from_top = view.head, cursor_line(), offset()
  local here = line <= before and view.drawn[line] or nil
  local lines = view.with_sessions and sessions.lines(view.tree and view.tree.session_id, width())
    or {}
  canvas.put(view.buf, 0, before, lines)
  view.head = #lines
  view.drawn = #lines > 0 and sessions.ids() or {}
  if not shown() then
    return
  elseif here then
    local now = sessions.line_of(here) or #view.drawn + 1
    if now ~= line then
      window.put_cursor(view.win, now, {})
    end
  elseif #lines ~= before then
    local moved = view.tree and #lines - before or 0
    window.put_cursor(view.win, line + moved, { offset = from_top })
  end
end

---@return boolean
local function connected()
  return client.state() ~= "lost" and client.state() ~= "off"
end

--- Facts about what is shown that is not the whole of it.
---@return dsh.Chunk[]
local function modes()
  local words = {}
  if not connected() then
    table.insert(words, { "no connection", "DshWarn" })
  end
  if view.tree and view.tree.filter ~= "default" then
    table.insert(words, { view.tree.filter, "DshKind" })
  end
  if view.tree and view.tree.query then
    table.insert(words, { "/" .. view.tree.query, "DshMatch" })
  end
  return words
end

--- Is the session in use among those that are listed, and can its line be seen?
---@return boolean
local function in_sight()
  return view.with_sessions
    and vim.fn.line("w0", view.win) == 1
    and (not view.tree or sessions.lists(view.tree.session_id))
end

--- The line above everything: the session in use, or the directory while the list says which that is.
local function draw_bar()
  if not shown() then
    return
  end
  local info = not in_sight() and view.state or nil
  local title = info and info.title
    or "Sessions of " .. vim.fn.fnamemodify(sessions.cwd or "", ":~")
  local bar = render.bar(width(), title, info, modes())
  if vim.wo[view.win].winbar ~= bar then
    vim.wo[view.win][0].winbar = bar
  end
end

---@return dsh.Line? what stands in the place of a tree
local function instead()
  if view.trouble then
    return render.hint(text.line(view.trouble))
  elseif not view.tree and sessions.known then
    return render.hint("")
  elseif (not view.tree or not view.tree.held) and not connected() then
    return render.hint("the daemon cannot be asked (:checkhealth dsh, R: again)")
  elseif not view.tree then
    return render.hint("looking for sessions …")
  elseif not view.tree.held then
    return render.hint("opening …")
  elseif view.tree.total == 0 then
    local narrowed = view.tree.query or view.tree.filter ~= "default"
    return render.hint(
      narrowed and "no rows here (o: other filter, /: other words)" or "nothing was said yet"
    )
  end
end

--- Draw the rows that are held; the lines of all others become blank.
---@param old_first integer
---@param old_count integer
local function draw_rows(old_first, old_count)
  local tree = view.tree
  local other = instead()
  local total = other and 1 or tree and tree.total or 0
  local room = width()
  local lines = other and { other }
    or vim.tbl_map(function(row)
      return render.row(row, room)
    end, tree and tree.rows or {})
  local first = other and 0 or tree and tree.first or 0
  canvas.blank(view.buf, view.head + old_first, view.head + old_first + old_count)
  canvas.resize(view.buf, view.head + total)
  canvas.put(view.buf, view.head + first, view.head + first + #lines, lines)
end

-- Rows

--- Is the row of the leaf held, its label is known; else it is asked for.
local function note_leaf()
  local tree, state = view.tree, view.state
  local index = tree:leaf()
  if index then
    view.leaf_label = tree:at(index).label
    return
  end
  view.leaf_label = nil
  if state and state.leafId then
    local params = { sessionId = tree.session_id, around = state.leafId, count = 1 }
    client.request("session/tree", params, function(err, page)
      if not err and view.tree == tree and page.rows[1] and page.rows[1].leaf then
        view.leaf_label = page.rows[1].label
        vim.cmd.redrawstatus()
      end
    end)
  end
end

--- Put the cursor where it is wanted, or on the entry where it was.
---@param id? string of that entry
---@param from_top integer
---@param page dsh.TreeResult
---@param around? string what the page was asked around
local function settle(id, from_top, page, around)
  local tree, wanted =
    view.tree, --[[@as dsh.Tree]]
    view.wanted
  local scroll = { offset = from_top }
  local index = nil ---@type integer?
  if wanted then
    id = wanted.id
    scroll = { offset = wanted.offset, anew = wanted.anew, filled = true }
    index = wanted.leaf and tree:leaf() or nil
  end
  index = index or id and (tree:index_of(id) or id == around and page.selected) or nil
  if index and shown() then
    window.put_cursor(view.win, view.head + index + 1, scroll)
  end
  if wanted and (index or wanted.id == around) then
    view.wanted = nil
  end
end

--- Take back what keeps an entry from being shown: the words, then the filter.
---@param tree dsh.Tree
---@return boolean whether there was anything
local function widen(tree)
  if tree.query then
    say.info(("all rows again: the entry does not hold “%s”"):format(tree.query))
    tree.query = nil
  elseif tree.filter ~= "default" and tree.filter ~= "all" then
    say.info(("filter default: %s does not show the entry"):format(tree.filter))
    tree.filter = "default"
  else
    return false
  end
  return true
end

--- Is the entry that is wanted in sight nowhere in these rows? The mark of the leaf does for the leaf, where it is only
--- a filter that hides it.
---@param tree dsh.Tree
---@param page dsh.TreeResult around the entry
---@return boolean
local function misses(tree, page)
  local wanted = view.wanted --[[@as dsh.Wanted]]
  local state = view.state
  local marked = not tree.query and state ~= nil and state.leafId == wanted.id
  return not vim.iter(page.rows):any(function(row)
    return row.id == wanted.id or marked and row.leaf
  end)
end

---@param part { around?: string, start?: integer, count: integer }
local function load(part)
  local tree = view.tree --[[@as dsh.Tree]]
  view.loading = true
  tree:load(part, function(err, page)
    if tree ~= view.tree or not view.buf then
      return
    end
    view.loading = false
    if err then
      if err.kind ~= "disconnected" then -- after a loss the state comes anew, and the rows with it
        say.error(err)
      end
      return
    end
    local wanted = view.wanted
    if wanted and wanted.itself and wanted.id == part.around and misses(tree, page) then
      wanted.itself = widen(tree)
      if wanted.itself then
        draw_bar()
        refresh(true)
        return
      end
    end
    local row, from_top, first, count = M.row(), offset(), tree.first, #tree.rows
    tree:hold(page)
    draw_rows(first, count)
    settle(row and row.id, from_top, page, part.around)
    note_leaf()
    draw_bar()
    vim.cmd.redrawstatus()
    if view.again or view.wanted then
      view.again = false
      refresh()
    else
      M.cover()
    end
  end)
end

--- Ask for the rows around the cursor again; it stays on its entry, or goes to the one that is wanted.
---@param at_once? boolean do not wait for an answer that is on its way
function refresh(at_once)
  if not view.tree or not shown() then
    return
  elseif view.loading and not at_once then
    view.again = true
    return
  end
  local row = M.row()
  local id = view.wanted and view.wanted.id or row and row.id
  local count = math.max(LEAST, HELD * height())
  if id then
    load({ around = id, count = count })
  else
    load({ start = math.max(0, M.index() - math.floor(count / 2)), count = count })
  end
end

--- Ask for the rows that can be seen, and those about to be, where they are not held.
function M.cover()
  local tree = view.tree
  if not tree or not shown() or view.loading or tree.total == 0 then
    return
  end
  local margin = AHEAD * height()
  local top = vim.fn.line("w0", view.win) - view.head - 1 - margin
  local bottom = vim.fn.line("w$", view.win) - view.head - 1 + margin
  local first = math.max(0, top)
  local last = math.min(tree.total - 1, bottom)
  if last < 0 or (first >= tree.first and last < tree.first + #tree.rows) then
    return
  end
  local count = math.max(LEAST, HELD * height())
  local start = math.max(0, math.floor((top + bottom - count) / 2))
  load({ start = start, count = count })
end

local function refresh_soon()
  if view.due then
    return
  end
  view.due = true
  vim.defer_fn(function()
    view.due = false
    refresh()
  end, DEBOUNCE)
end

--- Move the cursor to an entry, or to its nearest ancestor that is shown.
---@param id string
---@param itself? boolean take back words and filter that hide the entry
function M.go_to(id, itself)
  local tree = view.tree
  if not tree then
    return
  end
  tree:reveal(id, function(err)
    if err then
      say.error(err)
    elseif tree == view.tree then
      view.wanted = { id = id, itself = itself }
      refresh(true)
    end
  end)
end

--- Move the cursor to an entry that was chosen: it is shown whatever is in force.
---@param id string
function M.show(id)
  M.go_to(id, true)
end

--- Ask for the rows again after what is shown of the tree was changed: filter, query, folds.
---@param id? string where the cursor goes; else it stays on its entry
function M.changed(id)
  local row = M.row()
  local here = row and row.id
  local goal = id or here or view.state and view.state.leafId
  view.wanted = goal and { id = goal, offset = goal == here and offset() or nil }
  refresh(true)
end

-- The session in use

---@param pattern string
---@param data table
local function event(pattern, data)
  api.nvim_exec_autocmds("User", { pattern = pattern, modeline = false, data = data })
end

--- A cursor on the leaf goes with it.
---@param state dsh.SessionState
local function stay_on_leaf(state)
  local row = M.row()
  if row and row.leaf and state.leafId and not view.wanted and config.get().sidebar.follow then
    view.wanted = { id = state.leafId, leaf = true }
  end
end

---@param change dsh.Change
local function on_change(change)
  local state = view.state --[[@as dsh.SessionState]]
  stay_on_leaf(state)
  draw_bar()
  refresh_soon()
  local cause = change.cause
  event(
    "DshSessionChanged",
    { session_id = change.sessionId, revision = change.revision, cause = cause }
  )
  if
    type(cause) == "table"
    and (cause.method == "session/navigate" or cause.method == "session/moveLeaf")
  then
    event(
      "DshNavigated",
      { session_id = change.sessionId, leaf_id = change.leafId, client = cause.client }
    )
  end
end

local function leave_session()
  if close_session then
    close_session()
    close_session = nil
  end
end

--- Show no tree.
---@param why? string
local function without_tree(why)
  leave_session()
  local tree = view.tree
  view.tree, view.state, view.wanted, view.trouble = nil, nil, nil, why
  view.closed = why and tree and tree.session_id or nil
  draw_head()
  draw_rows(tree and tree.first or 0, tree and #tree.rows or 0)
  draw_bar()
end

local listener ---@type dsh.Listener

---@param state dsh.SessionState
local function on_state(state)
  local first = view.state == nil
  view.state, view.trouble = state, nil
  if first then
    view.wanted = view.wanted
      or state.leafId and { id = state.leafId, leaf = true, anew = true }
      or nil
    if not view.with_sessions and state.cwd then
      sessions.follow(state.cwd, listener) -- for what it says of this session: running, entries
    end
    sessions.include(state.sessionId, listener)
  else
    stay_on_leaf(state)
    event(
      "DshSessionChanged",
      { session_id = state.sessionId, revision = state.revision, cause = "resync" }
    )
  end
  draw_bar()
  refresh(first)
end

local CLOSED = {
  deleted = "this session was deleted",
  moved = "the file of this session was moved",
  replaced = "the file of this session was replaced by another",
}

local function follow_session()
  local tree = view.tree --[[@as dsh.Tree]]
  ---@param fn function
  local function while_shown(fn)
    return function(...)
      if view.tree == tree then
        fn(...)
      end
    end
  end
  close_session = client.open(tree.session_id, {
    state = while_shown(on_state),
    change = while_shown(on_change),
    closed = while_shown(function(closed)
      without_tree(closed.message or CLOSED[closed.reason] or "this session was closed")
    end),
  })
end

--- Show the tree of a session.
---@param session_id string
---@param entry_id? string where the cursor goes; else to the leaf, or to where it was in this session
function M.use(session_id, entry_id)
  local old = view.tree
  local same = old ~= nil and old.session_id == session_id
  if same and close_session then
    if entry_id then
      M.show(entry_id)
    end
    return
  end
  leave_session()
  local chosen = entry_id ~= nil
  entry_id = entry_id or same and view.left or nil
  view.state, view.trouble, view.closed, view.leaf_label = nil, nil, nil, nil
  view.loading, view.again = false, false
  view.wanted = entry_id and { id = entry_id, anew = true, itself = chosen }
  if not same then
    view.tree = Tree.new(session_id, old and old.filter or config.get().sidebar.filter)
    draw_rows(old and old.first or 0, old and #old.rows or 0)
  end
  draw_head()
  draw_bar()
  follow_session()
end

-- The sessions of the directory

--- Show the latest session where none is shown.
local function show_latest()
  if view.tree or view.trouble or not sessions.known then
    return
  end
  local latest = sessions.latest()
  if latest then
    M.use(latest.sessionId)
  else
    draw_rows(0, 1)
  end
end

listener = {
  listed = function()
    if shown() then
      draw_head()
      draw_bar()
      show_latest()
      if view.state then
        sessions.include(view.state.sessionId, listener)
      end
    end
  end,
  changed = function(info)
    local state = view.state
    if state and info.sessionId == state.sessionId then
      for name, value in pairs(info) do
        state[name] = value
      end
      state.live = info.live
      draw_bar()
      vim.cmd.redrawstatus()
    end
  end,
}

-- Window and buffer

--- The window that the person works in counts, where several show the sidebar.
local function adopt_window()
  local win = api.nvim_get_current_win()
  if view.win and view.win ~= win and api.nvim_win_get_buf(win) == view.buf then
    view.win = win
    draw_head()
    draw_bar()
  end
end

--- Another window that shows the sidebar.
---@param than integer
---@return integer?
local function other_window(than)
  return vim.iter(vim.fn.win_findbuf(view.buf)):find(function(win)
    return win ~= than
  end)
end

--- The sidebar was closed: nothing goes on.
local function unfollow()
  if shown() then
    local row = M.row()
    view.left = row and row.id or nil
  end
  leave_session()
  sessions.leave()
  if close_state then
    close_state()
  end
  close_state, view.win = nil, nil
end

---@param group integer
---@param events string[]
---@param fn fun(args: table)
local function on(group, events, fn)
  api.nvim_create_autocmd(events, { group = group, callback = fn })
end

local function make_buffer()
  local buf = window.make_buffer()
  view.buf, view.head = buf, 0
  local group = api.nvim_create_augroup("dsh.view", {})
  on(group, { "CursorMoved", "WinScrolled", "WinResized" }, function(args)
    if args.event ~= "CursorMoved" or args.buf == buf then
      M.cover()
      draw_bar()
    end
  end)
  on(group, { "WinResized" }, function()
    if shown() and vim.list_contains(vim.v.event.windows, view.win) then
      draw_head() -- what there is room for beside the titles, and of the labels
      if view.tree then
        draw_rows(view.tree.first, #view.tree.rows)
      end
    end
  end)
  on(group, { "WinEnter", "BufWinEnter" }, function(args)
    if args.buf == buf then
      vim.schedule(adopt_window) -- a new window shows the buffer of the one before it for a moment
    end
  end)
  on(group, { "BufEnter", "FocusGained" }, function(args)
    if shown() and (args.event == "FocusGained" or args.buf == buf) then
      draw_head() -- ages
      draw_bar()
    end
  end)
  on(group, { "WinClosed" }, function(args)
    if tonumber(args.match) == view.win then
      local other = other_window(view.win)
      if other then
        view.win = other
      else
        unfollow()
      end
    end
  end)
  -- `:bdelete` too, since it takes options and keys away.
  on(group, { "BufUnload" }, function(args)
    if args.buf == buf then
      unfollow()
      local old = view.tree
      view.buf, view.state, view.trouble = nil, nil, nil
      view.tree = old and Tree.new(old.session_id, old.filter)
    end
  end)
end

---@class dsh.Open
---@field session_id? string to be shown; else the latest of the directory, or the one that was shown last
---@field entry_id? string where the cursor goes
---@field sessions? boolean whether the sessions of the directory stand above the tree; nil = as it was

---@return boolean
local function in_this_tab()
  return shown() and api.nvim_win_get_tabpage(view.win) == api.nvim_get_current_tabpage()
end

--- The name of the sidebar was opened, by a session file or by `:edit`: it is made anew.
---@param buf integer
function M.restore(buf)
  vim.schedule(function()
    local before = api.nvim_get_current_win()
    local was_in = api.nvim_win_get_buf(before) == buf
    api.nvim_buf_delete(buf, { force = true })
    M.open({ sessions = true })
    if not was_in and api.nvim_win_is_valid(before) then
      api.nvim_set_current_win(before)
    end
  end)
end

--- Open the sidebar, or go to it. There is one, which comes from another tab page when it is called there.
---@param options dsh.Open
function M.open(options)
  require("dsh.highlights").setup()
  if shown() and not in_this_tab() then
    M.close()
  end
  if not view.buf then
    make_buffer()
  end
  if shown() then
    api.nvim_set_current_win(view.win)
  else
    view.win = window.open(view.buf)
    close_state = client.on_state(function()
      draw_bar()
      if view.tree == nil or not view.tree.held then
        draw_rows(0, 1) -- the words in the place of rows
      end
    end)
  end
  if options.sessions ~= nil then
    view.with_sessions = options.sessions
  end
  local cwd = vim.fn.getcwd()
  local moved = sessions.cwd ~= cwd
  local session_id = options.session_id
  if not session_id and view.tree and not (moved and options.sessions) then
    session_id = view.tree.session_id
  end
  if not session_id then
    without_tree()
  end
  sessions.follow(cwd, listener)
  if session_id then
    M.use(session_id, options.entry_id)
  else
    show_latest()
  end
end

function M.close()
  if shown() then
    vim.iter(vim.fn.win_findbuf(view.buf)):each(window.close)
  end
end

function M.toggle()
  if in_this_tab() then
    M.close()
  else
    M.open({ sessions = true })
  end
end

-- What others ask of the sidebar

---@return boolean
function M.is_current()
  return shown() and api.nvim_get_current_win() == view.win
end

---@return boolean
function M.is_shown()
  return shown()
end

---@return string? of the session in use
function M.session_id()
  return shown() and view.tree and view.tree.session_id or nil
end

---@return dsh.SessionState?
function M.state()
  return shown() and view.state or nil
end

---@return string?
function M.leaf_label()
  return view.leaf_label
end

---@return dsh.Tree?
function M.tree()
  return shown() and view.tree or nil
end

---@return integer? buffer, integer? window
function M.ids()
  return view.buf, view.win
end

--- The session of the line under the cursor, in the list above the tree.
---@return dsh.SessionInfo?
function M.listed_session()
  return M.index() < 0 and sessions.at(cursor_line()) or nil
end

--- Is the cursor on the line that stands for the sessions that are not listed?
---@return boolean
function M.on_more()
  return M.index() < 0 and sessions.is_more(cursor_line())
end

--- Fetch everything anew.
function M.reload()
  sessions.fetch(listener)
  if view.tree then
    local row = M.row()
    leave_session()
    view.state, view.trouble = nil, nil
    view.wanted = row and { id = row.id, offset = offset() }
    follow_session()
  elseif view.closed then
    M.use(view.closed) -- it may be there again
  end
end

return M
