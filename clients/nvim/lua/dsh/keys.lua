--- The keys of the sidebar: one table for the mappings, the `g?` help and the options.
local M = {}

---@class dsh.Key
---@field name string in the options
---@field lhs string
---@field about string
---@field run fun()

local function view()
  return require("dsh.view")
end

local function actions()
  return require("dsh.actions")
end

--- Do something with the row under the cursor.
---@param fn fun(row: dsh.Row, session_id: string)
---@return fun()
local function on_row(fn)
  return function()
    local row, session_id = view().row(), view().session_id()
    if row and session_id then
      fn(row, session_id)
    end
  end
end

---@param fn fun(session_id: string, tree: dsh.Tree)
---@return fun()
local function on_tree(fn)
  return function()
    local tree = view().tree()
    if tree then
      fn(tree.session_id, tree)
    end
  end
end

--- What cannot be done with this session is said before anything is asked.
---@param what "navigate"|"branch"|"fork"|"label"
---@param otherwise string
---@return boolean
local function can(what, otherwise)
  local state = view().state()
  if state and state.can[what] == false then
    require("dsh.say").warn(otherwise)
    return false
  end
  return true
end

--- The mark of a leaf that is not shown stands on the nearest row above it, which is another place to go to.
---@param row dsh.Row
---@return boolean
local function is_leaf(row)
  local state = view().state()
  return state ~= nil and state.leafId == row.id
end

local function enter()
  local info = view().listed_session()
  if info then
    view().use(info.sessionId)
  elseif view().on_more() then
    require("dsh.pick").sessions("")
  else
    on_row(function(row, session_id)
      if is_leaf(row) then
        require("dsh.say").info("already here")
      else
        actions().navigate(session_id, row.id)
      end
    end)()
  end
end

local edit = on_row(function(row, session_id)
  if row.kind == "user" then
    actions().navigate(session_id, row.id)
  else
    require("dsh.say").warn("not a prompt; only your own messages can be edited again")
  end
end)

local summarize = on_row(function(row, session_id)
  if is_leaf(row) then
    require("dsh.say").info("already here")
  else
    actions().navigate_with_summary(session_id, row.id)
  end
end)

local label = on_row(function(row, session_id)
  if can("label", "this session takes no labels") then
    local _, win = view().ids()
    local options = { title = "label", text = require("dsh.text").line(row.label or "") }
    require("dsh.inline").ask(win --[[@as integer]], options, function(text)
      actions().label(session_id, row.id, text)
    end)
  end
end)

local filter = on_tree(function(_, tree)
  local filters = require("dsh.config").filters
  local now = vim.iter(ipairs(filters)):find(function(_, name)
    return name == tree.filter
  end)
  tree.filter = filters[now % #filters + 1]
  view().changed()
  vim.api.nvim_echo({ { "dsh: filter " .. tree.filter } }, false, {})
end)

local search = on_tree(function(_, tree)
  vim.ui.input({ prompt = "Rows that hold: ", default = tree.query }, function(words)
    if words then
      tree.query = vim.trim(words) ~= "" and words or nil
      view().changed()
    end
  end)
end)

--- A row with others below it, else the one that it hangs from.
---@param row dsh.Row
---@return string?
local function foldable(row)
  return row.children > 0 and row.id or row.parentId
end

---@param row dsh.Row
---@param folded true?
local function fold(row, folded)
  local tree = view().tree()
  local id = folded and foldable(row) or row.id
  if tree and id then
    tree.folded[id] = folded
    view().changed(id)
  end
end

local fold_toggle = on_row(function(row)
  fold(row, not row.collapsed or nil)
end)

local fold_open = on_row(function(row)
  if row.collapsed then
    fold(row, nil)
  end
end)

local fold_close = on_row(function(row)
  if not row.collapsed then
    fold(row, true)
  end
end)

local fold_none = on_tree(function(_, tree)
  tree.folded = {}
  view().changed()
end)

local fold_all = on_tree(function(_, tree)
  tree:fold_others(function(err)
    if err then
      require("dsh.say").error(err)
    else
      view().changed()
    end
  end)
end)

--- Go to the next branching point in a direction, as often as the count says.
---@param step 1|-1
---@return fun()
local function to_branching(step)
  return on_tree(function(_, tree)
    local left = vim.v.count1
    local function is_next(row)
      left = row.children > 1 and left - 1 or left
      return left == 0
    end
    tree:find(math.max(view().index(), -1) + step, step, is_next, function(err, row)
      if err then
        require("dsh.say").error(err)
      elseif row then
        vim.cmd("normal! m'")
        view().go_to(row.id)
      else
        require("dsh.say").info(
          step == 1 and "no branching point below" or "no branching point above"
        )
      end
    end)
  end)
end

local to_leaf = on_tree(function()
  local state = view().state()
  if state and state.leafId then
    view().show(state.leafId)
  end
end)

local to_tips = on_tree(function(session_id)
  require("dsh.pick").leaves(session_id, view().show)
end)

--- What a row does not say: its whole id and type, exact times.
local details = on_row(function(row)
  local text = require("dsh.text")
  local lines = {
    ("%s  %s"):format(row.type, text.line(row.id)),
    ("%s  %s"):format(text.exact(row.timestamp), text.age(row.timestamp)),
  }
  if row.label then
    table.insert(lines, ("⚑ %s  %s"):format(text.line(row.label), text.exact(row.labelAt)))
  end
  if row.flags then
    table.insert(lines, table.concat(row.flags, ", "))
  end
  vim.lsp.util.open_floating_preview(lines, "", { border = "single", focus_id = "dsh.details" })
end)

local function help()
  local keys = require("dsh.config").get().keys
  local lines = {}
  for _, key in ipairs(M.list) do
    if keys[key.name] then
      table.insert(lines, ("%-5s  %s"):format(keys[key.name], key.about))
    end
  end
  local scratch = require("dsh.scratch")
  scratch.float(scratch.buffer({ name = "dsh-keys://" }, lines), "keys of the sidebar, :help dsh")
end

---@type dsh.Key[]
M.list = {
  {
    name = "navigate",
    lhs = "<CR>",
    about = "move the leaf here; on a session: show it",
    run = enter,
  },
  { name = "edit", lhs = "e", about = "edit this prompt again", run = edit },
  {
    name = "back",
    lhs = "u",
    about = "undo the last move of the leaf",
    run = on_tree(function(session_id)
      actions().navigate(session_id, nil, { back = true })
    end),
  },
  {
    name = "summarize",
    lhs = "s",
    about = "move the leaf here with a summary of what is left behind",
    run = summarize,
  },
  {
    name = "branch",
    lhs = "b",
    about = "new session from this prompt",
    run = on_row(function(row, session_id)
      actions().branch(session_id, row.id)
    end),
  },
  {
    name = "fork",
    lhs = "f",
    about = "new session of everything up to here",
    run = on_row(function(row, session_id)
      actions().fork(session_id, row.id)
    end),
  },
  {
    name = "resume",
    lhs = "r",
    about = "resume the session with its agent in a terminal",
    run = function()
      local info = view().listed_session()
      local session_id = info and info.sessionId or view().session_id()
      if session_id then
        require("dsh.terminal").resume(session_id)
      end
    end,
  },
  { name = "label", lhs = "L", about = "label this entry", run = label },
  {
    name = "preview",
    lhs = "p",
    about = "read the whole entry",
    run = on_row(function(row, session_id)
      require("dsh.preview").open(session_id, row.id)
    end),
  },
  {
    name = "yank",
    lhs = "y",
    about = "yank the entry's text",
    run = on_row(function(row, session_id)
      require("dsh.preview").yank(session_id, row.id)
    end),
  },
  { name = "details", lhs = "K", about = "exact time, id and flags of the row", run = details },
  { name = "filter", lhs = "o", about = "next filter", run = filter },
  { name = "search", lhs = "/", about = "only rows that hold these words", run = search },
  {
    name = "search_all",
    lhs = "S",
    about = "search all sessions",
    run = function()
      require("dsh.pick").search("")
    end,
  },
  { name = "leaf", lhs = "gl", about = "to the leaf", run = to_leaf },
  { name = "tips", lhs = "gL", about = "to the tip of another branch", run = to_tips },
  {
    name = "previous_branching",
    lhs = "[b",
    about = "to the branching point above",
    run = to_branching(-1),
  },
  {
    name = "next_branching",
    lhs = "]b",
    about = "to the branching point below",
    run = to_branching(1),
  },
  { name = "fold_toggle", lhs = "za", about = "fold or unfold what is below", run = fold_toggle },
  { name = "fold_open", lhs = "zo", about = "unfold", run = fold_open },
  { name = "fold_close", lhs = "zc", about = "fold what is below", run = fold_close },
  { name = "fold_none", lhs = "zR", about = "unfold everything", run = fold_none },
  { name = "fold_all", lhs = "zM", about = "fold every other branch", run = fold_all },
  {
    name = "refresh",
    lhs = "R",
    about = "fetch everything anew",
    run = function()
      view().reload()
    end,
  },
  {
    name = "close",
    lhs = "q",
    about = "close the sidebar",
    run = function()
      view().close()
    end,
  },
  { name = "help", lhs = "g?", about = "these keys", run = help },
}

--- Map the keys in the sidebar's buffer.
---@param buf integer
function M.map(buf)
  local keys = require("dsh.config").get().keys
  for _, key in ipairs(M.list) do
    local lhs = keys[key.name]
    if lhs then
      vim.keymap.set(
        "n",
        lhs,
        key.run,
        { buffer = buf, nowait = true, desc = "dsh: " .. key.about }
      )
    end
  end
end

return M
