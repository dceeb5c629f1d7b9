--- What the plugin says to the person: one line each, never a traceback.
local M = {}

local GROUPS = { [vim.log.levels.WARN] = "WarningMsg", [vim.log.levels.ERROR] = "ErrorMsg" }

--- Has the person nothing in the place of Neovim's own `vim.notify`?
---@return boolean
local function is_plain()
  return debug.getinfo(vim.notify, "S").source:find("vim/_editor.lua", 1, true) ~= nil
end

--- Show a line that is wider than the screen as far as it goes, without asking for <Enter>; it is whole in `:messages`
--- where Neovim (from 0.11 on) lets us.
---@param line string
---@param level integer
local function echo_wide(line, level)
  local can_keep = vim.fn.exists("&messagesopt") == 1
  if can_keep then
    local before = vim.o.messagesopt
    vim.o.messagesopt = before:gsub("hit%-enter", "wait:0")
    vim.notify(line, level)
    vim.o.messagesopt = before
    vim.cmd.redraw()
  end
  local shown = require("dsh.text").cut(line, vim.v.echospace)
  vim.api.nvim_echo({ { shown, GROUPS[level] } }, not can_keep, {})
end

---@param text string
---@param level integer
local function say(text, level)
  local line = "dsh: " .. require("dsh.text").line(text)
  vim.schedule(function()
    vim.cmd.redraw() -- else two in a row make Neovim ask for <Enter>
    if is_plain() and vim.api.nvim_strwidth(line) > vim.v.echospace then
      echo_wide(line, level)
    else
      vim.notify(line, level, { title = "dsh" })
    end
  end)
end

---@param text string
function M.info(text)
  say(text, vim.log.levels.INFO)
end

---@param text string
function M.warn(text)
  say(text, vim.log.levels.WARN)
end

--- Say why something did not work. What the person cancelled needs no word.
---@param err dsh.Error|string
function M.error(err)
  if type(err) == "string" then
    say(err, vim.log.levels.ERROR)
  elseif err.kind ~= "cancelled" then
    say(err.message, vim.log.levels.ERROR)
  end
end

return M
