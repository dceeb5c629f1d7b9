--- The window of the sidebar and its buffer.
local config = require("dsh.config")

local M = {}

local api = vim.api

local NAME = "dsh://sidebar"
local OPTIONS = {
  number = false,
  relativenumber = false,
  signcolumn = "no",
  foldcolumn = "0",
  foldenable = false,
  statuscolumn = " ",
  wrap = false,
  list = false,
  spell = false,
  cursorline = true,
  colorcolumn = "",
  fillchars = "eob: ",
  winfixwidth = true,
  winfixbuf = true,
}

---@return integer buf
function M.make_buffer()
  local buf = api.nvim_create_buf(false, true)
  vim.bo[buf].bufhidden = "hide"
  vim.bo[buf].undolevels = -1 -- memory, of a buffer that is drawn again and again
  vim.bo[buf].modeline = false
  vim.bo[buf].modifiable = false
  vim.bo[buf].filetype = "dsh"
  require("dsh.scratch").find(NAME) -- takes away what is left of an earlier one
  api.nvim_buf_set_name(buf, NAME)
  require("dsh.keys").map(buf)
  return buf
end

---@param buf integer
---@return integer win
function M.open(buf)
  local options = config.get().sidebar
  local width = options.width < 1 and vim.o.columns * options.width or options.width
  local win = api.nvim_open_win(buf, true, {
    split = options.position,
    win = -1,
    width = math.max(20, math.floor(width)),
  })
  for name, value in pairs(OPTIONS) do
    vim.wo[win][0][name] = value
  end
  return win
end

---@param win integer
function M.close(win)
  local tab = api.nvim_win_get_tabpage(win)
  if #api.nvim_list_tabpages() == 1 and #api.nvim_tabpage_list_wins(tab) == 1 then
    vim.cmd.new() -- the last window cannot be closed
  end
  api.nvim_win_close(win, true)
end

--- Put the cursor on a line.
---@param win integer
---@param line integer
---@param scroll { offset?: integer, anew?: boolean, filled?: boolean } offset = lines from the top of the window, without it that scrolls only when it must; anew = as in a window that was just opened; filled = no lines below the end in sight where others could be shown
function M.put_cursor(win, line, scroll)
  local count = api.nvim_buf_line_count(api.nvim_win_get_buf(win))
  local rows = api.nvim_win_get_height(win)
  line = math.max(1, math.min(line, count))
  api.nvim_win_call(win, function()
    local now = vim.fn.winsaveview()
    local top = scroll.anew and 1 or now.topline
    if scroll.offset then
      top = line - scroll.offset
    elseif line < top or line >= top + rows then
      top = line - math.floor(rows / 2)
    end
    if scroll.filled then
      top = math.min(top, count - rows + 1)
    end
    now.lnum, now.topline = line, math.max(1, top)
    vim.fn.winrestview(now)
  end)
end

return M
