--- The rows of one session, as the daemon computes them: a window of them is held, the rest is a number.
local client = require("dsh.client")

local PAGE = 5000 -- the most rows that the daemon gives at once
local STRIDE = 500 -- rows looked at at once on the way to something near

---@class dsh.Tree
---@field session_id string
---@field filter dsh.Filter
---@field query? string
---@field folded table<string, true>
---@field total integer
---@field first integer index of the first row that is held, from 0
---@field rows dsh.Row[]
---@field held boolean whether rows were ever there
---@field private asked integer
local Tree = {}
Tree.__index = Tree

---@param session_id string
---@param filter dsh.Filter
---@return dsh.Tree
function Tree.new(session_id, filter)
  local tree = { session_id = session_id, filter = filter, folded = {} }
  tree.total, tree.first, tree.rows, tree.held, tree.asked = 0, 0, {}, false, 0
  return setmetatable(tree, Tree)
end

--- The row at an index, where it is held.
---@param index integer from 0
---@return dsh.Row?
function Tree:at(index)
  return self.rows[index - self.first + 1]
end

---@param id string
---@return integer? index
function Tree:index_of(id)
  for n, row in ipairs(self.rows) do
    if row.id == id then
      return self.first + n - 1
    end
  end
end

--- Where the row of the leaf is, when it is held.
---@return integer? index
function Tree:leaf()
  for n, row in ipairs(self.rows) do
    if row.leaf then
      return self.first + n - 1
    end
  end
end

---@param more table
---@return table
function Tree:params(more)
  local params = { sessionId = self.session_id, filter = self.filter, query = self.query }
  if next(self.folded) then
    params.collapsed = vim.tbl_keys(self.folded)
  end
  return vim.tbl_extend("force", params, more)
end

--- Ask for a window of rows. An earlier `load` that is not answered yet is forgotten.
---@param window { around?: string, start?: integer, count: integer }
---@param callback fun(err?: dsh.Error, page?: dsh.TreeResult)
function Tree:load(window, callback)
  self.asked = self.asked + 1
  local mine = self.asked
  client.request("session/tree", self:params(window), function(err, page)
    if mine ~= self.asked then
      return
    elseif err and err.kind == "entryNotFound" and window.around then -- the file was rewritten
      self:load({ start = 0, count = window.count }, callback)
      return
    end
    callback(err, page)
  end)
end

---@param page dsh.TreeResult
function Tree:hold(page)
  self.total, self.first, self.rows, self.held = page.total, page.start, page.rows, true
end

--- Look through rows, page by page, from an index on in a direction until `found` says yes.
---@param from integer
---@param step 1|-1
---@param found fun(row: dsh.Row): boolean
---@param callback fun(err?: dsh.Error, row?: dsh.Row)
function Tree:find(from, step, found, callback)
  local start = step == 1 and from or math.max(0, from - STRIDE + 1)
  local count = step == 1 and STRIDE or from - start + 1
  if from < 0 or from >= self.total then
    callback()
    return
  end
  client.request(
    "session/tree",
    self:params({ start = start, count = count, textLimit = 1 }),
    function(err, page)
      if err then
        callback(err)
        return
      end
      for n = step == 1 and 1 or #page.rows, step == 1 and #page.rows or 1, step do
        if found(page.rows[n]) then
          callback(nil, page.rows[n])
          return
        end
      end
      self:find(step == 1 and start + count or start - 1, step, found, callback)
    end
  )
end

--- Fold every branch that leaves the path to the leaf.
---@param callback fun(err?: dsh.Error)
function Tree:fold_others(callback)
  local active, heads = {}, {}
  local function page_from(start)
    local window = { start = start, count = PAGE, textLimit = 1, collapsed = {} }
    client.request("session/tree", self:params(window), function(err, page)
      if err then
        callback(err)
        return
      end
      for _, row in ipairs(page.rows) do
        if row.active then
          active[row.id] = true
        elseif row.children > 0 and (not row.parentId or active[row.parentId]) then
          heads[row.id] = true
        end
      end
      if #page.rows == PAGE then
        page_from(start + PAGE)
      else
        self.folded = heads
        callback()
      end
    end)
  end
  page_from(0)
end

--- Unfold whatever an entry is folded under.
---@param id string
---@param callback fun(err?: dsh.Error)
function Tree:reveal(id, callback)
  if not next(self.folded) then
    callback()
    return
  end
  client.request("session/path", { sessionId = self.session_id, entryId = id }, function(err, path)
    for _, above in ipairs(err and {} or path.ids) do
      if above ~= id then
        self.folded[above] = nil
      end
    end
    callback(err)
  end)
end

return Tree
