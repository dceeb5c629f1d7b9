--- What a person may set. `:help dsh-config` describes it.
local M = {}

---@class dsh.Config
M.defaults = {
  daemon = {
    cmd = { "dshd" }, -- how dshd is called; arguments are added
  },
  sidebar = {
    position = "left", ---@type "left"|"right"
    width = 0.4, -- of the screen, or columns when 1 or more
    sessions = 8, -- of this directory that are shown above the tree
    filter = "default", ---@type dsh.Filter to begin with
    follow = true, -- stay on the leaf while the agent works, when the cursor is on it
  },
  sessions = {
    scope = "exact", ---@type "exact"|"subtree"|"repo"|"all" which directories count as "this directory"
  },
  branch_picker = "messages", ---@type "messages"|"tree" what :DshBranch shows where no prompt is under the cursor
  preview = "float", ---@type "float"|"split"
  keys = {}, ---@type table<string, string|false> by the names of dsh.keys; false = not mapped
  prompt = {
    keys = {
      send = "<C-CR>", ---@type string|false
      branch = "<Esc><Esc>", ---@type string|false
    },
  },
}

---@alias dsh.Filter "default"|"no-tools"|"user-only"|"labeled-only"|"all"
M.filters = { "default", "no-tools", "user-only", "labeled-only", "all" }

local CHOICES = {
  ["sidebar.position"] = { "left", "right" },
  ["sidebar.filter"] = M.filters,
  ["sessions.scope"] = { "exact", "subtree", "repo", "all" },
  branch_picker = { "messages", "tree" },
  preview = { "float", "split" },
}

local current ---@type dsh.Config?

---@param path string
---@param ... any
local function refuse(path, ...)
  error(("dsh: option %s %s"):format(path, string.format(...)), 0)
end

---@param given table
---@param known table
---@param path string
local function check(given, known, path)
  for name, value in pairs(given) do
    local at = path == "" and tostring(name) or path .. "." .. name
    local default = known[name]
    local choices = CHOICES[at]
    if default == nil then
      refuse(at, "is not known")
    elseif choices then
      if not vim.tbl_contains(choices, value) then
        refuse(at, "must be one of %s", table.concat(choices, ", "))
      end
    elseif at:find("keys.", 1, true) then
      if value ~= false and type(value) ~= "string" then
        refuse(at, "must be a key or false")
      end
    elseif type(value) ~= type(default) then
      refuse(at, "must be a %s, not a %s", type(default), type(value))
    elseif type(value) == "table" and not vim.islist(default) or at == "keys" then
      check(value, default, at)
    elseif type(value) == "number" and value <= 0 then
      refuse(at, "must be more than 0")
    end
  end
end

--- The options with those of the person, checked.
---@param given table?
---@return dsh.Config
local function merge(given)
  local defaults = vim.deepcopy(M.defaults)
  for _, key in ipairs(require("dsh.keys").list) do
    defaults.keys[key.name] = key.lhs
  end
  check(given or {}, defaults, "")
  return vim.tbl_deep_extend("force", defaults, given or {})
end

---@param given table?
function M.set(given)
  current = merge(given)
end

---@return dsh.Config
function M.get()
  current = current or merge()
  return current
end

return M
